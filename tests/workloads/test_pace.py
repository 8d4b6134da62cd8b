"""When a disturbed replica sends: what was asked for on average, and never out of order."""

from itertools import islice, pairwise

import pytest

from lmerge_service.workloads.pace import due

RATE = 5_000.0


def times(count: int, **options: object) -> list[float]:
    return list(islice(due(RATE, **options), count))  # type: ignore[arg-type]


def test_without_disturbance_it_is_steady() -> None:
    assert times(4) == [0.0, 1 / RATE, 2 / RATE, 3 / RATE]


def test_stalls_are_so_many_and_so_long_and_what_has_queued_goes_out_at_once() -> None:
    found = times(100_000, stalls=0.004)
    waits = [later - earlier for earlier, later in pairwise(found)]
    assert min(waits) >= 0
    long = [wait for wait in waits if wait > 0.005]
    assert len(long) == pytest.approx(400, rel=0.2)
    assert sum(long) / len(long) == pytest.approx(0.020, rel=0.1)
    assert waits.count(0.0) > 10_000, "what has queued"
    assert found[-1] == pytest.approx(100_000 / RATE, abs=0.5), "and it catches up"


def test_while_it_is_congested_a_thousand_a_second_get_through() -> None:
    found = times(100_000, congested=[(5, 7)])
    through = sum(5 <= at < 7 for at in found)
    assert through == pytest.approx(2_000, rel=0.05)
    assert sum(at < 5 for at in found) == 25_000
    assert sum(7 <= at < 7.01 for at in found) > 7_000, "what has queued"
    assert found[-1] == 99_999 / RATE


def test_equal_seeds_are_equal_times() -> None:
    assert times(5_000, stalls=0.01, seed=3) == times(5_000, stalls=0.01, seed=3)
    assert times(5_000, stalls=0.01, seed=3) != times(5_000, stalls=0.01, seed=4)
