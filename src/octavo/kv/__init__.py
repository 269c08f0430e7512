"""Who owns which block. Pure Python: no bytes, no numpy, nothing of ours but configuration and formats."""
