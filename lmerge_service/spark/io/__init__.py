"""Elements in and out of Spark: topics, JSON lines and Parquet."""
