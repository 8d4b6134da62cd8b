"""Which rows are late is a property of the partition: however it is cut into pieces and batches."""

from collections.abc import Iterator
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START
from lmerge_service.replicas.lateness import TimeReached
from lmerge_service.spark.queries.row_lateness import FactsLateness, RowReader, RowSummary

NO_TIME = START
TIMES = st.lists(st.one_of(st.integers(-50, 50), st.just(NO_TIME)), max_size=60)


def piece(times: list[int], lateness: int, first: int = 0, rng: Random | None = None) -> RowSummary:
    """Read in blocks of any size."""
    reading = RowReader(lateness)
    for part in _cut(list(enumerate(times, first)), rng or Random(0)):
        offsets = np.array([offset for offset, _ in part], np.int64)
        reading.take(offsets, np.array([time for _, time in part], np.int64))
    found = reading.piece()
    assert found is not None
    return found


def _cut(rows: list[tuple[int, int]], rng: Random) -> Iterator[list[tuple[int, int]]]:
    while rows:
        size = rng.randrange(1, len(rows) + 1)
        yield rows[:size]
        rows = rows[size:]


def test_the_example_of_the_module() -> None:
    first, second = piece([20, 31, 15, 22], 10), piece([19, 40, 29], 10, first=4)
    assert (first.high, first.late) == (31, [2])
    assert (second.high, second.late) == (40, [6])
    lateness = FactsLateness(10, 1)
    lateness.begin({0: [second, first]})
    times = [20, 31, 15, 22, 19, 40, 29]
    counts = [lateness.counts(0, offset, time) for offset, time in enumerate(times)]
    assert counts == [True, True, False, True, False, True, False]
    assert lateness.watermark == 30


def test_the_boundary_a_row_exactly_so_much_later_counts() -> None:
    assert piece([10, 0], 10).late == []
    assert piece([10, -1], 10).late == [1]
    lateness = FactsLateness(10, 1, [10])
    lateness.begin({0: [piece([0, -1], 10)]})
    assert [lateness.counts(0, 0, 0), lateness.counts(0, 1, -1)] == [True, False]


@given(times=TIMES, late=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_what_is_late_does_not_depend_on_pieces_and_batches(
    times: list[int], late: int, seed: int
) -> None:
    rng = Random(seed)
    highest, expected = START, []
    for time in times:
        expected.append(highest == START or time >= highest - late)
        highest = max(highest, time)
    reached = TimeReached(late)
    timed = [place for place, time in enumerate(times) if time > NO_TIME]
    assert [reached.counts(times[place]) for place in timed] == [expected[place] for place in timed]
    lateness = FactsLateness(late, 1)
    found = []
    for batch in _cut(list(enumerate(times)), rng):
        pieces = [
            piece([time for _, time in part], late, part[0][0], rng) for part in _cut(batch, rng)
        ]
        assert sum(each.rows for each in pieces) == len(batch)
        rng.shuffle(pieces)
        before = lateness.watermark
        lateness.begin({0: pieces})
        assert lateness.watermark >= before
        for offset, time in batch:
            counts = lateness.counts(0, offset, time)
            assert not (counts and time > NO_TIME and time < before), "L2"
            found.append(counts)
    assert [found[place] for place in timed] == [expected[place] for place in timed]
    assert lateness.watermark == (START if highest == START else highest - late)
    assert lateness.watermark == reached.watermark


def test_the_watermark_is_the_least_and_waits_for_partitions_without_facts() -> None:
    lateness = FactsLateness(5, 3)
    lateness.begin({0: [piece([20], 5)], 2: [piece([30], 5)]})
    assert lateness.watermark == START
    lateness.begin({1: [piece([12], 5)]})
    assert lateness.watermark == 7
    lateness.begin({1: [piece([INFINITY], 5)]})
    assert lateness.watermark == 15
    lateness.begin({number: [piece([INFINITY], 5)] for number in (0, 2)})
    assert lateness.watermark == INFINITY
    lateness.begin({1: [piece([99], 5, first=1)]})
    assert not lateness.counts(1, 1, 99), "behind the end"


def test_rows_without_a_time_are_counted_and_change_nothing() -> None:
    read = piece([NO_TIME, 7, NO_TIME, 6], 0)
    assert (read.rows, read.refused, read.high, read.late) == (4, 2, 7, [3])
    assert RowReader(0).piece() is None
