"""Snapshots of a merge's state: written by a child process, published in chunks."""
