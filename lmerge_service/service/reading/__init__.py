"""What a worker's tasks read: together where they stand at the same records, else each alone."""
