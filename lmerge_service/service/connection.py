"""From the topology's `kafka` section to the connection that every Kafka client takes."""

from lmerge_service.kafka.client import Connection
from lmerge_service.topology import Kafka

__all__ = ("connection_of",)


def connection_of(kafka: Kafka) -> Connection:
    """The only place where one is made of the other."""
    return Connection(kafka.bootstrap)
