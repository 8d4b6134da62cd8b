"""What a user configures: the topology file, its processes, and credentials."""
