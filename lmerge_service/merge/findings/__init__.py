"""What a merge finds out about its replicas, counted, and published as evidence."""
