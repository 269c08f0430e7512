"""Which models Octavo runs: one file per family, each a mapping from its files to a ModelSpec."""
