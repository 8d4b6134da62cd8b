"""The table topic: the output's events by key, kept in the same transactions."""
