"""Kafka: where elements come from and go to, what a merge keeps there, and a local broker."""
