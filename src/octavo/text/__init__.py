"""Words to tokens and back: tokenizers, chat templates, incremental detokenisation, stop strings."""
