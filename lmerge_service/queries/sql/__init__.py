"""Queries as SQL text: what the fluent API builds, written as a statement."""
