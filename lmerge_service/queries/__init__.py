"""Continuous queries: a temporal algebra over insert, adjust and stable elements.

A logical operator has one meaning, a function from temporal databases to a temporal database
(`meaning`). A physical operator (`operators`) computes it incrementally from elements, and emits
revisions as it learns more. A plan of the algebra is built by the fluent API (`plan`) and runs as
a network of operators (`physical`, `network`). Different physical plans of one query emit different
streams of the same temporal database: they are the replicas that LMerge merges.

All of it is pure: no I/O, no clock, no randomness, no logging.
"""
