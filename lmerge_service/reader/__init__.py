"""The merge in a consumer: topics read as the one stream that they all mean."""
