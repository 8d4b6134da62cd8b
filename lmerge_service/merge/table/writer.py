"""The table topic's part of a task's transactions.

Theory
    What a transaction publishes to the output changes the table, in the same transaction. So at
    every commit the table is what the output is, and a task that goes on from the last commit
    record has nothing to look up. That record shows whether it can:

        the last commit had no table, or of another kind or topic     the table begins
        else                                                          it goes on

    A table that *begins* is filled with the events that are live, some in each transaction, while
    the topic is read from its beginning (`sweep`): rows of events that are not live are removed.
    With the first transaction after both have ended, it is *whole*. Only then do records have
    offsets in their headers, by which readers see that they may begin. So whatever the topic held
    before, nothing of that stays which is wrong, and a task that is killed meanwhile begins once
    more.

    A table that cannot be written is left out, as dead letters are, and begins once it can be. A
    topic that is deleted is missed before it is made again (`internal_topics`); a transaction that
    was under way by then is given up, since its rows would be the first of the new one.

Invariants
    W1  The commit record has a table iff it is whole with that transaction.
    W2  Of a whole table, the rows of live events are those of the output up to this transaction,
        and no other row is of an event that the output has removed.
    W3  Rows go out in the order in which they were appended: what is removed by the sweep is judged
        by what is live at that moment, and what is emitted later is written later.

Cost
    See `rows`; while it is filled, a reference to each live event.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.core import Case
from lmerge_service.elements import Element, Insert
from lmerge_service.errors import ElementError
from lmerge_service.formats.payload import DEEPEST
from lmerge_service.formats.table import RowKeys, number_of
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.sightings import is_another
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.commit_record import StableSample, TableCheckpoint
from lmerge_service.merge.outlets import Outlets
from lmerge_service.merge.table.rows import Row, rows_of
from lmerge_service.merge.task_state import TaskState

if TYPE_CHECKING:
    from lmerge_engine import Batch, Encoded

__all__ = ("STEP_ROWS", "TableWriter", "kind_of")

log = structlog.get_logger()

STEP_ROWS = 5_000
"""A transaction has no more rows of those with which the table is filled …"""
_STEP_BYTES: Final = 4 << 20
"""… nor more bytes, more or less."""


def kind_of(topology: Topology) -> str:
    """Two tables with the same of this have the same rows for the same events."""
    kind = "multiset" if topology.resolved_case is Case.R4 else "keyed"
    rule = [name for name in ("nfc", "drop_nulls") if getattr(topology, name)]
    return " ".join([kind, *rule, f"key={','.join(topology.key)}"])


class TableWriter:
    """Of a task that leads."""

    def __init__(
        self, state: TaskState, outlets: Outlets, topic_id: str | None, *, keep: int | None
    ) -> None:
        """`state` is as it was recovered; `topic_id` is the table topic's now. Events that have
        been final for `keep` seconds leave; None: they stay."""
        topology = state.topology
        self.topic = topology.output.table_topic
        self.keep = keep
        self.beginnings = 0
        """How often it has begun since this was made."""
        self.samples: tuple[StableSample, ...] = ()
        """Where the output's stable point was, while the table was whole; the oldest first."""
        self.is_whole = False
        self.is_swept = False
        """No row is left of what the topic held when the table began."""
        self._state = state
        self._outlets = outlets
        self._topic_id = topic_id
        self._kind = kind_of(topology)
        multiset = topology.resolved_case is Case.R4
        self._keys = RowKeys(multiset=multiset, keyed=bool(topology.key))
        self._rows = rows_of(self._keys, state.router.key_of)
        self._decoder = WireDecoder(max_record_bytes=1 << 30, max_depth=DEEPEST)
        self._begins = True
        """It is filled with what is live at the next transaction's end; until then nothing else
        changes it."""
        self._is_complete = False
        """All that was to be filled or swept is in an earlier transaction."""
        self._last: Row | None = None
        """The last record of a table that is not whole."""
        if state.missed and (multiset or not self._fits(state.table)):
            return  # the operator counts them as emitted already, so that it begins behind them
        if state.table is not None and self._fits(state.table):
            self._go_on(state.table)
        else:
            self._fill()

    def _fits(self, before: TableCheckpoint | None) -> bool:
        """The table of the last commit record is this one."""
        if before is None or before.kind != self._kind or self._topic_id is None:
            return False
        return not is_another(before.topic_id, self._topic_id)

    def _go_on(self, before: TableCheckpoint) -> None:
        self._rows.load(self._state.merge.live_output() or ())
        self.samples = before.samples
        self._begins, self.is_whole, self.is_swept = False, True, True

    def _fill(self) -> None:
        self._rows.fill(self._state.merge.live_output() or ())
        self._begins = False

    # --- what changes ---------------------------------------------------------------------------

    def take(self, elements: Sequence[Element], records: list[tuple[bytes | None, bytes]]) -> None:
        """Takes what is published: elements, with their logical keys and their encoding."""
        if not self._begins:
            self._rows.take(elements, records)

    def take_batch(self, batch: "Batch", records: "Encoded", begins: int) -> None:
        """The same of a batch of the engine; see `Rows.take_batch`."""
        if not self._begins:
            self._rows.take_batch(batch, records, begins)

    def begin(self, why: str) -> None:
        """Has it begin once more, with the next transaction."""
        if not self._begins:
            log.warning("table begins", topic=self.topic, why=why)
        self._begins, self.is_whole, self.is_swept = True, False, False
        self._is_complete = False
        self.beginnings += 1
        self._rows.rows.clear()
        self.samples, self._last = (), None

    def see(self, topic: TopicInfo | None) -> None:
        """What there is of the topic now; None: it was deleted, or is not known yet."""
        if topic is None:
            self.begin("it was deleted")
        elif is_another(self._topic_id, topic.id):
            self.begin("it is another topic of that name")
        if topic is not None:
            self._topic_id = topic.id or self._topic_id

    @property
    def waiting(self) -> int:
        """Rows that are in no transaction yet."""
        return len(self._rows.rows)

    @property
    def is_due(self) -> bool:
        """There is something to commit."""
        if self._outlets.leaves_out(self.topic) is not None:
            return False
        begins = self._begins or self._rows.filling or (self.is_swept and not self.is_whole)
        return bool(self._rows.rows) or begins

    def gather(self) -> Sequence[Row]:
        """The rows of the transaction that begins; afterwards `is_whole` and `checkpoint` are as of
        its end. All that the operator has emitted was taken."""
        if (fault := self._outlets.leaves_out(self.topic)) is not None:
            self.begin(f"it {fault.why}")
            return []
        rows = self._rows
        if self._begins:
            self._fill()
        rows.step(STEP_ROWS, _STEP_BYTES)
        gathered: Sequence[Row] = rows.rows
        rows.rows = []
        if not self.is_whole:
            gathered = self._not_whole(gathered)
        return gathered

    def _not_whole(self, gathered: Sequence[Row]) -> Sequence[Row]:
        """The last record of the topic must have offsets, once it is whole. That is with a
        transaction that neither fills nor sweeps it: who stops within it has all but what the
        output has as well."""
        self.is_whole, self._is_complete = (
            self._is_complete,
            self.is_swept and not self._rows.filling,
        )
        if self.is_whole:
            log.info("table whole", topic=self.topic)
            if not gathered and self._last is not None:
                return [self._last]
        if gathered:
            self._last = gathered[-1]
        return gathered

    def lapse(self) -> Callable[[], bool]:
        """Whether it has begun once more since this was asked for."""
        beginnings = self.beginnings
        return lambda: self.beginnings != beginnings

    @property
    def checkpoint(self) -> TableCheckpoint | None:
        """What the commit record has of it."""
        if not self.is_whole:
            return None
        return TableCheckpoint(self._kind, self._topic_id, self.samples)

    # --- what the sweep removes -----------------------------------------------------------------

    def remove(self, keys: Sequence[bytes]) -> None:
        """Removes rows of events that are final, or not there."""
        self._rows.rows += [(key, None) for key in keys]

    @property
    def is_begun(self) -> bool:
        """What is emitted changes the table, so that it may be swept."""
        return not self._begins

    def clear_of(self, records: Sequence[Record]) -> None:
        """Removes those of the rows that the topic held before which are of no live event."""
        for record in records:
            key, value = record.key, record.value
            if key is None:
                continue
            if value is not None and not self._is_live(key, value):
                self.remove([key])
            elif value is None and self._last is None:
                self._last = key, None

    def swept(self) -> None:
        """All that the topic held when the table began was looked at."""
        self.is_swept = True

    def sample(self, sample: StableSample) -> None:
        """The next one, of a table that is whole."""
        self.samples = (*self.samples, sample)

    def forget_samples(self, before: StableSample) -> None:
        """Those that are older are of no use any more."""
        self.samples = self.samples[self.samples.index(before) :]

    def _is_live(self, key: bytes, value: bytes) -> bool:
        """The row is of an event that the operator has on the output; its end may be another."""
        try:
            event = self._decoder.decode(value)
        except ElementError:
            return False
        if type(event) is not Insert:
            return False
        if not self._keys.is_of(key, self._state.router.key_of(event.payload), event):
            return False
        ends = self._state.merge.output_ends(event.payload, event.vs)
        if self._keys.multiset:
            return (number_of(key) or 0) < ends.count(event.ve)
        return bool(ends)
