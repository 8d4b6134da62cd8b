"""Statements in SQL: against the fluent API, against SQLite, and what is refused."""
