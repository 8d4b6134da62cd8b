"""The merge of a topology as a Structured Streaming job: the service's operator, run by Spark."""
