"""The paper's workload at scale: logical streams of any length and their presentations, made by
Spark from nothing but numbers (docs/generator.md)."""

__all__ = ()
