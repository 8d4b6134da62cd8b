r"""Batches of records to batches of rows, in Spark's Python workers: Arrow in, Arrow out.

Theory
    Whole records come in and rows go out (`schema.RECORDS`). Most records are simple
    (`formats.bulk`): their forms are known, so their fields are cut out of their text, for all of
    them at once:

        {"op":"insert","payload":{"a":",\"vs\":"},"vs":6,"ve":null}
                                 `-------------´      ^      `--^
        from the first "payload": to the last ,"vs": is the payload (in a string its quotes would
        have backslashes; inside it, it is not the last), and the times stand behind

    All others go through the merge's own `WireDecoder`, one by one, and so do those whose times
    no element has. Where the native engine is installed (`core.engine`), it takes the records out
    of the Arrow array and gives the columns of rows, and what it finds unusual goes one by one.
    So a row is the element that the merge would process. Columns about the origin of a record are
    passed on as they are.

Invariants
    D1  One row for each record, in order, but for those that their writer had written before
        (`lmerge-seq`), if `once` is set: nothing is lost, and no record fails the job.
    D2  A row has the element that `WireDecoder` returns for its record, or the reason and message
        of its error; errors of `headers` come first, as in `merge.decoding`.

Cost
    A simple record of 200 bytes takes 1 µs besides recognising it, another one 4 µs; by the engine
    most take 0.4 in all. A worker keeps one decoder per rule for all its tasks, and with it the
    payloads of late.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmerge_service.config.engines import engine_setting
from lmerge_service.core.engine import chosen_to_decode
from lmerge_service.elements import INFINITY, START, Adjust, Insert
from lmerge_service.errors import ElementError
from lmerge_service.formats.bulk import Recogniser, Rule
from lmerge_service.formats.headers import (
    INCARNATION_HEADER,
    JOINING_AT_HEADER,
    SEQ_HEADER,
    incarnation_of,
    seq_of,
)
from lmerge_service.formats.repeats import RecordReading, Repeats
from lmerge_service.formats.wire import WireDecoder

if TYPE_CHECKING:
    from lmerge_engine import Decoder as NativeDecoder

__all__ = ("HEADERS", "Keys", "decoding", "headers_of", "rows_of")

HEADERS: Final = (INCARNATION_HEADER, JOINING_AT_HEADER, SEQ_HEADER)
"""Those that are looked at."""

_ELEMENT: Final = pa.schema(
    [
        ("op", pa.string()),
        ("payload", pa.string()),
        ("vs", pa.int64()),
        ("vold", pa.int64()),
        ("ve", pa.int64()),
        ("vc", pa.int64()),
    ]
)
_ADJUST, _STABLE, _UNUSUAL = 1, 2, 3
"""What the engine calls a record that is no insert."""
Keys: TypeAlias = Literal["all", "refused", "none"]
"""Of which records the key is kept."""

_Refused = dict[int, tuple[str, str]]
"""By the place of a record that is no element: reason and message."""


def decoding(
    rule: Rule, *, keys: Keys, once: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For `mapInArrow`: from (source, partition, offset, timestamp, key, headers, value).

    Headers are a string, `name=hex` with commas between them, `name=-` for null; null for none.
    `once` leaves out what a writer had written before, where a task has all of a partition's
    records in order.
    """

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first_time = _FirstTime()
        for each in batches:
            batch = first_time.of(each) if once else each
            origin = {name: batch.column(name) for name in ("source", "partition", "offset")}
            origin["timestamp"] = batch.column("timestamp")
            yield rows_of(
                batch.column("value"),
                rule,
                origin,
                key=batch.column("key"),
                headers=batch.column("headers"),
                keys=keys,
            )

    return decode


class _FirstTime:
    """Keeps the records of a task that are there for the first time."""

    def __init__(self) -> None:
        self._repeats: dict[tuple[str, int], Repeats] = {}  # by source and incarnation

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        headers = batch.column("headers")
        if headers.null_count == len(batch):
            return batch
        where = zip(
            batch.column("source").to_pylist(),
            batch.column("partition").to_pylist(),
            headers.to_pylist(),
            batch.column("value").to_pylist(),
            strict=True,
        )
        return batch.filter(pa.array([self._is_new(*each) for each in where], pa.bool_()))

    def _is_new(self, source: str, partition: int, text: str | None, value: bytes | None) -> bool:
        if text is None or SEQ_HEADER not in text:
            return True
        headers = headers_of(text)
        try:
            incarnation, _ = incarnation_of(headers)
            repeats = self._repeats.setdefault((source, incarnation), Repeats())
            return repeats.read(partition, headers, value) is not RecordReading.REPEAT
        except ElementError:  # it is refused when it is decoded
            return True


def rows_of(
    values: pa.BinaryArray,
    rule: Rule,
    origin: Mapping[str, pa.Array],
    *,
    key: pa.BinaryArray | None = None,
    headers: pa.StringArray | None = None,
    keys: Keys = "refused",
) -> pa.RecordBatch:
    """The rows of records; `origin` has source, partition, offset and timestamp."""
    count = len(values)
    wrong, incarnation, joining_at = _started_over(headers, count)
    element, refused = _worker(rule).decode(values, wrong)
    return pa.RecordBatch.from_pydict(
        {
            **origin,
            "key": key if keys == "all" and key is not None else _kept(key, refused, count),
            "incarnation": incarnation,
            "joining_at": joining_at,
            **dict(zip(_ELEMENT.names, element.columns, strict=True)),
            "reason": _placed({at: why for at, (why, _) in refused.items()}, count, pa.string()),
            "message": _placed({at: text for at, (_, text) in refused.items()}, count, pa.string()),
            "value": _kept(values, refused, count),
        }
    )


@lru_cache(maxsize=4)
def _worker(rule: Rule) -> "_Worker":
    """A worker process runs one task at a time."""
    return _Worker(rule, native=chosen_to_decode(engine_setting("auto")).is_native)


class _Worker:
    """Decodes batches by one rule."""

    def __init__(self, rule: Rule, *, native: bool = False) -> None:
        self._recogniser = Recogniser(rule)
        self._decoder = rule.decoder(native=native)

    def decode(
        self, values: pa.BinaryArray, wrong: Mapping[int, ElementError]
    ) -> tuple[pa.RecordBatch, _Refused]:
        """The elements of the records; those that are `wrong` already are not decoded."""
        if self._decoder.native is not None and len(values):
            return self._decode_natively(self._decoder.native, values, wrong)
        records: list[bytes | None] = values.to_pylist()
        found = self._recogniser.recognise(records)
        for at in wrong:
            found[at] = 0
        simple = np.frombuffer(found, bool)
        cut = _cut(values if simple.all() else values.filter(pa.array(simple)))
        if (illegal := _illegal(cut)).any():
            simple = simple.copy()
            simple[np.flatnonzero(simple)[illegal]] = False
            cut = cut.filter(pa.array(~illegal))
        others = np.flatnonzero(~simple)
        if not len(others):
            return cut, {}
        one_by_one = _Rows()
        for at in others.tolist():
            one_by_one.add(at, records[at], self._decoder, wrong.get(at))
        place = np.empty(len(records), np.int64)
        place[np.flatnonzero(simple)] = np.arange(len(cut))
        place[others] = np.arange(len(cut), len(records))
        return _joined(cut, one_by_one.batch(), place), one_by_one.refused

    def _decode_natively(
        self, native: "NativeDecoder", values: pa.BinaryArray, wrong: Mapping[int, ElementError]
    ) -> tuple[pa.RecordBatch, _Refused]:
        cut, kinds = _cut_natively(native, values)
        if values.null_count:
            kinds[np.asarray(values.is_null())] = _UNUSUAL
        kinds[[*wrong]] = _UNUSUAL
        others = np.flatnonzero(kinds == _UNUSUAL)
        if not len(others):
            return cut, {}
        one_by_one = _Rows()
        for at in others.tolist():
            one_by_one.add(at, values[at].as_py(), self._decoder, wrong.get(at))
        place = np.arange(len(values))
        place[others] = np.arange(len(values), len(values) + len(others))
        return _joined(cut, one_by_one.batch(), place), one_by_one.refused


def _joined(one: pa.RecordBatch, other: pa.RecordBatch, place: np.ndarray) -> pa.RecordBatch:
    """Of both, one behind the other, the rows at these places."""
    both = pa.Table.from_batches([one, other]).combine_chunks()
    [element] = both.take(pa.array(place)).combine_chunks().to_batches()
    return element


def _cut_natively(
    native: "NativeDecoder", values: pa.BinaryArray
) -> tuple[pa.RecordBatch, np.ndarray]:
    """The elements of the records by the engine, with a row of nulls for each that it leaves; and
    what each is, as in `engine/src/columns.rs`."""
    count = len(values)
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count + 1]
    first, last = int(ends[0]), int(ends[-1])
    texts = data.slice(first, last - first).to_pybytes() if last > first else b""
    kind_of, payload_ends, payloads, *times = native.columns(ends.tobytes(), texts)
    kinds = np.frombuffer(kind_of, np.uint8).copy()
    vs, vold, ve = (np.frombuffer(each, np.int64) for each in times)
    event, names = kinds < _STABLE, pa.array(["insert", "adjust", "stable"])
    columns = [
        names.take(pa.array(kinds, mask=kinds == _UNUSUAL)),
        pa.StringArray.from_buffers(
            count,
            pa.py_buffer(payload_ends),
            pa.py_buffer(payloads),
            pa.py_buffer(np.packbits(event, bitorder="little").tobytes()),
        ),
        pa.array(vs, mask=~event),
        pa.array(vold, mask=kinds != _ADJUST),
        pa.array(ve, mask=~event),
        pa.array(vs, mask=kinds != _STABLE),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ELEMENT), kinds


@dataclass(slots=True)
class _Rows:
    """Elements one by one."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    refused: _Refused = field(default_factory=dict)

    def add(
        self, at: int, record: bytes | None, decoder: WireDecoder, wrong: ElementError | None
    ) -> None:
        try:
            if wrong is not None:
                raise wrong
            element = decoder.decode(record)
        except ElementError as error:
            # A message may quote half of a character, which Arrow would not take.
            message = str(error).encode(errors="backslashreplace").decode()
            self.refused[at] = str(error.reason), message
            self.rows.append((None,) * 6)
            return
        if type(element) is Insert:
            self.rows.append(("insert", element.payload, element.vs, None, element.ve, None))
        elif type(element) is Adjust:
            times = element.vs, element.vold, element.ve
            self.rows.append(("adjust", element.payload, *times, None))
        else:
            self.rows.append(("stable", None, None, None, None, element.vc))  # type: ignore[union-attr]

    def batch(self) -> pa.RecordBatch:
        op, payload, *times = zip(*self.rows, strict=True)
        arrays = [pa.array(op, pa.string()), pa.array(payload, pa.binary()).view(pa.string())]
        arrays += [pa.array(each, pa.int64()) for each in times]
        return pa.RecordBatch.from_arrays(arrays, schema=_ELEMENT)


def _cut(values: pa.BinaryArray) -> pa.RecordBatch:
    """The elements of simple records (B1 of `formats.bulk`), in order."""
    texts = values.view(pa.string())
    adjust = np.asarray(pc.starts_with(texts, '{"op":"adjust"'))
    stable = np.asarray(pc.starts_with(texts, '{"op":"stable"'))
    head, tail = _halves(texts.filter(pa.array(~stable)), ',"vs":')
    begin, ve = _halves(tail, ',"ve":')
    moved = adjust[~stable]
    adjust_vs, vold = _halves(begin.filter(pa.array(moved)), ',"vold":')
    insert_vs = begin.filter(pa.array(~moved))
    _, vc = _halves(texts.filter(pa.array(stable)), ',"vc":')
    ops = np.where(stable, 2, np.where(adjust, 1, 0)).astype(np.int8)
    names = pa.array(["insert", "adjust", "stable"])
    vs = pa.concat_arrays([insert_vs, adjust_vs]).take(_places(~moved, moved))
    columns = [
        names.take(pa.array(ops)),
        pc.list_element(pc.split_pattern(head, ',"payload":', max_splits=1), 1).take(_at(~stable)),
        vs.cast(pa.int64()).take(_at(~stable)),
        _ends(vold).take(_at(adjust)),
        _ends(ve).take(_at(~stable)),
        _ends(vc).take(_at(stable)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ELEMENT)


def _halves(texts: pa.StringArray, separator: str) -> tuple[pa.StringArray, pa.StringArray]:
    """What is before and behind the last separator, which each text has."""
    both = pc.split_pattern(texts, separator, max_splits=1, reverse=True)
    return pc.list_element(both, 0), pc.list_element(both, 1)


def _ends(texts: pa.StringArray) -> pa.Int64Array:
    """Times that may be null, and may have the record's last brace behind them."""
    digits = pc.ascii_rtrim(texts, "}")
    return pc.if_else(pc.equal(digits, "null"), str(INFINITY), digits).cast(pa.int64())


def _at(there: np.ndarray) -> pa.Array:
    """For each row its place among those that are there; null for the others."""
    return pa.array(np.cumsum(there) - 1, mask=~there)


def _places(first: np.ndarray, second: np.ndarray) -> pa.Array:
    """For each row its place where all of the first kind come before those of the second."""
    return pa.array(np.where(first, np.cumsum(first) - 1, first.sum() + np.cumsum(second) - 1))


def _illegal(cut: pa.RecordBatch) -> np.ndarray:
    """Those whose times no element has: vs < ve for an insert, vs < vold and vs <= ve."""
    vs, vold, ve = cut.column("vs"), cut.column("vold"), cut.column("ve")
    empty = pc.and_(pc.less_equal(ve, vs), pc.or_(pc.less(ve, vs), pc.is_null(vold)))
    wrong = pc.or_(pc.fill_null(empty, False), pc.fill_null(pc.less_equal(vold, vs), False))
    return np.asarray(wrong)


def _started_over(
    headers: pa.StringArray | None, count: int
) -> tuple[dict[int, ElementError], pa.Array, pa.Array]:
    """Records whose headers are wrong, and the values of the others' headers."""
    wrong: dict[int, ElementError] = {}
    if headers is None or headers.null_count == count:
        return wrong, _zeros(count), pa.repeat(pa.scalar(START, pa.int64()), count)
    incarnation, joining_at = [0] * count, [START] * count
    for at, text in enumerate(headers.to_pylist()):
        if text is not None:
            try:
                incarnation[at], joining_at[at] = _incarnation_of(text)
            except ElementError as error:
                wrong[at] = error
    return wrong, pa.array(incarnation, pa.int64()), pa.array(joining_at, pa.int64())


def _zeros(count: int) -> pa.Int64Array:
    return pa.repeat(pa.scalar(0, pa.int64()), count)


@lru_cache(maxsize=1024)
def _incarnation_of(text: str) -> tuple[int, int]:
    """Of headers as `name=hex`, or `name=-` for one that is null, with commas between them."""
    headers = headers_of(text)
    found = incarnation_of(headers)
    seq_of(headers)  # as in `merge.decoding`, a record whose number is none is no element
    return found


def headers_of(text: str) -> list[tuple[str, bytes]]:
    """Headers out of the string by which they are handed over."""
    headers: list[tuple[str, Any]] = []
    for each in text.split(","):
        name, _, value = each.partition("=")
        headers.append((name, None if value == "-" else bytes.fromhex(value)))
    return headers


def _kept(values: pa.BinaryArray | None, refused: _Refused, count: int) -> pa.BinaryArray:
    """The values of refused records."""
    if values is None:
        return pa.nulls(count, pa.binary())
    return _placed({at: values[at].as_py() for at in refused}, count, pa.binary())


def _placed(some: Mapping[int, object], count: int, kind: pa.DataType) -> pa.Array:
    if not some:
        return pa.nulls(count, kind)
    return pa.array([some.get(at) for at in range(count)], kind)
