"""The Anthropic dialect: messages and count_tokens."""
