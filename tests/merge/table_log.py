"""A task's transactions without Kafka: an output, its table, and whoever reads them.

`TableLog` publishes elements as an operator that has emitted them would, commits what its
`TableWriter` gathers, with offsets as Kafka gives them, and goes on as a restarted task does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmerge_service.config.topology import Topology
from lmerge_service.core.batches import Row
from lmerge_service.drills.records import CommittedRecord
from lmerge_service.elements import Element, Stable
from lmerge_service.formats.table import offset_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.commit_record import TableCheckpoint
from lmerge_service.merge.outlets import Outlets
from lmerge_service.merge.table.writer import TableWriter
from lmerge_service.merge.task_state import TaskState
from lmerge_service.offline.table_audit import PartitionAudit
from tests.table_reader import TableView, TopicEvents, live, reconstituted

__all__ = ("TableLog", "table_topology")


def table_topology(case: str, key: Sequence[str] = (), keep: int | None = None) -> Topology:
    return Topology.model_validate(
        {
            "name": "m",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "output": {"topic": "out", "table": True, "keep": keep},
            "case": case,
            "key": key,
            "replicas": [{"name": "a", "topic": "in.a"}],
        }
    )


@dataclass(slots=True)
class TableLog:
    """One partition of an output and of its table."""

    topology: Topology
    now: float = 0.0
    output: list[CommittedRecord] = field(default_factory=list)
    table: list[CommittedRecord] = field(default_factory=list)
    next: int = 0
    """Where the output ends."""
    table_next: int = 0
    topic_id: str = "id-0"
    checkpoint: TableCheckpoint | None = None
    """As of the last commit."""
    state: TaskState = field(init=False)
    outlets: Outlets = field(init=False)
    writer: TableWriter | None = field(init=False)
    _open: list[tuple[bytes | None, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = TaskState(self.topology, 0, tallies={}, clock=lambda: self.now)
        self.outlets = Outlets(self.topology, lambda: self.now)
        self.restart()

    @property
    def keyed(self) -> bool:
        return self.topology.case != "R4"

    def restart(self, *, table: bool = True) -> None:
        """A task goes on from the last commit: one whose output has a table, or not."""
        assert not self._open
        self.state.table = self.checkpoint
        self.writer = (
            TableWriter(self.state, self.outlets, self.topic_id, keep=None) if table else None
        )

    def publish(self, *elements: Element) -> None:
        """The operator emits them, for the next transaction."""
        self.state.merge.replay_output(elements)
        key_of = self.state.router.key_of
        keys = [None if isinstance(each, Stable) else key_of(each.payload) for each in elements]
        records = list(zip(keys, map(encode, elements), strict=True))
        if self.writer is not None:
            self.writer.take(elements, records)
        self._open += records

    def commit(self, *elements: Element) -> None:
        """One transaction, of these elements and of what was published before."""
        self.publish(*elements)
        rows: Sequence[Row] = ()
        whole = False
        begin = self.next
        for key, value in self._open:
            self.output.append(CommittedRecord("out", 0, self.next, 0, value, key, ()))
            self.next += 1
        if self.writer is not None:
            rows, whole = self.writer.gather(), self.writer.is_whole
        headers = tuple(offset_headers(begin, self.next)) if whole else ()
        for row_key, row in rows:
            self.table.append(
                CommittedRecord("out.table", 0, self.table_next, 0, row, row_key, headers)
            )
            self.table_next += 1
        self.checkpoint = None if self.writer is None else self.writer.checkpoint
        self.next += bool(self._open)  # the marker
        self.table_next += bool(rows)
        self._open = []

    def sweep(self) -> None:
        """All that the topic holds is looked at."""
        if self.writer is not None and self.writer.is_begun and not self.writer.is_swept:
            self.writer.clear_of(self.table)
            self.writer.swept()

    def settle(self) -> None:
        """Until there is nothing to commit but what is published."""
        assert self.writer is not None
        for _ in range(100):
            self.sweep()
            if not self.writer.is_due:
                return
            self.commit()
        raise AssertionError("it never ends")

    def compact(self) -> None:
        last = {each.key: each.offset for each in self.table}
        self.table = [each for each in self.table if last[each.key] == each.offset]

    # --- what readers see -----------------------------------------------------------------------

    def view(self) -> TableView:
        view = TableView()
        for record in self.table:
            view.load(record)
        return view

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        return [(each.key or b"", each.value) for each in self.table]

    @property
    def events(self) -> TopicEvents:
        return reconstituted(self.output, keyed=self.keyed)

    @property
    def live(self) -> TopicEvents:
        return live(self.events, TableView().stable(self.output))

    def audited(self) -> PartitionAudit:
        """What `lmerge audit --table` finds."""
        audit = PartitionAudit(0, "out.table", WireDecoder(), None)
        audit.load(self.table)
        audit.loaded()
        audit.take(self.output)
        audit.finish(0)
        return audit

    def check(self, views: Sequence[TableView] = ()) -> None:
        """The table, if it is whole, and what was loaded of it before and followed since."""
        view = self.view()
        if self.checkpoint is not None and self.checkpoint.topic_id == self.topic_id:
            assert view.is_whole or not view.seen
            assert not self.live - view.events(), "rows are missing"
            assert not view.events() - self.events, "rows are stale"
        if view.is_whole:
            assert not (found := self.audited().divergences), found
        for each in [view, *views]:
            if each.is_whole:
                start = each.contains_to
                assert start is not None
                have = each.followed(self.output, start=start, keyed=self.keyed)
                assert not self.live - have, f"a reader from {start} lacks events"
                assert not have - self.events, f"a reader from {start} has too many"
