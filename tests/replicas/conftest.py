"""Queries that stand in a file of their own, as a user's, are no tests."""

collect_ignore = ["sample_queries.py"]
