"""What the simulator costs: `python -m benchmarks`. Nothing here is a test; no figure of it is asserted anywhere."""
