"""Numbered plans: the same in every process, none twice, and as different as they can be."""

import subprocess
import sys
from random import Random

from lmerge_service.elements import INFINITY
from lmerge_service.queries import logical
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import count, hopping, sum_
from lmerge_service.queries.plan_numbering import numbered_plans, physical_plans, summary
from tests.queries.composed import SOURCES, drawn
from tests.seeds import seeds

points, one, two = SOURCES["points"], SOURCES["one"], SOURCES["two"]
MOVING = points.windows(hopping(6, every=2)).by("k").aggregate(n=count())


def test_the_first_is_the_query_as_it_is_written() -> None:
    assert numbered_plans(MOVING)[0] == physical(MOVING)
    assert numbered_plans(points)[0] == physical(points)


def test_the_second_differs_in_all_that_it_can() -> None:
    second = numbered_plans(MOVING)[1]
    assert summary(second) == "on_close, panes"


def test_rows_alone_leave_little_to_choose() -> None:
    assert list(map(summary, numbered_plans(one.select("k")))) == [
        "on_update",
        "on_update, sources aligned",
        "on_update, output aligned",
    ]


def test_a_plan_may_emit_at_several_levels() -> None:
    query = one.by("k").aggregate(n=count()).aggregate(n=sum_("n"))
    plans = list(physical_plans(query))
    assert summary(plans[-1]) == "on_close and on_watermark"
    assert len(plans) == len(set(plans))
    assert sum(plan.plan == query.plan for plan in plans) == 4 * 4 + 2


@seeds(3, most=30)
def test_no_two_numbers_are_of_one_plan(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5))
        plans = numbered_plans(query)
        assert plans[0] == physical(query)
        assert len({plan.fingerprint for plan in plans}) == len(plans) <= 16
        assert plans[:3] == numbered_plans(query, most=3)


def test_numbers_are_the_same_in_every_process() -> None:
    code = (
        "from random import Random\n"
        "from lmerge_service.queries.plan_numbering import numbered_plans\n"
        "from tests.queries.composed import drawn\n"
        "for seed in range(5):\n"
        "    for plan in numbered_plans(drawn(Random(seed), 3)): print(plan.fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "77")
    }  # fmt: skip
    assert len(found) == 1


def test_what_waits_is_the_sources_or_the_output() -> None:
    found = {plan.choices for plan in physical_plans(one.union(two))}
    aligned = [{node for node, choice in each if choice.align == INFINITY} for each in found]
    union = one.union(two).plan
    assert sorted(map(len, aligned)) == [0, 1, 2]
    assert {union} in aligned
    assert set(logical.sources(union).values()) in aligned
