"""What a replica on Spark is: its plan, topics, incarnation; requested, found, and kept.

Theory
    What is requested is a `PlanReplica`. What it is from its first start on is a `PlanIdentity`,
    which lies in its checkpoint folder as `plan.json`:

    | plan.json is of | topic holds | asked for | it |
    |---|---|---|---|
    | this replica | | | goes on, in the same incarnation |
    | | | `since`, of another time than before; `rejoin` | begins the next incarnation |
    | this query, in another way | elements | `resume` | goes on from what the topic holds |
    | anything else | | none of them | refused |
    | there is none | nothing | | begins with the first facts, or with those of `since` |
    | | elements | `resume` | goes on from what the topic holds |
    | | elements | | begins the next incarnation |

    Each time that it does not go on with Spark's own checkpoint is another *run*: Spark's folder,
    and that of what the output holds, have its number.

Who owns what
    The folder belongs to one process at a time, and while `resume` reads it, so does the topic:
    nobody is fenced on Spark.

What happens on a crash
    `plan.json` comes last, at once: before it is there, nothing has been written. Folders of other
    runs are removed behind it, or at the next start.
"""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec

from lmerge_service.config.topology import Kafka
from lmerge_service.elements import INFINITY, START, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.feedback import feedback_topic
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.tails import Tail, next_incarnation, tails
from lmerge_service.kafka.topics import TopicInfo, Topics
from lmerge_service.queries import logical
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.properties import joining_at, required_history
from lmerge_service.replicas.beginnings import check_kept, present_watermark
from lmerge_service.spark.io.connection import kafka_section
from lmerge_service.spark.io.elements import topic_width
from lmerge_service.spark.io.places import WrittenTopic
from lmerge_service.spark.queries.stages import ColumnsOf

__all__ = ("PlanIdentity", "PlanReplica", "ReadHeld", "identify_plan")

_FILE: Final = "plan.json"
_OF_SPARK: Final = "spark"
_HELD: Final = "held"

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
    """The time that it was asked to begin with."""
    incarnation: int
    joining_at: int
    run: int = 1
    begins: dict[str, int | None] = {}
    """By source, the time of its first fact in this run; None: it is read from the first on."""
    resumed: bool = False
    """Whether the run began with what the output held."""
    feedback: str | None = None
    """The merge's output whose feedback it heeds."""
    feedback_id: str | None = None
    """Which topic that is."""
    replica: str | None = None
    """What the merge calls it."""


ReadHeld: TypeAlias = Callable[[Path, int, int], int]
"""Puts what the output holds into a folder, of an incarnation, by so many partitions; returns the
least stable point of these."""


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
    """Begin with the facts of this time, in a higher incarnation; None: with the first."""
    rejoin: bool = False
    """Begin with the facts of now, in a higher incarnation, unless the topic is empty."""
    resume: bool = False
    """When the checkpoint is lost, or another plan's, go on from what the topic holds."""
    feedback: str | None = None
    """The merge's output, whose feedback it heeds."""
    replica: str | None = None
    """Its name there; by default its topic's."""
    batch: int = 100_000
    """Facts of each source that a micro-batch takes at the most."""
    native: bool = False
    """Spark's own aggregation computes it, not the network."""

    @property
    def engine(self) -> str:
        return "native" if self.native else "network"

    @property
    def sources(self) -> dict[str, logical.Source | logical.Elements]:
        """By name."""
        return logical.sources(self.query)

    def folder(self, run: int) -> Path:
        """Where Spark has its checkpoint."""
        return self.checkpoint / f"{_OF_SPARK}-{run}"

    def held(self, run: int) -> Path:
        """Where there is what the output held as a run began."""
        return self.checkpoint / f"{_HELD}-{run}"


def identify_plan(
    replica: PlanReplica, cores: int, read_held: ReadHeld
) -> tuple[PlanIdentity, bool]:
    """What it has been, or what it is from now on; True: it has ended, all output is written.

    Raises:
        ConfigurationError: a topic is missing, or the checkpoint is another replica's.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: the checkpoint or the output cannot be read, or facts that it has to begin with
            may be gone.
    """
    return _Identifying(replica, cores, read_held).identify()


class _Identifying:
    def __init__(self, replica: PlanReplica, cores: int, read_held: ReadHeld) -> None:
        self._replica, self._cores, self._read_held = replica, cores, read_held
        self._connection = connection_of(kafka_section(replica.kafka))
        self._place = replica.checkpoint / _FILE
        self._tail: list[Tail] = []

    def identify(self) -> tuple[PlanIdentity, bool]:
        replica = self._replica
        requested = self._requested()
        known = self._known() if self._place.exists() else None
        runs = self._runs()
        if known is None and runs and not (replica.resume or self._begins_anew(None)):
            raise StateError(
                f"{replica.checkpoint} has no {_FILE}: --resume goes on from what {replica.to} "
                "has, --rejoin or --since begin a new incarnation"
            )
        if known is not None and not self._begins_anew(known):
            differs = self._difference(known, requested)
            if differs is None:
                self._clear(known.run)
                return known, self._has_ended(known)
            if not replica.resume or known.query != requested.query:
                self._refuse(differs)
        run = 1 + max([*runs, 0 if known is None else known.run], default=0)
        requested = msgspec.structs.replace(requested, run=run)
        # what a process that died here has left, before it had a plan.json
        shutil.rmtree(replica.held(run), ignore_errors=True)
        if replica.resume and self._tail:
            begun = self._resumed(requested)
        else:
            least = 0 if known is None else known.incarnation + 1
            begun = self._anew(requested, least)
        self._check_kept(begun)
        self._write(begun)
        self._clear(run)
        return begun, self._has_ended(begun)

    # What there is

    def _requested(self) -> PlanIdentity:
        replica = self._replica
        sources = replica.sources
        if unknown := [*replica.topics.keys() - sources.keys()]:
            raise ConfigurationError(
                f"{replica.name} has no source {unknown[0]!r}; there is {', '.join(sources)}"
            )
        topics = {name: replica.topics.get(name, name) for name in sources}
        feedback = replica.feedback
        wanted = [*topics.values()]
        if feedback is not None:
            wanted += [feedback, feedback_topic(feedback)]
        found = _run(self._described(wanted))
        for name, topic in topics.items():
            if topic not in found:
                raise ConfigurationError(f"there is no topic {topic}, which is to be {name}")
        for topic in wanted:
            if topic not in found:
                raise ConfigurationError(
                    f"there is no topic {topic}: a merge makes it, start that first"
                )
        partitions = topic_width(
            WrittenTopic(replica.kafka, replica.to, partitions=replica.partitions)
        )
        self._tail = _run(tails(self._connection, replica.to, partitions))
        return PlanIdentity(
            query=logical.fingerprint(replica.query),
            plan=replica.plan.fingerprint,
            engine=replica.engine,
            topics=topics,
            widths={name: found[topic].partitions for name, topic in topics.items()},
            to=replica.to,
            partitions=partitions,
            tasks=min(replica.tasks or self._cores, partitions),
            since=replica.since,
            incarnation=next_incarnation(self._tail),
            joining_at=START,
            feedback=feedback,
            feedback_id=None if feedback is None else found[feedback].id,
            replica=None if feedback is None else replica.replica or replica.to,
        )

    async def _described(self, names: list[str]) -> Mapping[str, TopicInfo]:
        async with Topics(self._connection) as topics:
            return await topics.describe(names)

    def _known(self) -> PlanIdentity | None:
        """None: it cannot be read, and need not be."""
        try:
            return msgspec.json.decode(self._place.read_bytes(), type=PlanIdentity)
        except (OSError, msgspec.MsgspecError) as error:
            if self._replica.resume or self._begins_anew(None):
                return None
            raise StateError(f"{self._place} cannot be read: {error}") from None

    def _runs(self) -> list[int]:
        """The numbers of the runs that have left folders."""
        folders = [*self._replica.checkpoint.glob(f"{_OF_SPARK}-*")]
        return [int(number) for each in folders if (number := each.name[6:]).isdecimal()]

    def _has_ended(self, identity: PlanIdentity) -> bool:
        ends = Stable(INFINITY), identity.incarnation
        ended = [each for each in self._tail if (each.element, each.incarnation) == ends]
        return len(ended) == identity.partitions

    # What becomes of it

    def _begins_anew(self, known: PlanIdentity | None) -> bool:
        replica = self._replica
        before = None if known is None else known.since
        return replica.rejoin or (replica.since is not None and replica.since != before)

    def _difference(self, known: PlanIdentity, requested: PlanIdentity) -> str | None:
        """What the checkpoint is of, instead; None: it is of this."""
        if known.query != requested.query:
            return f"another query than {self._replica.name}, or of what this was before"
        wanted = msgspec.structs.replace(
            requested,
            tasks=known.tasks if self._replica.tasks is None else requested.tasks,
            **{name: getattr(known, name) for name in _FOUND},
        )
        for name in PlanIdentity.__struct_fields__:
            was, now = getattr(known, name), getattr(wanted, name)
            if was != now:
                return f"a replica with {name} {was}, not {now}"
        return None

    def _refuse(self, differs: str) -> NoReturn:
        raise ConfigurationError(
            f"{self._replica.checkpoint} is of {differs}: use another folder, or begin a new "
            "incarnation with --rejoin or --since"
        )

    def _anew(self, requested: PlanIdentity, least: int) -> PlanIdentity:
        """The next incarnation, with all facts, or with those from a time on."""
        replica = self._replica
        incarnation, since = max(requested.incarnation, least), replica.since
        if replica.rejoin and incarnation:
            since = _run(
                present_watermark(
                    self._connection,
                    [
                        (requested.topics[name], requested.widths[name], source.lateness)
                        for name, source in replica.sources.items()
                        if isinstance(source, logical.Source)
                    ],
                )
            )
        requested = msgspec.structs.replace(requested, incarnation=incarnation, since=since)
        if since is None:
            return requested
        begins = {
            name: since if isinstance(source, logical.Source) else None
            for name, source in replica.sources.items()
        }
        of_plan = {name: START if time is None else time for name, time in begins.items()}
        correct_from = joining_at(replica.plan.plan, of_plan)
        if correct_from == INFINITY and since != INFINITY:
            raise ConfigurationError(
                f"{replica.name} needs all facts there were, so it can't begin with those of a "
                "time: leave out --since and --rejoin"
            )
        # only an incarnation after the first can have a time from which on it is correct
        return msgspec.structs.replace(
            requested,
            incarnation=max(incarnation, 1),
            joining_at=min(correct_from, INFINITY - 1),
            begins=begins,
        )

    def _resumed(self, requested: PlanIdentity) -> PlanIdentity:
        """The same incarnation, from what the topic holds."""
        replica = self._replica
        if replica.native:
            raise ConfigurationError(
                "--native: its windows were in Spark's own state, which is no more: begin a new "
                "incarnation with --rejoin or --since"
            )
        last = max(self._tail, key=lambda each: each.incarnation)
        folder = replica.held(requested.run)
        stable = self._read_held(folder, last.incarnation, requested.partitions)
        needed = dict.fromkeys(requested.topics, START)
        if stable > START:
            needed = required_history(replica.plan.plan, stable)
        return msgspec.structs.replace(
            requested,
            incarnation=last.incarnation,
            joining_at=last.joining_at,
            begins={
                name: _first_fact(source, needed[name]) for name, source in replica.sources.items()
            },
            resumed=True,
        )

    def _check_kept(self, begun: PlanIdentity) -> None:
        for name, topic in begun.topics.items():
            since = begun.begins.get(name)
            _run(check_kept(self._connection, topic, begun.widths[name], since))

    # The folder

    def _write(self, identity: PlanIdentity) -> None:
        self._replica.checkpoint.mkdir(parents=True, exist_ok=True)
        partial = self._place.with_suffix(".partial")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(identity)))
        partial.rename(self._place)

    def _clear(self, run: int) -> None:
        """Removes what other runs have left."""
        kept = {self._replica.folder(run), self._replica.held(run)}
        for kind in (_OF_SPARK, _HELD):
            for each in self._replica.checkpoint.glob(f"{kind}-*"):
                if each not in kept:
                    shutil.rmtree(each)


_FOUND: Final = ("incarnation", "joining_at", "since", "run", "begins", "resumed")
"""What is not asked for, but found as a run begins."""


def _first_fact(source: logical.Source | logical.Elements, needed: int) -> int | None:
    """The time of the first fact that may still be there at a time."""
    longest = logical.longest(source)
    if isinstance(source, logical.Elements) or needed == START or longest == INFINITY:
        return None
    return needed - longest


def _run(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as apart:  # the caller may be in an event loop, as in a notebook
        return apart.submit(asyncio.run, work).result()
