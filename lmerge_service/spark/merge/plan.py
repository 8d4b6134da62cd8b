"""What is merged from which batch on: the part of a job that is neither data nor state.

Theory
    A batch that is run again must have the output that it had the first time, also after the job
    was restarted and more has been decided since. So decisions don't reach the buckets when they
    are made but with a *step*: what the control log holds by then, which topics are begun or gone,
    and from which batch on it counts, one that has never been begun. The steps are written to the
    checkpoint before the job that goes by them is started, and are only ever added to:

        step 0  from batch 0 on   decisions 1-3   begins a, b
        step 1  from batch 7 on   decision 4      begins c
        step 2  from batch 9 on   decision 5      (detaches a: its topic is not read any more)

    A step begins with decisions, which the service's own ledger folds. `Begin` is what the service
    finds out for itself when it begins to merge a replica.

    A topic that is to be read from its beginning once more (a release, a second attachment, a topic
    that was recreated) is dropped in one step and begun in a later one, when Spark's offsets are
    without it (`checkpoint.align`).

    Of the steps that every bucket's stored state has carried out nothing is needed but what they
    have come to. So, once they are many, buckets are asked to store their state anew (`due`), and
    when all have, those steps are *folded*: replaced by what was decided, and by what is read, from
    where, and what is lost. A plan has some hundred steps at the most:

        folded  200 steps   what was decided with them; reads b, c
        step 200  from batch 950 on   decisions …

    A batch that was planned, and whose records are gone before it was run, can never be run. It is
    *unplanned* if the output has nothing of it: its number is planned again, by the steps of that
    time.

Invariants
    P1  since rises from step to step; what a batch goes by never changes once something of it may
        have been written.
    P2  A step is folded only when the stored state of every bucket has carried it out, so that no
        batch from before it is ever run, or read from a bucket's log, again.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow.fs as pafs

from lmerge_service.config.http import Http
from lmerge_service.config.topology import Kafka, Topology
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.state_file import merge_of
from lmerge_service.spark.io.places import located

__all__ = (
    "Adopted",
    "Begin",
    "Folded",
    "Lost",
    "MergePlan",
    "PlanStep",
    "TopicKind",
    "Work",
    "work_of",
)

_VERSION: Final = 3
_WHO: Final = "spark-merge"
_FOLDER, _FILE = "lmerge", "plan.json"


class Begin(msgspec.Struct, frozen=True):
    """A replica's topic as it was found when it was begun, or got wider."""

    topic_id: str | None
    beginnings: list[int]
    """By partition."""
    ends: list[int]


class TopicKind(msgspec.Struct, frozen=True):
    """How the records of a topic reach the buckets."""

    replica: str
    epoch: int
    topic_id: str | None
    width: int
    wire: bool = True
    """They are elements as they stand; those of a dialect mean something in their order only, so
    that every bucket needs all of them."""
    co_partitioned: bool = False


class Lost(msgspec.Struct, frozen=True):
    """A replica whose topic has lost records that were not merged: it is excluded until it is
    attached again, or its topic recreated."""

    epoch: int
    topic_id: str | None
    why: str


class PlanStep(msgspec.Struct, frozen=True):
    """What changes with a batch."""

    since: int
    decisions: list[bytes | None]
    """The records of the control log since the step before."""
    begins: dict[str, Begin]
    """By replica."""
    widens: dict[str, Begin]
    gone: dict[str, str]
    """By replica, why its topic is not merged any more."""
    topics: dict[str, TopicKind]
    """All that are read from this batch on."""
    lost: dict[str, Lost] = {}
    """By replica."""


class Adopted(msgspec.Struct, frozen=True):
    """The state that the job began from."""

    path: str
    digests: list[str]
    """By partition."""
    starts: dict[str, list[int]]
    """By topic and partition, from where it is read on."""


class Folded(msgspec.Struct, frozen=True):
    """What the first steps of a plan have come to."""

    steps: int
    """How many."""
    since: int
    """Of the last of them."""
    decisions: bytes
    """A fold of what was decided (`merge.decisions.folds`)."""
    topics: dict[str, TopicKind]
    starts: dict[str, list[int]]
    """By topic and partition, from where it was begun."""
    lost: dict[str, Lost]


class MergePlan(msgspec.Struct, frozen=True):
    """The steps of a checkpoint, and whose it is."""

    version: int
    id: str
    of: str
    """`merge_of` the topology."""
    adopted: Adopted | None
    steps: tuple[PlanStep, ...]
    """Those that are not folded: one at least, once there are any."""
    handed_over: bool = False
    """The service goes on from here, and nothing else may."""
    tasks: int = 0
    """How many of Spark's tasks share the buckets of a batch, for as long as the checkpoint lives;
    0 before its first step."""
    folded: Folded | None = None
    due: int = 0
    """Buckets that have carried out so many steps are to store their state anew, if what is stored
    has carried out fewer."""

    @classmethod
    def new(cls, topology: Topology, adopted: Adopted | None = None) -> "MergePlan":
        """A new job's plan, with a new id and no steps; it begins from `adopted`, if given."""
        return cls(_VERSION, uuid.uuid4().hex, merge_of(topology), adopted, ())

    def with_tasks(self, tasks: int) -> "MergePlan":
        """The plan with a number of tasks, of which nothing was run yet."""
        assert not self.tasks
        return msgspec.structs.replace(self, tasks=tasks)

    def with_step(self, step: PlanStep) -> "MergePlan":
        """The plan with one step more, whose batch must not be before that of the last (P1)."""
        assert not self.steps or step.since >= self.steps[-1].since, "P1"
        return msgspec.structs.replace(self, steps=(*self.steps, step))

    # --- folding --------------------------------------------------------------------------------

    @property
    def folded_steps(self) -> int:
        """How many steps are folded."""
        return 0 if self.folded is None else self.folded.steps

    @property
    def count(self) -> int:
        """How many steps there have been."""
        return self.folded_steps + len(self.steps)

    def behind(self, carried: int) -> Sequence[PlanStep]:
        """The steps behind so many.

        Raises:
            StateError: some of them are folded.
        """
        if carried < self.folded_steps:
            raise StateError(
                f"the checkpoint is damaged: a bucket has the state of step {carried}, and the "
                f"plan begins at step {self.folded_steps}"
            )
        return self.steps[carried - self.folded_steps :]

    def ledger(self, topology: Topology, steps: int) -> Ledger:
        """What was decided with so many steps, of which none that is folded may be left out."""
        ledger = Ledger(topology)
        if self.folded is not None:
            ledger.begin_with(folds.decode(self.folded.decisions))
        for step in self.steps[: steps - self.folded_steps]:
            for value in step.decisions:
                ledger.fold_next(value)
        return ledger

    def with_due(self) -> "MergePlan":
        """Has buckets store their state anew once they have carried out all steps."""
        return msgspec.structs.replace(self, due=self.count)

    def fold(self, topology: Topology, now_ms: int) -> "MergePlan":
        """The plan with the steps folded that were `due`, and that every bucket's stored state has
        carried out (P2); there must be one more.

        Raises:
            ValueError: what was decided is too long for a fold.
        """
        assert self.folded_steps < self.due < self.count, "P2"
        kept = self.due - self.folded_steps
        ledger, first = self.ledger(topology, self.due), self.steps[:kept]
        as_of = msgspec.structs.replace(self, steps=first)
        folded = Folded(
            steps=self.due,
            since=first[-1].since,
            decisions=folds.encode(folds.fold(ledger.state(), ledger.offset, _WHO, now_ms)),
            topics=dict(as_of.topics),
            starts=as_of.starts(),
            lost=as_of.lost(),
        )
        return msgspec.structs.replace(self, folded=folded, steps=self.steps[kept:])

    # --- what holds -----------------------------------------------------------------------------

    def unplanned(self, batch: int) -> "MergePlan":
        """The plan for when a batch is planned once more, of which nothing was written: what was
        to count from the batch behind it on counts from it on."""
        steps = (msgspec.structs.replace(s, since=min(s.since, batch)) for s in self.steps)
        return msgspec.structs.replace(self, steps=tuple(steps))

    def topics_at(self, batch: int) -> Mapping[str, TopicKind]:
        """What is read with a batch."""
        found: Mapping[str, TopicKind] = {} if self.folded is None else self.folded.topics
        for step in self.steps:
            if step.since <= batch:
                found = step.topics
        return found

    @property
    def topics(self) -> Mapping[str, TopicKind]:
        """What is read as of the last step."""
        return self.steps[-1].topics if self.steps else {}

    def starts(self) -> dict[str, list[int]]:
        """By topic that is read and partition, the offset at which it was begun."""
        found: dict[str, list[int]] = {}
        if self.folded is not None:
            found = {topic: list(at) for topic, at in self.folded.starts.items()}
        for number, step in enumerate(self.steps, self.folded_steps):
            topic_of = {kind.replica: topic for topic, kind in step.topics.items()}
            for name, begin in step.begins.items():
                found[topic_of[name]] = list(begin.beginnings)
            for name, begin in step.widens.items():
                had = found[topic_of[name]]
                had += begin.beginnings[len(had) :]
            if number == 0 and self.adopted is not None:
                for topic, at in self.adopted.starts.items():
                    had = found.get(topic, [])
                    found[topic] = [max(pair) for pair in zip(had, at, strict=False)]
                    found[topic] += had[len(at) :]
        return {topic: found[topic] for topic in self.topics}

    def lost(self) -> dict[str, Lost]:
        """By replica, those that the last step leaves excluded since records were lost."""
        found: dict[str, Lost] = {} if self.folded is None else dict(self.folded.lost)
        for step in self.steps:
            for name in step.begins:
                found.pop(name, None)
            found |= step.lost
        return found

    def require_ours(self, checkpoint: str) -> None:
        """What the service has written since is not in this checkpoint.

        Raises:
            ConfigurationError: it was handed over.
        """
        if self.handed_over:
            raise ConfigurationError(
                f"{checkpoint} was handed over to the service, and is of no use any more: to merge "
                "in Spark again, stop all workers, `lmerge state export`, and begin a new "
                "--checkpoint with --from FILE"
            )

    # --- in the checkpoint ----------------------------------------------------------------------

    @classmethod
    def load(cls, checkpoint: str, topology: Topology) -> "MergePlan | None":
        """The plan of a checkpoint; None if it has none.

        Raises:
            ConfigurationError: the checkpoint is another merge's.
            StateError: the plan is damaged, or of another version.
        """
        files, root = pafs.FileSystem.from_uri(located(checkpoint))
        path = f"{root}/{_FOLDER}/{_FILE}"
        if files.get_file_info(path).type == pafs.FileType.NotFound:
            return None
        with files.open_input_stream(path) as stream:
            text = stream.read()
        try:
            version = msgspec.json.decode(text, type=_Version).version
            if version != _VERSION:
                raise StateError(f"{path} is of version {version}, this is version {_VERSION}")
            plan = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateError(f"{path} is damaged: {error}") from error
        if plan.of != (mine := merge_of(topology)):
            raise ConfigurationError(
                f"the checkpoint {checkpoint} is of the merge {plan.of}, and not of {mine}: give "
                "another --checkpoint"
            )
        return plan

    def save(self, checkpoint: str) -> None:
        """The file is always whole: the old one or the new one."""
        files, root = pafs.FileSystem.from_uri(located(checkpoint))
        folder = f"{root}/{_FOLDER}"
        files.create_dir(folder, recursive=True)
        with files.open_output_stream(f"{folder}/{_FILE}.partial") as stream:
            stream.write(msgspec.json.encode(self))
        files.move(f"{folder}/{_FILE}.partial", f"{folder}/{_FILE}")


class _Version(msgspec.Struct):
    version: int


@dataclass(frozen=True, slots=True)
class Work:
    """What the stages are given: nothing secret is in it."""

    topology: Topology
    plan: MergePlan
    keys: tuple[int, ...]
    """By bucket, the group key that Spark puts into the shuffle partition of its number."""


def work_of(topology: Topology, plan: MergePlan, keys: tuple[int, ...]) -> Work:
    """Leaves out how Kafka and HTTP are reached: stages see neither."""
    bare = topology.model_copy(update={"kafka": Kafka(bootstrap="none:1"), "http": Http()})
    return Work(bare, plan, keys)
