"""Benchmarks: `python -m benchmarks` (or `make bench`); inputs come from the same presentations as
the tests. Method and results are in docs/performance.md."""
