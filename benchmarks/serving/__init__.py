"""What `benchmarks.serve` measures servers with: a client, loads, processes, and tables."""
