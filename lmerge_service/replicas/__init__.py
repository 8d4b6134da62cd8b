"""Replicas of continuous queries over Kafka: facts or elements in, elements out, exactly once.

    topics ──▶ decode, lateness ──▶ route ──▶ a network per output partition ──▶ one transaction

What is decided about facts is in `lateness` and `inputs`; `partitions` runs a plan; `running` is
the process, `recovery` how it goes on after it was killed. docs/replicas.md is the page of it.
"""
