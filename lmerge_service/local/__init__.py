"""Kafka and other processes on this machine: started, recorded, found again, ended."""
