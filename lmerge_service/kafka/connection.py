"""What every part that talks to Kafka shares: the connection, translated errors, bounded waits."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import tenacity
from aiokafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalOperation,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    ProducerFenced,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
)

from lmerge_service.errors import FencedError, RefusedError, TransportError

if TYPE_CHECKING:
    from lmerge_service.config.topology import Kafka

__all__ = (
    "CLOSE_SECONDS",
    "CONNECT_SECONDS",
    "CONTROLLER_SECONDS",
    "Connection",
    "bounded",
    "close_bounded",
    "connection_of",
    "kafka_errors",
    "lacking",
    "patient",
)

log = structlog.get_logger()

CLOSE_SECONDS = 2.0
"""How long closing one client may take; a client of a dead broker never finishes by itself."""

CONNECT_SECONDS = 30.0
"""How long a first question is repeated: by default Kafka takes a broker that was killed for dead
after 9 s, and then elects leaders for what that led."""

CONTROLLER_SECONDS = 60.0
"""How long it is tried what only the brokers' controller can do, as making a topic, or numbering a
producer: a broker that has asked a controller which stands still learns only after 30 s (Kafka's
`controller.socket.timeout.ms`) that another controls by now."""

_REFUSALS = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """How Kafka is reached: where, and as whom; `Connection("host:port")` is nobody, in the clear.

    >>> Connection("127.0.0.1:9092").arguments
    {'bootstrap_servers': '127.0.0.1:9092', 'security_protocol': 'PLAINTEXT'}
    """

    bootstrap: str
    """host:port[,host:port…]; error messages name it."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """Whom to trust, and our own certificate if we have one; None: no TLS."""
    mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; None: no SASL."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that every aiokafka client takes."""
        sasl, tls = self.mechanism is not None, self.tls is not None
        protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
        given: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": protocol,
        }
        if tls:
            given["ssl_context"] = self.tls
        if sasl:
            given["sasl_mechanism"] = self.mechanism
            given["sasl_plain_username"] = self.username
            given["sasl_plain_password"] = self.password
        return given


def connection_of(kafka: "Kafka") -> Connection:
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


@contextmanager
def kafka_errors(doing: str, needs: str = "Read") -> Iterator[None]:
    """Translates the client's errors into ours; `doing` begins the message.

    `needs` is the operation on topics that an ACL must allow for it.
    """
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch, TransactionCoordinatorFenced) as error:
        raise FencedError(
            f"{doing}: another instance has taken over this merge ({type(error).__name__}); "
            "only one may write an output"
        ) from error
    except _REFUSALS as error:
        raise RefusedError(f"{doing}: {_missing(error, needs)}") from error
    except KafkaConnectionError as error:
        raise TransportError(
            f"{doing}: Kafka cannot be reached there; is it running? (`lmerge broker start` "
            "starts one on this machine)"
        ) from error
    except KafkaError as error:
        retriable = bool(getattr(error, "retriable", False))
        raise TransportError(f"{doing}: {error!r}", retriable=retriable) from error
    except IllegalOperation as error:
        # Raised by a producer whose transaction has failed in the background.
        raise TransportError(f"{doing}: {error}") from error
    except TimeoutError as error:
        raise TransportError(f"{doing}: no answer from Kafka in time") from error


def _missing(error: BrokerResponseError, needs: str) -> str:
    """Which right our user lacks; the client names the resource, or does not know it."""
    named = error.args[0] if error.args else "it uses"
    names = ", ".join(sorted(named)) if isinstance(named, set) else named
    match error:
        case TransactionalIdAuthorizationFailed():
            return lacking("Write", f"transactional id {names}")
        case GroupAuthorizationFailedError():
            return lacking("Read", f"group {names}")
        case TopicAuthorizationFailedError():
            return lacking(needs, f"topic {names}")
    return lacking("IdempotentWrite", "the cluster")


def lacking(operation: str, resource: str) -> str:
    """The message when an ACL is missing."""
    return f"Kafka refuses: our user lacks the ACL {operation} on {resource}"


async def bounded(
    work: Awaitable[T], doing: str, seconds: float = CONNECT_SECONDS, needs: str = "Read"
) -> T:
    """The result of `work`, with errors translated and a bound on the wait."""
    with kafka_errors(doing, needs):
        async with asyncio.timeout(seconds):
            return await work


async def patient(
    work: Callable[[], Awaitable[T]], doing: str, seconds: float = CONNECT_SECONDS
) -> T:
    """As `bounded`, but asks again after an error that may pass: a fresh or restarted broker is not
    ready for its coordinators, one that was killed has led something that has no leader yet."""
    last: BaseException | None = None

    def note(state: tenacity.RetryCallState) -> None:
        nonlocal last
        last = state.outcome.exception() if state.outcome is not None else None

    @tenacity.retry(
        retry=tenacity.retry_if_exception(_may_pass),
        wait=tenacity.wait_exponential(0.05, max=1),
        before_sleep=note,
    )
    async def until_ready() -> T:
        return await work()

    try:
        return await bounded(until_ready(), doing, seconds)
    except TransportError as error:
        if last is None or not isinstance(error.__cause__, TimeoutError):
            raise
        raise TransportError(f"{doing}: not done within {seconds:g} s: {last!r}") from last


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, TimeoutError):  # of a part of the work: all of it has its own
        return True
    return isinstance(error, KafkaError) and bool(getattr(error, "retriable", False))


async def close_bounded(closing: Coroutine[Any, Any, object]) -> None:
    """Closes a client, giving up after `CLOSE_SECONDS`: what it held is Kafka's to clean up.

    In a task of its own: a client that closes cancels and awaits tasks of its own, and while the
    broker is away their cancellation comes out of its `stop` as if it were the caller's.
    """
    task = asyncio.ensure_future(closing)
    done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    if not done:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    for each in done:
        if not each.cancelled() and (error := each.exception()) is not None:
            log.debug("closing a client failed", error=repr(error))
