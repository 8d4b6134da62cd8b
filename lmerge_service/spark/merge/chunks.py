"""Records between Spark's two stages: many of one partition in one piece of bytes.

Theory
    Handing a row from Java to Python and back costs Spark more than merging what is in it. So the
    stage that reads packs the records of one topic partition that one bucket needs into one row,
    and the stage that merges takes them apart. A record that the first had to decode, to know its
    bucket, goes as its element: it is decoded once. The same bytes are what a bucket writes down
    before it merges them (`store`).

    How records were packed depends on chance: on how much Spark reads at a time. In what order
    they are merged must not, or a batch that is run again would have another output. So they are
    put in order by topic, partition and offset, and taken in slices of one size, in turn:

        a: 1 2 3 4 5    b: 7 8    slices of 2     →    a 1 2, b 7 8, a 3 4, a 5

    In turn, as replicas publish at about the same time, and no replica gets far ahead.

    The native engine (`core.engine`) writes and reads the columns of chunks in which all is decoded
    and nothing is kept by place, byte for byte as they are here; a bucket that has it merges the
    elements as they come out of there (`Decoded`).

Invariants
    C1  `slices` depends on the records alone, not on how they were packed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import msgspec

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.merge.decoding import DecodedRecord

if TYPE_CHECKING:
    from lmerge_engine import Decoded

__all__ = (
    "ADJUST",
    "INSERT",
    "NUDGE",
    "RAW",
    "STABLE",
    "Chunk",
    "Headers",
    "NativeChunk",
    "packed",
    "slices",
    "unpacked",
)

INSERT, ADJUST, STABLE, RAW = b"iasr"

Headers: TypeAlias = list[tuple[str, bytes]]

_SLICE: Final = 4_000
_SHARED: Final = 1 << 14
_SHARED_BYTES: Final = 1 << 10
_payloads: dict[bytes, bytes] = {}


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Records of one topic partition, in order, by column; what most records lack is kept by
    place."""

    topic: str
    partition: int
    offsets: list[int] = []
    kinds: bytes = b""
    """Of each record, what it is: `INSERT`, `ADJUST`, `STABLE`, or `RAW`: not decoded."""
    payloads: list[bytes] = []
    """Of inserts and adjusts, in order."""
    times: list[int] = []
    """Of an insert vs and ve, of an adjust vs, vold and ve, of a stable vc."""
    values: dict[int, bytes | None] = {}
    """Of those that are not decoded, or may be rejected all the same."""
    contents: dict[int, int] = {}
    """`content_of` the values of those that are numbered, where these are not here."""
    headers: dict[int, Headers] = {}
    keys: dict[int, bytes] = {}
    timestamps: list[int] = []
    """Empty where they are not needed."""


class NativeChunk(msgspec.Struct, frozen=True, array_like=True):
    """A chunk whose columns are packed already; on the wire it is a `Chunk`."""

    topic: str
    partition: int
    offsets: msgspec.Raw
    kinds: bytes
    payloads: msgspec.Raw
    times: msgspec.Raw
    values: dict[int, bytes | None] = {}
    contents: dict[int, int] = {}
    headers: dict[int, Headers] = {}
    keys: dict[int, bytes] = {}
    timestamps: list[int] = []

    @property
    def is_plain(self) -> bool:
        """Its records are their elements, and nothing else."""
        beside = self.values or self.headers or self.keys or self.timestamps
        return not beside and RAW not in self.kinds

    def records(self) -> "Decoded":
        """Those of a plain one."""
        from lmerge_engine import Decoded

        columns = bytes(self.offsets), self.kinds, bytes(self.payloads), bytes(self.times)
        return Decoded(*columns)


NUDGE: Final = Chunk("", -1)
"""Of no topic: it wakes a bucket up."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Chunk)
_native_decoder: Final = msgspec.msgpack.Decoder(NativeChunk)


def packed(chunk: Chunk | NativeChunk) -> bytes:
    """A function, since Spark's closures cannot hold an encoder."""
    return _encoder.encode(chunk)


def unpacked(data: bytes, *, native: bool = False) -> Chunk | NativeChunk:
    """What `packed` made; `native`: for the engine, if it is plain."""
    if native and (chunk := _native_decoder.decode(data)).is_plain:
        return chunk
    return _decoder.decode(data)


def slices(
    chunks: Iterable[Chunk | NativeChunk],
) -> Iterator[tuple[str, int, Sequence[DecodedRecord]]]:
    """The records of a batch in the order in which they are merged: (topic, partition, some)."""
    by_place: defaultdict[tuple[str, int], list[_Piece]] = defaultdict(list)
    for chunk in chunks:
        if chunk.kinds:
            records = chunk.records() if isinstance(chunk, NativeChunk) else None
            first = chunk.offsets[0] if records is None else records[0].offset
            by_place[chunk.topic, chunk.partition].append(_Piece(first, chunk, records))
    turns = [(*place, _sliced(by_place[place])) for place in sorted(by_place)]
    while turns:
        left = []
        for topic, partition, rest in turns:
            if (some := next(rest, None)) is not None:
                yield topic, partition, some
                left.append((topic, partition, rest))
        turns = left


class _Piece(NamedTuple):
    first: int
    chunk: Chunk | NativeChunk
    records: "Decoded | None"
    """Those of a native one."""


def _sliced(pieces: list[_Piece]) -> Iterator[Sequence[DecodedRecord]]:
    """Slices of one partition; what they are made of is released on the way."""
    pieces.sort(key=lambda piece: piece.first, reverse=True)
    if all(piece.records is not None for piece in pieces):
        yield from _sliced_natively([cast("Decoded", piece.records) for piece in pieces])
        return
    records: list[DecodedRecord] = []
    while pieces:
        _, chunk, native = pieces.pop()
        records += _records(chunk) if isinstance(chunk, Chunk) else cast("Decoded", native)
        while len(records) >= _SLICE:
            yield records[:_SLICE]
            del records[:_SLICE]
    if records:
        yield records


def _sliced_natively(pieces: list["Decoded"]) -> Iterator["Decoded"]:
    records = pieces.pop()
    while True:
        while len(records) >= _SLICE:
            yield records.cut(_SLICE)
        if not pieces:
            break
        records += pieces.pop()
    if records:
        yield records


def _records(chunk: Chunk) -> list[DecodedRecord]:
    values, headers, keys, stamps = chunk.values, chunk.headers, chunk.keys, chunk.timestamps
    elements = _elements(chunk)
    if not (values or headers or keys or stamps):
        pairs = zip(chunk.offsets, elements, strict=True)
        return [DecodedRecord(offset, None, None, (), -1, element) for offset, element in pairs]
    return [
        DecodedRecord(
            offset, keys.get(at), values.get(at), headers.get(at, ()),
            stamps[at] if stamps else -1, element, chunk.contents.get(at),
        )
        for at, (offset, element) in enumerate(zip(chunk.offsets, elements, strict=True))
    ]  # fmt: skip


def _shared(payload: bytes) -> bytes:
    """The same payload as one object, as long as there are few of them: a bucket may hold many
    events of each."""
    if len(payload) > _SHARED_BYTES:
        return payload
    if len(_payloads) >= _SHARED:
        _payloads.clear()
    return _payloads.setdefault(payload, payload)


def _elements(chunk: Chunk) -> Iterator[Element | None]:
    payload, time = map(_shared, chunk.payloads).__next__, iter(chunk.times).__next__
    for kind in chunk.kinds:
        if kind == INSERT:
            yield Insert(payload(), time(), time())
        elif kind == ADJUST:
            yield Adjust(payload(), time(), time(), time())
        elif kind == STABLE:
            yield Stable(time())
        else:
            yield None
