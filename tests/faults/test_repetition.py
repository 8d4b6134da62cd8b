"""Replays of repetition: what a replica says again must not undo what it has declared final.

A producer repeats a portion that it was not sure of, or starts over in silence. What falls below
the stable of its own partition is a breach and ignored. But an adjust may have both ends beyond
that stable though the replica's own event is gone, or ended before it: then nothing can legally
be said of it any more. Where the output is as far as the replica it does no harm; where it is
behind (several partitions, a lag, a quorum) the replica's word would be followed.
"""

import pytest

from lmerge_service.core import Policy, lag, quorum
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.tdb import TDB
from tests.faults.bench import Bench, assert_valid

K = b'"k"'
GONE: list[Element] = [Adjust(K, 5, 20, 15), Adjust(K, 5, 15, 5)]
SHORT: list[Element] = [Adjust(K, 5, 20, 15), Adjust(K, 5, 15, 7)]


@pytest.mark.parametrize(
    ("told", "truth"), [(GONE, TDB()), (SHORT, TDB([(K, 5, 7)]))], ids=["removed", "final"]
)
def test_what_one_partition_repeats_does_not_reach_an_output_that_is_behind(
    told: list[Element], truth: TDB
) -> None:
    bench = Bench("a", partitions=2)
    for element in [Insert(K, 5, 20), *told, Stable(10), *told]:
        bench.hear_bytes("a", encode(element), partition=0)
    bench.hear_bytes("a", encode(Stable(10)), partition=1)
    bench.hear("a", Stable(INFINITY))
    assert_valid(bench.report(reference=truth))


@pytest.mark.parametrize("policy", [Policy(stable=lag(100)), Policy(stable=quorum(2))], ids=str)
@pytest.mark.parametrize(
    ("told", "truth"), [(GONE, TDB()), (SHORT, TDB([(K, 5, 7)]))], ids=["removed", "final"]
)
def test_what_a_replica_repeats_does_not_reach_an_output_that_waits(
    policy: Policy, told: list[Element], truth: TDB
) -> None:
    bench = Bench("a", "b", policy=policy)
    bench.hear("a", Insert(K, 5, 20), *told, Stable(10), *told)
    bench.hear("a", Stable(INFINITY))
    bench.hear("b", Insert(K, 5, 20), *told, Stable(INFINITY))
    assert_valid(bench.report(reference=truth))
