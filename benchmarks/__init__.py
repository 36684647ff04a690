"""What a simulation costs in time and memory: `python -m benchmarks`. No test asserts these figures."""
