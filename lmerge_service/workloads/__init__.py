"""Logical streams and their physical presentations: for the demo, the benchmarks and the tests."""

__all__ = ()
