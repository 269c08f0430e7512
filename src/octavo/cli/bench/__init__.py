"""``octavo bench``. One file per sub-command; what they measure with is shared with ``benchmarks/``."""
