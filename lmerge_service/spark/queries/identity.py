"""What a replica is: its query and plan, topics, incarnation; requested, found, and kept.

What is requested is a `QueryReplica`. What it is from its first start on is an `Identity`, which
lies in its checkpoint folder as `replica.json`: with it the replica goes on, and a request for
another one is refused; without it, it starts over (`running`), or resumes by what its topic holds
(`resuming`). What it resumed from lies beside, as `resumed`: the first batch, done again, begins
with the same.

What happens on a crash: before `replica.json` is there, nothing has been written; it comes last.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from lmerge_service.config.topology import Kafka
from lmerge_service.elements import INFINITY, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.feedback import feedback_topic
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.tails import Tail, tails
from lmerge_service.kafka.topics import Topics
from lmerge_service.replicas.beginnings import Beginning
from lmerge_service.spark.io.connection import kafka_section
from lmerge_service.spark.io.elements import topic_width
from lmerge_service.spark.io.places import WrittenTopic
from lmerge_service.spark.queries.bucket import QueryBucket, QuerySettings
from lmerge_service.spark.queries.plans import Query
from lmerge_service.spark.queries.resuming import begin, check_resuming

__all__ = ("Identity", "QueryReplica", "buckets_of", "identify", "settings_of")

_RESUMED: Final = "resumed"

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True):
    """What a checkpoint is of."""

    query: str
    plan: str
    facts: str
    facts_partitions: int
    to: str
    partitions: int
    lateness: int
    since: int | None
    incarnation: int
    joining_at: int
    feedback: str | None
    replica: str
    resumed: bool
    """By what its topic held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReplica:
    """A query by one of its plans, from a topic to a topic."""

    query: Query
    plan: str
    kafka: Kafka | str
    facts: str
    to: str
    checkpoint: Path
    lateness: int
    """How much below the highest time before it, in its partition, a fact still counts."""
    partitions: int = 1
    """Of the output, if it is made here."""
    since: int | None = None
    """Begin with the facts of this time; None: with the first."""
    rejoin: bool = False
    """When it has lost its state, begin with the facts of now."""
    resume: bool = False
    """When it has lost its state, go on from what its topic holds."""
    feedback: str | None = None
    """The merge's output topic, whose feedback it follows."""
    name: str | None = None
    """The replica's name there; by default its topic's."""
    batch: int | None = None
    """Facts per micro-batch, instead of the plan's."""


def identify(replica: QueryReplica) -> tuple[Identity, bool]:
    """What it has been, or what it is from now on; True: it has ended, all output is written.

    Raises:
        ConfigurationError: there are no such facts, the checkpoint is another replica's, or it is
            to resume and cannot.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: the checkpoint cannot be read, or facts that it has to begin with may be gone.
    """
    if replica.resume:
        check_resuming(replica.query, replica.query.plans[replica.plan])
    place = replica.checkpoint / "replica.json"
    connection = connection_of(kafka_section(replica.kafka))

    async def find() -> tuple[int | None, set[str]]:
        topic_names = [replica.facts]
        if replica.feedback is not None:
            topic_names.append(feedback_topic(replica.feedback))
        async with Topics(connection) as topics:
            found = await topics.partitions(topic_names)
        return found.get(replica.facts), set(topic_names) - set(found)

    width, missing = _run(find())
    if width is None:
        raise ConfigurationError(
            f"there is no topic {replica.facts}: `lmerge replica feed {replica.facts}` makes one"
        )
    if missing:
        raise ConfigurationError(
            f"there is no topic {missing.pop()}: a merge makes it, start that first"
        )
    partitions = topic_width(WrittenTopic(replica.kafka, replica.to, partitions=replica.partitions))
    if place.exists():
        known = _known(place, replica, width, partitions)
        return known, _has_ended(known, _run(tails(connection, replica.to, partitions)))
    if (replica.checkpoint / "spark").exists():
        raise StateError(f"{replica.checkpoint} has no replica.json: use another folder")
    begins, held = _run(begin(connection, replica, width, partitions))
    identity = _new(replica, width, partitions, begins, resumed=held is not None)
    replica.checkpoint.mkdir(parents=True, exist_ok=True)
    if held is not None:
        buckets = [
            QueryBucket.resumed(settings_of(replica, identity), each) for each in held.partitions
        ]
        kept = [bucket.save() for bucket in buckets if bucket is not None]
        _write(replica.checkpoint / _RESUMED, msgspec.msgpack.encode(kept))
    _write(place, msgspec.json.format(msgspec.json.encode(identity)))
    return identity, begins.since == INFINITY


def _has_ended(known: Identity, tail: Sequence[Tail]) -> bool:
    ends = Stable(INFINITY), known.incarnation
    ended = [each for each in tail if (each.element, each.incarnation) == ends]
    return len(ended) == known.partitions


def settings_of(replica: QueryReplica, identity: Identity) -> QuerySettings:
    """Of the buckets of its output partitions."""
    return QuerySettings(
        shape=replica.query.shape,
        plan=replica.query.plans[replica.plan],
        lateness=identity.lateness,
        partitions=identity.facts_partitions,
        joining_at=identity.joining_at,
        output=identity.feedback or "",
        replica=identity.replica,
    )


def buckets_of(replica: QueryReplica, identity: Identity) -> list[bytes]:
    """What its buckets began with, if it has resumed.

    Raises:
        StateError: that cannot be read.
    """
    if not identity.resumed:
        return []
    file = replica.checkpoint / _RESUMED
    try:
        return msgspec.msgpack.decode(file.read_bytes(), type=list[bytes])
    except (OSError, msgspec.MsgspecError) as error:
        raise StateError(f"{file} cannot be read: {error}") from None


def _write(file: Path, content: bytes) -> None:
    partial = file.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(file)


def _new(
    replica: QueryReplica, width: int, partitions: int, begins: Beginning, *, resumed: bool
) -> Identity:
    return Identity(
        query=replica.query.name,
        plan=replica.plan,
        facts=replica.facts,
        facts_partitions=width,
        to=replica.to,
        partitions=partitions,
        lateness=replica.lateness,
        since=begins.since,
        incarnation=begins.incarnation,
        joining_at=begins.joining_at,
        feedback=replica.feedback,
        replica=replica.name or replica.to,
        resumed=resumed,
    )


def _known(place: Path, replica: QueryReplica, width: int, partitions: int) -> Identity:
    try:
        known = msgspec.json.decode(place.read_bytes(), type=Identity)
    except (OSError, msgspec.MsgspecError) as error:
        raise StateError(f"{place} cannot be read: {error}") from None
    since = known.since if replica.since is None else replica.since
    begun = Beginning(known.incarnation, since, known.joining_at)
    requested = _new(replica, width, partitions, begun, resumed=known.resumed)
    for name in Identity.__struct_fields__:
        was, now = getattr(known, name), getattr(requested, name)
        if was != now:
            raise ConfigurationError(
                f"{place.parent} is of a replica with {name} {was}, not {now}: "
                "use another folder to begin anew"
            )
    return known


def _run(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as apart:  # the caller may be in an event loop, as in a notebook
        return apart.submit(asyncio.run, work).result()
