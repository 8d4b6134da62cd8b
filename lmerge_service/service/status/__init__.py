"""The status document of a worker: what it is made of, and its health and metrics."""
