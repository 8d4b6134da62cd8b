"""Replays of repetition: what a replica publishes again must not undo what it has declared final.

A producer repeats a portion that it was not sure of, or starts over in silence. What falls below
the stable of its own partition is a breach and ignored. But an adjust may have both ends beyond
that stable though the replica's own event is gone, or ended before it: then no legal
element about it is left. Where the output is as far as the replica it does no harm; where it is
behind (several partitions, a lag, a quorum) the replica's adjust would be followed.
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
    ("revisions", "truth"), [(GONE, TDB()), (SHORT, TDB([(K, 5, 7)]))], ids=["removed", "final"]
)
def test_what_one_partition_repeats_does_not_reach_an_output_that_is_behind(
    revisions: list[Element], truth: TDB
) -> None:
    bench = Bench("a", partitions=2)
    for element in [Insert(K, 5, 20), *revisions, Stable(10), *revisions]:
        bench.publish_bytes("a", encode(element), partition=0)
    bench.publish_bytes("a", encode(Stable(10)), partition=1)
    bench.publish("a", Stable(INFINITY))
    assert_valid(bench.report(reference=truth))


@pytest.mark.parametrize("policy", [Policy(stable=lag(100)), Policy(stable=quorum(2))], ids=str)
@pytest.mark.parametrize(
    ("revisions", "truth"), [(GONE, TDB()), (SHORT, TDB([(K, 5, 7)]))], ids=["removed", "final"]
)
def test_what_a_replica_repeats_does_not_reach_an_output_that_waits(
    policy: Policy, revisions: list[Element], truth: TDB
) -> None:
    bench = Bench("a", "b", policy=policy)
    bench.publish("a", Insert(K, 5, 20), *revisions, Stable(10), *revisions)
    bench.publish("a", Stable(INFINITY))
    bench.publish("b", Insert(K, 5, 20), *revisions, Stable(INFINITY))
    assert_valid(bench.report(reference=truth))
