"""What outlives memory: tiers that blocks are written to and read back from."""
