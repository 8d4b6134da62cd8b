"""What a replica on Spark is: its plan, topics, incarnation; requested, found, and kept.

What is requested is a `PlanReplica`. What it is from its first start on is a `PlanIdentity`, which
lies in its checkpoint folder as `plan.json`: with it the replica goes on, and a request for another
one is refused; without it, it begins, with the first facts or with those of a time. A topic that
has records already gets the next incarnation.

What happens on a crash: before `plan.json` is there, nothing has been written; it comes last.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from lmerge_service.config.topology import Kafka
from lmerge_service.elements import INFINITY, START, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.tails import next_incarnation, tails
from lmerge_service.kafka.topics import Topics
from lmerge_service.queries import logical
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.properties import joining_at
from lmerge_service.replicas.beginnings import check_kept
from lmerge_service.spark.io.connection import kafka_section
from lmerge_service.spark.io.elements import topic_width
from lmerge_service.spark.io.places import WrittenTopic
from lmerge_service.spark.queries.stages import ColumnsOf

__all__ = ("PlanIdentity", "PlanReplica", "identify_plan")

_FILE: Final = "plan.json"

T = TypeVar("T")


class PlanIdentity(msgspec.Struct, frozen=True):
    """What a checkpoint is of."""

    query: str
    plan: str
    """Its fingerprint."""
    engine: str
    """What computes it: the network of operators, or Spark's own aggregation."""
    topics: dict[str, str]
    """By source."""
    widths: dict[str, int]
    """How many partitions each has."""
    to: str
    partitions: int
    tasks: int
    since: int | None
    incarnation: int
    joining_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReplica:
    """A physical plan of a query, from topics of facts to a topic of elements."""

    name: str
    """What the query is called, in messages."""
    query: logical.Node
    """The logical plan, as it was written."""
    plan: PhysicalPlan
    columns_of: ColumnsOf
    """By which columns of its sources a plan may be divided (`properties.partition_columns`)."""
    kafka: Kafka | str
    to: str
    checkpoint: Path
    topics: Mapping[str, str] = field(default_factory=dict)
    """By source its topic, where that is not the source's name."""
    partitions: int = 1
    """Of the output, if it is made here."""
    tasks: int | None = None
    """How many tasks share the output's partitions; None: as many as there are cores."""
    since: int | None = None
    """Begin with the facts of this time; None: with the first."""
    batch: int = 100_000
    """Facts of each source that a micro-batch takes at the most."""
    native: bool = False
    """Spark's own aggregation computes it, not the network."""

    @property
    def engine(self) -> str:
        return "native" if self.native else "network"


def identify_plan(replica: PlanReplica, cores: int) -> tuple[PlanIdentity, bool]:
    """What it has been, or what it is from now on; True: it has ended, all output is written.

    Raises:
        ConfigurationError: a topic is missing, or the checkpoint is another replica's.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: the checkpoint cannot be read, or facts that it has to begin with may be gone.
    """
    sources = logical.sources(replica.query)
    if unknown := [*replica.topics.keys() - sources.keys()]:
        raise ConfigurationError(
            f"{replica.name} has no source {unknown[0]!r}; there is {', '.join(sources)}"
        )
    topics = {name: replica.topics.get(name, name) for name in sources}
    connection = connection_of(kafka_section(replica.kafka))

    async def find() -> Mapping[str, int]:
        async with Topics(connection) as found:
            return await found.partitions(list(topics.values()))

    widths = _run(find())
    for name, topic in topics.items():
        if topic not in widths:
            raise ConfigurationError(f"there is no topic {topic}, which is to be {name}")
    partitions = topic_width(WrittenTopic(replica.kafka, replica.to, partitions=replica.partitions))
    tail = _run(tails(connection, replica.to, partitions))
    requested = PlanIdentity(
        query=logical.fingerprint(replica.query),
        plan=replica.plan.fingerprint,
        engine=replica.engine,
        topics=topics,
        widths={name: widths[topic] for name, topic in topics.items()},
        to=replica.to,
        partitions=partitions,
        tasks=min(replica.tasks or cores, partitions),
        since=replica.since,
        incarnation=next_incarnation(tail),
        joining_at=START,
    )
    place = replica.checkpoint / _FILE
    if place.exists():
        known = _known(place, replica, requested)
        ends = Stable(INFINITY), known.incarnation
        ended = [each for each in tail if (each.element, each.incarnation) == ends]
        return known, len(ended) == partitions
    if (replica.checkpoint / "spark").exists():
        raise StateError(f"{replica.checkpoint} has no {_FILE}: use another folder")
    for name, topic in topics.items():
        _run(check_kept(connection, topic, requested.widths[name], replica.since))
    begun = _begun(replica, requested)
    replica.checkpoint.mkdir(parents=True, exist_ok=True)
    partial = place.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(begun)))
    partial.rename(place)
    return begun, False


def _begun(replica: PlanReplica, requested: PlanIdentity) -> PlanIdentity:
    if replica.since is None:
        return requested
    correct_from = joining_at(replica.plan.plan, dict.fromkeys(requested.topics, replica.since))
    if correct_from == INFINITY:
        raise ConfigurationError(
            f"{replica.name} needs all facts there were, so it can't begin with those of a time: "
            "leave out --since"
        )
    # only an incarnation after the first can have a time from which on it is correct
    return msgspec.structs.replace(
        requested,
        incarnation=max(requested.incarnation, 1),
        joining_at=correct_from,
    )


_ANEW: Final = "use another folder to begin anew"


def _known(place: Path, replica: PlanReplica, requested: PlanIdentity) -> PlanIdentity:
    try:
        known = msgspec.json.decode(place.read_bytes(), type=PlanIdentity)
    except (OSError, msgspec.MsgspecError) as error:
        raise StateError(f"{place} cannot be read: {error}") from None
    if known.query != requested.query:
        raise ConfigurationError(
            f"{place.parent} is of another query than {replica.name}, or of what this was before: "
            + _ANEW
        )
    wanted = msgspec.structs.replace(
        requested,
        incarnation=known.incarnation,
        joining_at=known.joining_at,
        since=known.since if replica.since is None else replica.since,
        tasks=known.tasks if replica.tasks is None else requested.tasks,
    )
    for name in PlanIdentity.__struct_fields__:
        was, now = getattr(known, name), getattr(wanted, name)
        if was != now:
            raise ConfigurationError(
                f"{place.parent} is of a replica with {name} {was}, not {now}: {_ANEW}"
            )
    return known


def _run(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as apart:  # the caller may be in an event loop, as in a notebook
        return apart.submit(asyncio.run, work).result()
