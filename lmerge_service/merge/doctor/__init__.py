"""The doctor: a real cluster against a topology, before the first start and at any time."""
