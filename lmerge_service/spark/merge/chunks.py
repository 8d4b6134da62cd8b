"""Records between Spark's two stages: many of one partition in one piece of bytes.

Theory
    Handing a row from Java to Python and back costs Spark more than merging what is in it. So the
    stage that reads packs the records of one topic partition that one bucket needs into one row,
    and the stage that merges takes them apart. The same bytes are what a bucket writes down
    before it merges them (`store`).

    How records were packed depends on chance: on how much Spark reads at a time. In what order
    they are merged must not, or a batch that is run again would have another output. So they are
    put in order by topic, partition and offset, and taken in slices of one size, in turn:

        a: 1 2 3 4 5    b: 7 8    slices of 2     →    a 1 2, b 7 8, a 3 4, a 5

    In turn, since replicas often publish the same at about the same time, and the decoder keeps
    what it has decoded lately.

Invariants
    C1  `slices` depends on the records alone, not on how they were packed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

__all__ = ("NUDGE", "Chunk", "Headers", "Record", "packed", "slices", "unpacked")

Headers: TypeAlias = list[tuple[str, bytes]]

_SLICE: Final = 4_000


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as `Ingest` takes it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp: int


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Records of one topic partition, in order; what most records lack is kept by place."""

    topic: str
    partition: int
    offsets: list[int] = []
    values: list[bytes | None] = []
    headers: dict[int, Headers] = {}
    keys: dict[int, bytes] = {}
    timestamps: list[int] = []
    """Empty where they are not needed."""


NUDGE: Final = Chunk("", -1)
"""Of no topic: it wakes a bucket up."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Chunk)


def packed(chunk: Chunk) -> bytes:
    """A function, since Spark's closures cannot hold an encoder."""
    return _encoder.encode(chunk)


def unpacked(data: bytes) -> Chunk:
    """What `packed` made."""
    return _decoder.decode(data)


def slices(chunks: Iterable[Chunk]) -> Iterator[tuple[str, int, list[Record]]]:
    """The records of a batch in the order in which they are merged: (topic, partition, some)."""
    by_place: defaultdict[tuple[str, int], list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if chunk.offsets:
            by_place[chunk.topic, chunk.partition].append(chunk)
    turns = [(*place, _sliced(by_place[place])) for place in sorted(by_place)]
    while turns:
        left = []
        for topic, partition, rest in turns:
            if (some := next(rest, None)) is not None:
                yield topic, partition, some
                left.append((topic, partition, rest))
        turns = left


def _sliced(chunks: list[Chunk]) -> Iterator[list[Record]]:
    """Slices of one partition; what they are made of is released on the way."""
    chunks.sort(key=lambda chunk: chunk.offsets[0], reverse=True)
    records: list[Record] = []
    while chunks:
        records += _records(chunks.pop())
        while len(records) >= _SLICE:
            yield records[:_SLICE]
            del records[:_SLICE]
    if records:
        yield records


def _records(chunk: Chunk) -> list[Record]:
    if not (chunk.headers or chunk.keys or chunk.timestamps):
        pairs = zip(chunk.offsets, chunk.values, strict=True)
        return [Record(offset, None, value, (), -1) for offset, value in pairs]
    headers, keys, times = chunk.headers, chunk.keys, chunk.timestamps
    return [
        Record(offset, keys.get(at), value, headers.get(at, ()), times[at] if times else -1)
        for at, (offset, value) in enumerate(zip(chunk.offsets, chunk.values, strict=True))
    ]
