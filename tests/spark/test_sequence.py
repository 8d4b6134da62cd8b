"""A stream's records in order become intervals that open and close, however they are cut."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from lmerge_service.elements import START, Stable
from lmerge_service.spark.table.progress import Progress, by_partition, joined
from lmerge_service.spark.table.sequence import CLOSED, MARK, OPENED, TAKEN, sequencing
from lmerge_service.tdb import TDB
from tests.spark.histories import Record, history, known_by_offset

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        *((name, pa.int64()) for name in ("offset", "time", "incarnation")),
        *((name, pa.string()) for name in ("op", "payload")),
        *((name, pa.int64()) for name in ("vs", "vold", "ve", "vc")),
        *((name, pa.string()) for name in ("reason", "message")),
    ]
)
assert tuple(SCHEMA.names) == TAKEN


def rows(records: list[Record]) -> list[dict[str, Any]]:
    return [
        {
            "partition": each.partition,
            "offset": each.offset,
            "time": each.time,
            "incarnation": each.incarnation,
            **msgspec.structs.asdict(each.element),
            "op": type(each.element).__name__.lower(),
        }
        for each in records
    ]


def sequenced(
    records: list[Record], cuts: list[int], reached: Mapping[int, Progress]
) -> tuple[list[dict[str, Any]], list[Progress]]:
    """Intervals and marks; the records come in batches that end at `cuts`."""
    places = sorted({0, len(records), *(cut % (len(records) + 1) for cut in cuts)})
    batches = (
        pa.RecordBatch.from_pylist(rows(records[first:end]), SCHEMA)
        for first, end in pairwise(places)
    )
    sequenced_rows = [
        row for batch in sequencing("t", reached)(batches) for row in batch.to_pylist()
    ]
    marks = [
        msgspec.json.decode(row["payload"], type=Progress)
        for row in sequenced_rows
        if row["side"] == MARK
    ]
    return [row for row in sequenced_rows if row["side"] != MARK], marks


@example(126, True, [])  # the last records of a partition are of an earlier incarnation
@given(st.integers(0, 2**32), st.booleans(), st.lists(st.integers(0, 999), max_size=6))
def test_opened_less_closed_is_the_tdb_and_marks_show_how_far_it_is(
    seed: int, restarting: bool, cuts: list[int]
) -> None:
    """Q1, in one go and in two."""
    records = history(seed, 3, restarting=restarting)
    middle = {each.partition: each.offset for each in records if (each.offset + seed) % 3}
    first = [each for each in records if each.offset <= middle.get(each.partition, -1)]
    rest = [each for each in records if each not in set(first)]
    sequenced_rows, marks = sequenced(first, cuts, {})
    more, further = sequenced(rest, cuts, by_partition(marks))
    for prefix, intervals in ((first, sequenced_rows), (records, sequenced_rows + more)):
        last = max((each.incarnation for each in prefix), default=0)
        opened, closed = (
            TDB(
                (row["payload"], row["vs"], row["ve"])
                for row in intervals
                if row["side"] == side and row["incarnation"] == last
            )
            for side in (OPENED, CLOSED)
        )
        assert not closed._events - opened._events
        ends = {each.partition: each.offset for each in prefix}
        assert TDB((opened._events - closed._events).elements()) == known_by_offset(prefix, ends)
    progress = joined([*marks, *further])
    for at, where in by_partition(progress).items():
        own = [each for each in records if each.partition == at]
        assert where.next == max(each.offset for each in own) + 1
        assert where.incarnation == max(each.incarnation for each in own)
        assert where.time == max(each.time for each in own)
        assert where.stable == max(
            (
                each.element.vc
                for each in own
                if isinstance(each.element, Stable) and each.incarnation == where.incarnation
            ),
            default=START,
        )
    for each in progress:
        before = [
            record
            for record in records
            if record.partition == each.partition and record.offset <= each.begun_offset
        ]
        assert [record.incarnation for record in before].index(each.incarnation) == len(before) - 1
        assert each.begun_time == max(record.time for record in before)


@given(st.lists(st.builds(Progress, *(st.integers(0, 2) for _ in range(8))), max_size=8), st.data())
def test_progress_is_joined_in_any_order_and_in_any_parts(
    rows: list[Progress], data: st.DataObject
) -> None:
    """P1."""
    whole = joined(rows)
    assert len({(each.partition, each.incarnation) for each in rows}) == len(whole)
    assert joined(data.draw(st.permutations(rows))) == whole
    cut = data.draw(st.integers(0, len(rows)))
    assert joined([*joined(rows[:cut]), *joined(rows[cut:])]) == whole
