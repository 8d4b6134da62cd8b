"""Snapshots of a merge's state: written by a forked process, published in chunks."""
