"""How a key or value is written down: one file per KV format, sizes and a numpy twin of the native codec."""
