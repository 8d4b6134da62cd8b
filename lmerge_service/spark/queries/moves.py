"""What goes from task to task: many rows of one bucket in one piece of bytes.

Theory
    Handing a row from Java to Python and back costs Spark more than what most operators do with
    it, so rows travel by the thousand, column by column. The same bytes are what a bucket writes
    down before it takes them (`spark.state`). How rows are packed depends on how much Spark reads
    at a time; the order in which a bucket takes them does not: by input, place and number.

    >>> rows = Rows("flights 0", 1, [7, 9], [60, 61], [61, 62], [["JFK", "EWR"]])
    >>> unpacked(packed(rows)) == rows, next(rows.events())
    (True, (7, Insert(payload=('JFK',), vs=60, ve=61)))
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.replicas.routing import Route
from lmerge_service.spark.queries.row_lateness import RowSummary

__all__ = (
    "Held",
    "Letters",
    "Moved",
    "Points",
    "Records",
    "Rows",
    "Summary",
    "Taken",
    "divided",
    "is_letters",
    "moved",
    "packed",
    "unpacked",
)


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Facts of one partition for one input, in order, by column."""

    input: str
    partition: int
    offsets: list[int]
    starts: list[int]
    ends: list[int]
    columns: list[list[Any]]

    def events(self) -> Iterator[tuple[int, Insert[Any]]]:
        """Each with its offset."""
        rows: Iterable[Any] = zip(*self.columns, strict=True)
        if not self.columns:
            rows = [()] * len(self.offsets)
        return zip(self.offsets, map(Insert, rows, self.starts, self.ends), strict=True)


class Summary(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """How far one partition of a source is."""

    source: str
    partition: int
    summary: RowSummary


class Moved(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What a bucket of an earlier stage has emitted, in order."""

    input: str
    bucket: int
    first: int
    """The number of the first."""
    rows: list[Any]
    times: list[tuple[int, ...]]
    """(vs, ve) of an insert, (vs, vold, ve) of an adjust, (vc,) of a stable, which has no row."""

    def elements(self) -> Iterator[Element]:
        rows = map(tuple, self.rows)
        for times in self.times:
            match times:
                case (vs, ve):
                    yield Insert(next(rows), vs, ve)
                case (vs, vold, ve):
                    yield Adjust(next(rows), vs, vold, ve)
                case _:
                    yield Stable(times[0])


class Records(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Records of one partition of a source as they came, in order."""

    partition: int
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[str | None]
    """Those that count, as `spark.io.elements.headers_text` gives them."""


_LETTERS: Final = 4


class Letters(msgspec.Struct, frozen=True, array_like=True, tag=_LETTERS):
    """Records that are no facts or elements, on their way to the dead letters."""

    letters: list[DeadLetter]


class Points(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Feedback for this replica."""

    points: list[tuple[int, int, int]]
    """(task of the merge, how many there are, its point)."""


class Held(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What a partition of the output holds that may still change."""

    rows: list[Any]
    times: list[tuple[int, int]]
    """(vs, ve) of each event."""
    stable: int
    emitted: int
    """The number of its last record; 0 if these have none."""


Taken: TypeAlias = Rows | Summary | Moved | Records | Letters | Points | Held


def is_letters(chunk: bytes) -> bool:
    """Whether a chunk has dead letters, which no bucket takes.

    >>> is_letters(packed(Letters([]))), is_letters(packed(Points([])))
    (True, False)
    """
    return chunk[1] == _LETTERS  # behind the byte with the array's length


def moved(input_: str, bucket: int, first: int, elements: Iterable[Element]) -> Moved:
    """Elements as they travel."""
    rows: list[Any] = []
    times: list[tuple[int, ...]] = []
    for element in elements:
        if type(element) is Stable:
            times.append((element.vc,))
            continue
        rows.append(element.payload)  # type: ignore[union-attr]
        if type(element) is Insert:
            times.append((element.vs, element.ve))
        else:
            assert type(element) is Adjust
            times.append((element.vs, element.vold, element.ve))
    return Moved(input_, bucket, first, rows, times)


def divided(elements: Iterable[Element], route: Route | None, buckets: int) -> list[list[Element]]:
    """Elements by bucket: data to those of their route, or to the first; stables to all."""
    data: list[Element] = []
    stables: list[Element] = []
    for each in elements:
        (stables if type(each) is Stable else data).append(each)
    parts = [data, *([] for _ in range(buckets - 1))] if route is None else route.split(data)
    return [[*part, *stables] for part in parts]


packed: Final = msgspec.msgpack.Encoder().encode
"""The bytes of rows, of a summary, or of what was moved."""
_decoder: Final[msgspec.msgpack.Decoder[Taken]] = msgspec.msgpack.Decoder(Taken)


def unpacked(chunk: bytes) -> Taken:
    """What the bytes are of."""
    return _decoder.decode(chunk)
