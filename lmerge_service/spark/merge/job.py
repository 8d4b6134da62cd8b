"""The driver of a merge in Spark: starts the query, and restarts it when something changes.

Theory
    Spark's query reads the topics that it was started with. So whenever the plan has a next step
    (`planning`), the query is stopped, the step written to the checkpoint, and the query started
    again, which goes on where it was; that takes a second or two. A batch that was under way is
    run again, by the steps that counted when it was planned; where topics come or go, alone, since
    Spark takes other topics between two batches only (`checkpoint`).

    Records that are gone before they were merged exclude their replica, as in the service. They
    are noticed by looking where logs begin and end: before a query is started, every two seconds,
    and whenever a query has failed, as Spark's does when it finds them gone (`failOnDataLoss`)
    while it reads. Nothing of that batch has been written then, so it is planned again.

Who owns what
    A `MergeJob` owns the streaming query while `run` runs. The session is the caller's. Kafka's
    clients are opened for each look and closed again.

What happens on a crash
    At any point: started with the same checkpoint, the job goes on. What the batch under way had
    written is written again, with the same numbers.
    Two jobs on one checkpoint: Spark ends the older one. Two merges of one output, be they jobs
    or the service, must not be: a new checkpoint is refused when the output has records.

What happens when Kafka is away
    Spark's writer waits for one minute, its reader for two, and then the job ends with an error.
    Looking fails and is tried again.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lmerge_service.config.topology import Topology
from lmerge_service.errors import (
    ConfigurationError,
    LMergeError,
    StateError,
    TransportError,
)
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.sightings import BELIEVED, Sightings
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.reading import unread
from lmerge_service.merge.findings.evidence import Evidence, NotificationKind
from lmerge_service.merge.inspection import recoveries
from lmerge_service.merge.internal_topics import prepare
from lmerge_service.merge.replica_states import DesiredState
from lmerge_service.merge.state_file import Section, merge_of, sections
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.merge.checkpoint import align, committed, planned, unplan
from lmerge_service.spark.merge.keys import bucket_keys
from lmerge_service.spark.merge.plan import Adopted, MergePlan, PlanStep, work_of
from lmerge_service.spark.merge.planning import KafkaView, next_step, unreadable
from lmerge_service.spark.merge.query import observed, start
from lmerge_service.spark.merge.stored import carried_steps
from lmerge_service.spark.merge.unfinished import emitted, require_unwritten

__all__ = ("BatchProgress", "JobSettings", "MergeJob")

log = structlog.get_logger()

_A_CORE: Final = 2
_MOST_STEPS: Final = 200
"""Of a plan, before those that all buckets are behind are folded."""
_LOOK_SECONDS: Final = 2
_EARLIEST: Final = -2
_PLACE: Final = ("topic", "partition", "offset")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How a job runs."""

    checkpoint: str
    """A folder that driver and executors share, as Spark takes it."""
    available_now: bool = False
    """Merge what is there, and end."""
    batch_records: int = 500_000
    """Read with one batch at the most."""
    origin: Path | None = None
    """A file of `lmerge state export` that a new checkpoint begins from."""
    tasks: int | None = None
    """How many of Spark's tasks share the buckets of a new checkpoint, one for each bucket at the
    most; None: `_A_CORE` for each core that Spark has."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch that is through."""

    batch: int
    records: int
    """That were read."""
    seconds: float
    behind: Mapping[str, int]
    """Of each topic, the records that were there by then and are not read yet."""
    breaches: Mapping[tuple[str, int, str], int] = field(default_factory=dict)
    """Found with it, by replica, output partition and kind."""


class MergeJob:
    """One merge; see the module's text."""

    def __init__(
        self,
        topology: Topology,
        settings: JobSettings,
        *,
        report: Callable[[BatchProgress], object] = lambda _: None,
    ) -> None:
        self.stop = threading.Event()
        """Set, the job ends: after two seconds at the latest, and what Spark takes to stop."""
        self.merging = False
        """Spark's query runs."""
        self.trouble: str | None = None
        """Why the topics cannot be looked at, so that decisions have to wait."""
        self.excluded: Mapping[str, str] = {}
        """By replica that is not merged since its topic has lost records, why."""
        self._topology = topology
        self._settings = settings
        self._report = report
        self._cluster = Cluster(connection_of(topology.kafka))
        self._ledger = Ledger(topology)
        self._logged_out: set[str] = set()
        """Replicas that the log has reported as excluded."""
        self._undone: list[bytes | None] = []
        """Decisions that are in the ledger and in no step."""
        self._sightings = Sightings()
        self._reported = -1
        self._plan: MergePlan | None = None

    def open(self) -> None:
        """Finds the plan, and whether this merge may go on from it; needs no Spark.

        Raises:
            ConfigurationError: the checkpoint, the output or the file is another merge's.
            StateError: what is stored is damaged.
            TransportError: Kafka cannot be reached, or refuses.
        """
        self._plan = self._opened()

    def run(self, spark: SparkSession) -> None:
        """Merges until stopped, or to the topics' present end.

        Raises:
            ConfigurationError, StateError, TransportError: as `open`, which it does if that is
                left to it; or what was decided cannot be carried out here.
        """
        plan = self._plan or self._opened()
        buckets = self._topology.output.partitions
        if not plan.tasks:
            cores = spark.sparkContext.defaultParallelism
            plan = plan.with_tasks(min(buckets, self._settings.tasks or _A_CORE * cores))
        keys = bucket_keys(buckets, plan.tasks)
        while not self.stop.is_set():
            plan = self._stepped(spark, plan, keys)
            due = self._due_topics(plan)
            finishing = due is not None and not self._is_whole()
            if due is not None and not finishing:
                align(self._settings.checkpoint, due)
                if planned(self._settings.checkpoint).next:
                    continue  # what was dropped may be begun now
            if self._ends(spark, plan, keys, finishing=finishing) and not finishing:
                return

    def _ends(
        self, spark: SparkSession, plan: MergePlan, keys: tuple[int, ...], *, finishing: bool
    ) -> bool:
        """Runs the query until something is to be done; whether the job ends with it. `finishing`
        only runs the batch that is not complete."""
        query = self._start(spark, plan, keys, finishing=finishing)
        try:
            self.merging = True
            ended = self._watch(query, plan)
        finally:
            self.merging = False
            query.stop()
        return ended and not self._is_due(plan)

    # --- the plan ---------------------------------------------------------------------------------

    def _opened(self) -> MergePlan:
        _run(self._prepare())
        checkpoint = self._settings.checkpoint
        plan = MergePlan.load(checkpoint, self._topology)
        if plan is None:
            if planned(checkpoint).next:
                raise ConfigurationError(f"{checkpoint} is the checkpoint of something else")
            plan = MergePlan.new(self._topology, self._adopted())
        else:
            plan.require_ours(checkpoint)
            if self._settings.origin is not None:
                raise ConfigurationError(
                    f"the checkpoint {checkpoint} has a state already: leave --from out"
                )
            if self._settings.tasks not in (None, plan.tasks):
                raise ConfigurationError(
                    f"the checkpoint {checkpoint} is merged by {plan.tasks} tasks, which cannot be "
                    "changed: leave --tasks out, or begin with another --checkpoint"
                )
        self._ledger = plan.ledger(self._topology, plan.count)
        return plan

    async def _prepare(self) -> None:
        """Makes the merge's internal topics, and records the topology file in the control log."""
        async with self._cluster.topics() as topics:
            await prepare(topics, self._topology)
        control = self._cluster.log(self._topology.output.control_topic)
        async with LoggedControl(self._topology, control):
            pass

    def _adopted(self) -> Adopted | None:
        path = self._settings.origin
        if path is None:
            _run(self._require_empty_output())
            return None
        found = sections(path, merge_of(self._topology))
        if restarted := max(each.commit.output.incarnation for each in found):
            raise ConfigurationError(
                f"the output is in incarnation {restarted}, as each of its records must be, and a "
                "merge in Spark writes none: use a new output topic"
            )
        _run(self._require_latest(path, found))
        starts: dict[str, list[int]] = {}
        for section in found:
            for standing in section.commit.replicas.values():
                at = starts.setdefault(standing.topic, [])
                at += [_EARLIEST] * (max(standing.partitions, default=-1) + 1 - len(at))
                for number, position in standing.partitions.items():
                    known = at[number]
                    at[number] = position.next if known == _EARLIEST else min(known, position.next)
        return Adopted(str(path.absolute()), [each.digest for each in found], starts)

    async def _require_empty_output(self) -> None:
        output = self._topology.output
        places = [TopicPartition(output.topic, number) for number in range(output.partitions)]
        limits = self._topology.limits
        async with self._cluster.source(max_record_bytes=limits.max_record_bytes) as source:
            ends = await source.high_watermarks(places)
        if any(ends.values()):
            raise ConfigurationError(
                f"topic {output.topic} has records, and a new checkpoint has none of them: go on "
                "with the checkpoint of who wrote them, or with --from FILE (`lmerge state "
                "export`), or use a new output topic"
            )

    async def _require_latest(self, path: Path, found: list[Section]) -> None:
        """The merge has not gone on since its state was exported."""
        async for partition, recovery in recoveries(self._topology, self._cluster):
            last, saved = await recovery.last_commit(fenced=False), found[partition].commit
            if last is None or (last.transaction, last.output_records) != (
                saved.transaction,
                saved.output_records,
            ):
                raise StateError(
                    f"{path} is not the latest state of partition {partition}: stop all workers, "
                    "and export it again"
                )

    def _stepped(self, spark: SparkSession, plan: MergePlan, keys: tuple[int, ...]) -> MergePlan:
        """The plan with the step that is due, if one is; written down.

        Raises:
            StateError: a batch that was partly written can be run no more.
        """
        seen = _run(self._look())
        plan = self._readable(spark, plan, keys, seen)
        if (step := self._next(plan, seen)) is not None:
            plan = self._bounded(spark, plan.with_step(step), keys)
            plan.save(self._settings.checkpoint)
            self._undone = []
            self._logged_out -= step.begins.keys()
            for name, why in step.gone.items():
                self._report_excluded(name, why)
            for name, begin in step.widens.items():
                replica, width = self._ledger.replicas[name].replica, len(begin.beginnings)
                if replica.is_known_by_partition:
                    why = f"topic {replica.topic} got {width} partitions, and is known by partition"
                    self._report_excluded(name, why)
        self._exclude(plan)
        return plan

    def _bounded(self, spark: SparkSession, plan: MergePlan, keys: tuple[int, ...]) -> MergePlan:
        """The plan, which has got a step more, with the first ones folded if all buckets are behind
        them; if there are many, they are asked to get there."""
        if plan.due <= plan.folded_steps:
            return plan.with_due() if len(plan.steps) > _MOST_STEPS else plan
        checkpoint = self._settings.checkpoint
        if not committed(checkpoint).next:
            return plan
        carried = carried_steps(spark, checkpoint)
        if any(carried.get(key, 0) < plan.due for key in keys):
            return plan
        try:
            plan = plan.fold(self._topology, time.time_ns() // 1_000_000)
        except ValueError as error:
            log.warning("the plan cannot be folded", why=str(error))
        else:
            log.info("plan folded", steps=plan.folded_steps)
        return plan

    def _exclude(self, plan: MergePlan) -> None:
        """Keeps, and logs, which replicas are excluded since records were lost."""
        excluded = {}
        for name, lost in plan.lost().items():
            desired = self._ledger.replicas.get(name)
            if (
                desired is None
                or desired.state is DesiredState.DETACHED
                or desired.epoch != lost.epoch
            ):
                continue
            excluded[name] = f"topic {desired.replica.topic} {lost.why}"
            if name not in self.excluded:
                self._report_excluded(name, lost.why)
        self.excluded = excluded

    def _report_excluded(self, name: str, why: str) -> None:
        self._logged_out.add(name)
        topic = self._ledger.replicas[name].replica.topic
        log.warning("replica excluded", replica=name, topic=topic, why=why)

    def _readable(
        self, spark: SparkSession, plan: MergePlan, keys: tuple[int, ...], seen: KafkaView
    ) -> MergePlan:
        """The plan without a batch that was planned and can never be run."""
        checkpoint, done = self._settings.checkpoint, committed(self._settings.checkpoint)
        why = unreadable(plan, seen, done, planned(checkpoint))
        if why is None:
            return plan
        work = work_of(self._topology, plan, keys)
        numbers = emitted(spark, work, checkpoint, batches=done.next)
        _run(require_unwritten(self._cluster, work, numbers, why))
        log.warning("batch planned again", batch=done.next, why=why)
        plan = plan.unplanned(done.next)
        plan.save(checkpoint)
        unplan(checkpoint, done.next)
        return plan

    def _next(self, plan: MergePlan, seen: KafkaView) -> PlanStep | None:
        if plan.steps:
            self._require_same_rules(plan)
        return next_step(plan, self._ledger, seen, planned(self._settings.checkpoint))

    def _is_whole(self) -> bool:
        """All batches that were planned are complete."""
        checkpoint = self._settings.checkpoint
        return planned(checkpoint).next == committed(checkpoint).next

    def _due_topics(self, plan: MergePlan) -> dict[str, Mapping[int, int]] | None:
        """From where the next batch is to read each topic, if Spark has other topics."""
        known = planned(self._settings.checkpoint).topics
        control = self._topology.output.control_topic
        if known.keys() - {control} == plan.topics.keys():
            return None
        starts = plan.starts()
        due = {t: known[t] if t in known else dict(enumerate(starts[t])) for t in plan.topics}
        return {**due, control: known.get(control, {0: 0})}

    def _require_same_rules(self, plan: MergePlan) -> None:
        first = plan.ledger(self._topology, max(1, plan.folded_steps))
        was, now = first.topology, self._ledger.topology
        if (was.resolved_case, was.policy) != (now.resolved_case, now.policy):
            raise StateError(
                "another case or policy was decided, which a job in Spark cannot go on with: hand "
                "over to the service (--hand-over), which can"
            )

    def _is_due(self, plan: MergePlan, *, failed: bool = False) -> bool:
        """Whether something is to be done with the plan before the query goes on; also about the
        batch under way if the query has `failed`."""
        try:
            seen = _run(self._look())
            due = self._next(plan, seen) is not None
            if failed:
                checkpoint = self._settings.checkpoint
                known, done = planned(checkpoint), committed(checkpoint)
                due = due or unreadable(plan, seen, done, known) is not None
        except TransportError as error:
            if not error.retriable:
                raise
            if self.trouble is None:  # it is looked again every two seconds
                log.warning("cannot see the topics", error=str(error))
            self.trouble = f"cannot see the topics: {error}"
            return False
        if self.trouble is not None:
            log.warning("the topics can be seen again")
        self.trouble = None
        return due

    async def _look(self) -> KafkaView:
        """Folds the decisions, and finds which topics there are."""
        ledger, cluster, limits = self._ledger, self._cluster, self._topology.limits
        read = planned(self._settings.checkpoint).topics
        async with cluster.log(self._topology.output.control_topic) as decisions:
            async for record in unread(decisions, ledger):
                ledger.fold(record.offset, record.value)
                self._undone.append(record.value)
        desired = {each.replica.topic for each in ledger.attached()}
        desired |= read.keys() - {self._topology.output.control_topic}
        async with (
            cluster.topics() as topics,
            cluster.source(max_record_bytes=limits.max_record_bytes) as source,
        ):
            found = await topics.describe(desired)
            places = [
                TopicPartition(topic, number)
                for topic, info in found.items()
                for number in range(info.partitions)
            ]
            beginnings = await source.beginnings(places)
            ends = await source.high_watermarks(places)
        self._sightings.note(desired, found)
        return KafkaView(found, beginnings, ends, self._undone, self._sightings.deleted, read)

    # --- the query --------------------------------------------------------------------------------

    def _start(
        self, spark: SparkSession, plan: MergePlan, keys: tuple[int, ...], *, finishing: bool
    ) -> StreamingQuery:
        settings = self._settings
        trigger: Mapping[str, Any] = {"processingTime": "0 seconds"}
        if finishing:
            trigger = {"once": True}
        elif settings.available_now:
            trigger = {"availableNow": True}
        with spark_errors(self._doing):
            return start(
                spark,
                self._topology,
                plan,
                settings.checkpoint,
                keys=keys,
                starts=self._starts(plan),
                batch_records=settings.batch_records,
                trigger=trigger,
            )

    @property
    def _doing(self) -> str:
        return f"merging into {self._topology.output.topic}"

    def _starts(self, plan: MergePlan) -> str:
        """From where a new checkpoint reads."""
        starts = {self._topology.output.control_topic: {"0": _EARLIEST}}
        for topic, at in plan.starts().items():
            starts[topic] = {str(number): offset for number, offset in enumerate(at)}
        return msgspec.json.encode(starts).decode()

    def _watch(self, query: StreamingQuery, plan: MergePlan) -> bool:
        """Waits until something is to be done; whether the query has ended."""
        while not self.stop.is_set():
            try:
                with spark_errors(self._doing):
                    ended = query.awaitTermination(_LOOK_SECONDS)
            except LMergeError:
                if self.stop.is_set():  # Spark's Python workers got the signal to end, too
                    return False
                # Spark fails when a topic is deleted; it is taken for deleted when missing twice.
                if any(self._is_due(plan, failed=True) for _ in range(BELIEVED)):
                    return False
                raise
            self._report_progress(query)
            if ended:
                return True
            if self._is_due(plan):
                return False
        return False

    def _report_progress(self, query: StreamingQuery) -> None:
        for each in query.recentProgress:
            number = each["batchId"]
            if number > self._reported and each["durationMs"].get("addBatch") is not None:
                self._reported = number
                seconds = each["durationMs"]["triggerExecution"] / 1000
                found = observed(each.observedMetrics)
                records, behind = each["numInputRows"], _behind(each)
                self._report(BatchProgress(number, records, seconds, behind, found.breaches))
                for evidence in found.evidence:
                    if (
                        evidence.kind != NotificationKind.EXCLUDED
                        or evidence.replica not in self._logged_out
                    ):
                        _warn(evidence)


def _warn(evidence: Evidence) -> None:
    place = evidence.first
    where = {} if place is None else {n: getattr(place, n) for n in _PLACE}
    log.warning(
        "found", kind=evidence.kind, replica=evidence.replica, task=evidence.task, **where,
        count=evidence.count, reason=evidence.reason, remedy=evidence.remedy,
    )  # fmt: skip


def _behind(progress: Mapping[str, Any]) -> dict[str, int]:
    """As Spark reports it: offsets by topic and partition, as JSON."""
    behind: Counter[str] = Counter()
    for source in progress["sources"]:
        read, there = (_places(source[at]) for at in ("endOffset", "latestOffset"))
        for topic, ends in there.items():
            for number, end in ends.items():
                behind[topic] += end - read.get(topic, {}).get(number, 0)
    return dict(behind)


def _places(text: str | None) -> dict[str, dict[str, int]]:
    return msgspec.json.decode(text or "null", type=dict[str, dict[str, int]] | None) or {}


def _run(call: Coroutine[Any, Any, R]) -> R:
    """The caller may be in an event loop, as in a notebook."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, call).result()
