"""What runs over whole streams, in files and topics, to their end: merge and audit."""
