"""From the topology's `kafka` section to the connection that every Kafka client takes."""

from lmerge_service.config.topology import Kafka
from lmerge_service.errors import TransportError
from lmerge_service.kafka.client import Connection

__all__ = ("connection_of",)


def connection_of(kafka: Kafka) -> Connection:
    """The only place where one is made of the other; rereads certificates and the password.

    Raises:
        TransportError: they could be read when the topology was, and cannot be now.
    """
    try:
        tls = kafka.tls.context() if kafka.tls is not None else None
        if (sasl := kafka.sasl) is None:
            return Connection(kafka.bootstrap, tls)
        password = sasl.password.read().get_secret_value()
        return Connection(kafka.bootstrap, tls, sasl.mechanism, sasl.username, password)
    except ValueError as error:
        raise TransportError(f"connecting to {kafka.bootstrap}: {error}") from None
