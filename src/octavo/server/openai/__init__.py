"""The OpenAI dialect: chat completions, completions, responses."""
