"""The table topic of a simulated run: judged after every commit, and by readers at any time.

Theory
    After each commit whose commit record has a table, the rows must be right: all events of the
    output that are live, as they are, and no event that the output does not have. Beside that,
    readers load partitions over the network while workers are killed, and stop at the end or, as
    clients do that cannot know it, somewhere before. When the run is over, each must have, with the
    output's records behind the offset in its last header, what the whole output has, at whatever
    moment one looks.

    Whoever plays the broker compacts the topic when no reader is about: `min.compaction.lag.ms`
    promises as much. People delete it, and workers are started with it and without.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from lmerge_service.config.topology import Topology
from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.errors import StateError, TransportError
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.commit_record import COMMIT_KEY, CommitRecord
from tests.simulation.clients import MemorySource
from tests.simulation.memory import Broker, UnknownTopic
from tests.simulation.network import Network, Weather
from tests.table_reader import TableView, live, reconstituted

__all__ = ("TableReaders",)

_MEAN_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class _Loaded:
    partition: int
    view: TableView
    whole: bool
    """It was read to its end; else up to anywhere."""


@dataclass(slots=True)
class TableReaders:
    """One after the other; `wrong` judges them when the run is over."""

    topology: Topology
    broker: Broker
    chance: Random
    weather: Weather
    seen: Counter[str]
    deletes: bool = False
    """The topic is deleted now and then."""
    loaded: list[_Loaded] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What was wrong at a commit."""
    _views: dict[tuple[str, int], tuple[TableView, int]] = field(default_factory=dict)
    """By topic id and partition: what is in the table, and the offset behind it."""
    _compacted: dict[int, int] = field(default_factory=dict)
    """By partition, up to where it was compacted: whoever loads it is beyond."""
    _output: dict[int, list[CommittedRecord]] = field(default_factory=dict)

    def begin(self) -> None:
        """Judges from now on."""
        self.broker.on_arrival.append(self._judge)

    # --- after every commit ---------------------------------------------------------------------

    def _judge(self) -> None:
        output = self.topology.output
        for partition in range(output.partitions):
            self._remember(partition)
        found = self.broker.describe(output.table_topic)
        if found is None or self.broker.describe(output.state_topic) is None:
            return
        for partition in range(output.partitions):
            if not self._is_settled(partition):
                continue
            mark = self.broker.last(TopicPartition(output.state_topic, partition), COMMIT_KEY)
            commit = CommitRecord() if mark is None else CommitRecord.of(mark.value)
            view = self._view(found[0], partition)
            if commit.table is not None and commit.table.topic_id == found[0]:
                self._compare(partition, view, commit.output.incarnation)

    def _remember(self, partition: int) -> None:
        """The output's records, before they may be deleted."""
        records = self._output.setdefault(partition, [])
        tp = TopicPartition(self.topology.output.topic, partition)
        start = records[-1].offset + 1 if records else 0
        with suppress(UnknownTopic):
            start = max(start, self.broker.beginning(tp))
            records += self.broker.fetch(tp, start, 1_000_000)[0]

    def _is_settled(self, partition: int) -> bool:
        """No transaction is under way, which may have part of its records only."""
        output = self.topology.output
        for topic in (output.topic, output.table_topic, output.state_topic):
            tp = TopicPartition(topic, partition)
            if self.broker.last_stable(tp) < self.broker.high_watermark(tp):
                return False
        return True

    def _view(self, topic_id: str, partition: int) -> TableView:
        view, start = self._views.get((topic_id, partition), (TableView(), 0))
        tp = TopicPartition(self.topology.output.table_topic, partition)
        records, end = self.broker.fetch(tp, start, 1_000_000)
        for record in records:
            view.load(record)
        self._views[topic_id, partition] = view, end
        return view

    def _compare(self, partition: int, view: TableView, incarnation: int) -> None:
        records = self._output[partition]
        self.seen["table judged"] += 1
        events = reconstituted(records, keyed=True, incarnation=incarnation)
        self.seen["table forgets"] += bool(events - view.events())
        missing = live(events, view.stable(records)) - view.events()
        stale = view.events() - events
        if missing or stale:
            self.faults.append(
                f"table of partition {partition} after {records[-1].offset}: "
                f"lacks {sorted(missing)}, has {sorted(stale)} too much"
            )

    # --- readers --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        output, network = self.topology.output, Network(self.broker, self.chance, self.weather)
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / _MEAN_SECONDS))
            partition = self.chance.randrange(output.partitions)
            with suppress(
                TransportError, StateError, UnknownTopic
            ):  # the weather; or there is none
                await self._read(MemorySource(network), partition)
            if self.broker.describe(output.table_topic) is None:
                continue
            if self.chance.random() < 0.5:
                self._compact()
            if self.deletes and self.chance.random() < 0.1:
                self.broker.delete(output.table_topic)
                self._compacted.clear()
                self.seen["table deleted"] += 1

    def _compact(self) -> None:
        output = self.topology.output
        self.broker.compact(output.table_topic)
        for partition in range(output.partitions):
            tp = TopicPartition(output.table_topic, partition)
            self._compacted[partition] = self.broker.last_stable(tp)

    async def _read(self, source: MemorySource, partition: int) -> None:
        tp = TopicPartition(self.topology.output.table_topic, partition)
        begin, end = (await source.beginnings([tp]))[tp], (await source.ends([tp]))[tp]
        whole = self.chance.random() < 0.6
        least = min(end, max(begin, self._compacted.get(partition, 0)))
        stop = end if whole else self.chance.randint(least, end)
        view = TableView()
        async for _, records in source.backlog({tp: begin}, {tp: stop}):
            for record in records:
                view.load(record)
        if view.is_whole:
            self.loaded.append(_Loaded(partition, view, whole))

    def wrong(self, output: CommittedTopic) -> Iterator[str]:
        """What is wrong, given all that the output has ever held."""
        yield from self.faults
        for each in self.loaded:
            records = [one for one in output.records if one.partition == each.partition]
            yield from self._follow(each, records)

    def _follow(self, loaded: _Loaded, records: list[CommittedRecord]) -> Iterator[str]:
        view = loaded.view
        start = view.contains_to if loaded.whole else view.follow_from
        assert start is not None
        assert view.contains_to is not None
        self.seen["table loaded"] += 1
        for upto in {view.contains_to, *(self.chance.randint(start, start + 60) for _ in "abc")}:
            if upto < view.contains_to:
                continue
            prefix = [each for each in records if each.offset < upto]
            events = reconstituted(prefix, keyed=True, incarnation=view.incarnation)
            have = view.followed(prefix, start=start, keyed=True)
            missing, stale = live(events, view.stable(prefix)) - have, have - events
            if missing or stale:
                yield (
                    f"who loads the table of {loaded.partition} to {start} and follows to {upto}: "
                    f"lacks {sorted(missing)}, has {sorted(stale)} too much"
                )
