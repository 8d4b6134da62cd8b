"""Starting a client, or closing it again; and when a broker does not let us in, why not, in words.

Theory
    A client that cannot start reports only that no broker accepts it: the reason goes to its log.
    So a connection is tried once more by hand, as the client makes it, and what comes of it is put
    into words. A broker that ends a connection without a reason is of another protocol than ours,
    or it is down and somebody between accepts connections for it.

What happens on a crash
    Nothing: the connection that asks is closed, and nobody else knows of it.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from lmerge_service.errors import RefusedError, TransportError
from lmerge_service.kafka.connection import CONNECT_SECONDS, Connection, bounded

__all__ = ("started",)

_UNKNOWN_AUTHORITY = {18, 19, 20, 21}
"""OpenSSL's codes for a chain that ends at nobody whom we trust."""


async def started(
    starting: Awaitable[object],
    stop: Callable[[], Awaitable[object]],
    connection: Connection,
    doing: str = "connecting to",
    seconds: float = CONNECT_SECONDS,
) -> None:
    """Waits until a client has started, within `seconds`; an error names `doing` and the address.
    One that does not start, for whatever reason, is stopped; `stop` must not wait for ever.

    Raises:
        RefusedError: a broker does not let us in; the message has the reason.
        TransportError: none is there, or one ends the connection, as behind a load balancer when
            it is down, or where it expects another protocol.
    """
    at = f"{doing} {connection.bootstrap}"
    try:
        await bounded(starting, at, seconds)
    except BaseException as error:
        await stop()
        if not isinstance(error, TransportError):
            raise
        if not isinstance(error.__cause__, KafkaConnectionError):
            raise
        if (reason := await _reason(at, connection)) is None:
            raise
        raise reason from error.__cause__


async def _reason(at: str, connection: Connection) -> TransportError | None:
    """What keeps us out, by the first broker that has a reason; None: they are not there at all."""
    given = dict(connection.arguments)
    for host, port, _ in collect_hosts(given.pop("bootstrap_servers")):
        try:
            tried = await create_conn(host, port, request_timeout_ms=5_000, **given)
            try:
                await tried.send(MetadataRequest([]))
            finally:
                tried.close()
        except (OSError, KafkaError, TimeoutError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
            if (why := _refusal(cause, connection)) is not None:
                return RefusedError(f"{at}: {why}")
            if _is_ended(cause):
                protocol = connection.arguments["security_protocol"]
                return TransportError(
                    f"{at}: the broker ends the connection: it is down, or {protocol} is the wrong "
                    "protocol; kafka.tls and kafka.sasl choose it"
                )
    return None


def _is_ended(cause: BaseException) -> bool:
    """By a broker that is there, without a reason."""
    ended = isinstance(cause, (KafkaConnectionError, ConnectionError, ssl.SSLError))
    return ended and not isinstance(cause, ConnectionRefusedError)


def _refusal(cause: BaseException, connection: Connection) -> str | None:
    protocol = connection.arguments["security_protocol"]
    match cause:
        case ssl.SSLCertVerificationError(verify_code=code, verify_message=message):
            hint = "; kafka.tls.ca must hold the authority that signed it"
            return (
                f"the broker's certificate is not accepted: {message.rstrip('.')}"
                f"{hint if code in _UNKNOWN_AUTHORITY else ''}"
            )
        case ssl.SSLError(reason=reason) if "CERT" in (reason or ""):
            return (
                f"the broker does not accept our certificate, or that we have none ({reason}): see "
                "kafka.tls.certificate and kafka.tls.key"
            )
        case SaslAuthenticationFailed():
            who = f"user {connection.username} by {connection.mechanism}"
            return f"the broker refuses {who}: the password is wrong, or it knows no such user"
        case UnsupportedSaslMechanismError():
            return f"the broker does not offer SASL {connection.mechanism} there"
        case IllegalSaslStateError():
            return f"the broker offers no SASL there, so {protocol} is the wrong protocol"
        case socket.gaierror():
            return "there is no host of that name"
    return None
