"""One partition of a source whose records cannot be taken in any order, as a function of batches.

Theory
    Which facts are late is decided from summaries (`row_lateness`), so that facts are read by
    one task and taken by others. A duplicate is one by all that was in its partition before, and an
    element stands where it stands. So the records of each partition of such a source go to a bucket
    of its own, which does with them what a replica without Spark does: `replicas.inputs` is the
    same code. Its stream is divided among the buckets of a stage as that of an earlier stage is.

Invariants
    K1  What `take` emits is a function of the source, and of the records so far, however these were
        packed.
    K2  Over all batches the elements are a legal stream, if those of the partition are, and have
        numbers without a gap.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from lmerge_service.core.snapshots import sealed, unsealed
from lmerge_service.elements import START, Element, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.queries import logical
from lmerge_service.replicas.inputs import input_of
from lmerge_service.spark.io.decoding import headers_of
from lmerge_service.spark.queries.moves import Records, unpacked
from lmerge_service.spark.state import Counted, opened_head

__all__ = ("Intake", "IntakeBucket", "IntakeResult")

_VERSION: Final = 1


class Intake(msgspec.Struct, frozen=True):
    """A source, and the topic that it is."""

    source: logical.Source | logical.Elements
    topic: str
    width: int
    headroom: int
    """How far the query moves times (`logical.headroom`)."""


@dataclass(slots=True)
class IntakeResult:
    """What a batch comes to."""

    first: int
    """The number of the first element."""
    elements: list[Element] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    records: int = 0
    late: int = 0
    dropped: int = 0
    """Duplicates of facts, and records that their writer had written before."""
    stable: int = START
    kept: int = 0
    """How much state is left."""


class _Record(NamedTuple):
    """As `replicas.inputs` takes it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp: int


class _Saved(msgspec.Struct, array_like=True):
    version: int
    transaction: int
    emitted: int
    stable: int
    reached: list[int]


_read_saved: Final = msgspec.msgpack.Decoder(_Saved).decode


class IntakeBucket:
    """Goes from batch to batch; `partition` is its number."""

    def __init__(self, intake: Intake, partition: int) -> None:
        self._partition = partition
        self._input = input_of(intake.source, intake.topic, intake.width, intake.headroom)
        self._stable = START
        self.transaction = 0
        """How many batches it has taken."""
        self.emitted = 0
        """The number of the last element that it has emitted."""

    def take(self, batch: int, chunks: Iterable[bytes]) -> IntakeResult:
        """Takes a batch: chunks of `Records`, in any order.

        Raises:
            StateError: another incarnation of the topic begins, which goes on with nothing.
        """
        source, partition = self._input, self._partition
        given = [each for each in map(unpacked, chunks) if isinstance(each, Records)]
        result = IntakeResult(self.emitted + 1)
        for some in sorted(given, key=lambda each: each.offsets[0]):
            result.elements += source.take(partition, _records(some))
            result.records += len(some.offsets)
        if (stable := source.stables[partition]) > self._stable:
            self._stable = stable
            result.elements.append(Stable(stable))
        self.transaction += 1
        self.emitted += len(result.elements)
        result.letters, source.dead = source.dead, []
        dropped = source.dropped
        result.late, result.dropped = dropped["late"], dropped["duplicate"] + dropped["repeat"]
        dropped.clear()
        result.stable, result.kept = self._stable, len(source)
        return result

    # State

    def pages(self) -> Iterator[bytes]:
        """The state, piece by piece."""
        head = _Saved(
            _VERSION, self.transaction, self.emitted, self._stable, [*self._input.reached]
        )
        yield sealed([msgspec.msgpack.encode(head), self._input.saved()])

    def carried(self) -> tuple[int, Counted]:
        """Nothing: the pages have all."""
        return 0, ()

    def load(self, pages: Iterable[bytes], steps: int, counted: Counted) -> None:
        """Takes over the state that pages are of.

        Raises:
            StateError: they are damaged, or of another version.
        """
        head, remembered = unsealed(b"".join(pages))
        saved = opened_head(head, _read_saved, _VERSION)
        self._input.restore(remembered)
        self._input.go_on(saved.reached)
        self._stable = saved.stable
        self.transaction, self.emitted = saved.transaction, saved.emitted


def _records(some: Records) -> list[_Record]:
    return [
        _Record(offset, key, value, headers_of(headers) if headers else (), -1)
        for offset, key, value, headers in zip(
            some.offsets, some.keys, some.values, some.headers, strict=True
        )
    ]
