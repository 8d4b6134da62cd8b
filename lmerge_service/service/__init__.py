"""The worker: a merge task over Kafka, exactly once, and what it shows of itself."""
