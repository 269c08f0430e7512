"""How a key or value is written down: one file per KV format."""
