"""The query of a drill over equal events: what its facts are, and what it means over them."""

from itertools import pairwise

import pytest

from lmerge_service.core import Case
from lmerge_service.drills.equal_events import FACTS, LATENESS, facts_of, lives, present
from lmerge_service.drills.feed import PARTITIONS, disordered
from lmerge_service.drills.plan import Refused, plan_of
from lmerge_service.drills.replica import DrillStream
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.queries.properties import case
from lmerge_service.workloads.lifetime import final_tdb
from tests.replicas.running import meant

STREAM = DrillStream(began=1_000_000, finish="nowhere")
UNTIL = STREAM.began + 6_000


def test_the_query_means_what_the_drill_compares_it_with() -> None:
    facts = list(facts_of(STREAM.lives(UNTIL)))
    wanted = final_tdb(lives(STREAM.lives(UNTIL)))
    assert len(facts) == 2 * len(list(wanted))
    assert meant(present, {FACTS: facts}) == wanted


def test_it_is_a_bag_and_its_three_plans_have_the_case_of_one() -> None:
    events = list(final_tdb(lives(STREAM.lives(UNTIL))))
    assert len({*events}) < len(events) / 2
    plans = numbered_plans(present, 16)
    assert len(plans) >= 3
    assert case(plans[:3]) is Case.R4


def test_facts_are_out_of_order_and_none_is_late() -> None:
    sent = list(disordered(STREAM, UNTIL))
    assert sorted(map(str, (fact for _, fact in sent))) == sorted(
        map(str, facts_of(STREAM.lives(UNTIL)))
    )
    assert all(one <= two for (one, _), (two, _) in pairwise(sent)), "when they are due"
    for partition in range(PARTITIONS):
        times = [fact["time"] for _, fact in sent if fact["event"] % PARTITIONS == partition]
        highest, below = 0, []
        for time in times:
            highest = max(highest, time)
            below.append(highest - time)
        assert 0 < max(below) < LATENESS


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        ({"plans": {"a": 1}}, "a have plans of the query, and a, b, c are the replicas"),
        ({"plans": {"a": 0, "b": 1, "c": 2}}, r">= 1"),
        ({"plans": {"a": 1}, "replicas": {"a": {"lag": 1}}}, "runs a query has no manner"),
    ],
)
def test_plans_of_what_runs_no_query_are_refused(configuration: object, why: str) -> None:
    assert isinstance(configuration, dict)
    with pytest.raises(Refused, match=why):
        plan_of(configuration)
