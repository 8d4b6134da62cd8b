"""A selection by two plans: what they pass on, what they take for it, and what they leave out."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from lmerge_service.core import lmerge
from lmerge_service.demo.selection import (
    Selection,
    SelectionReplica,
    SelectionStep,
    select,
)
from lmerge_service.demo.whole_readings import Costs, whole
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import seed
from lmerge_service.kafka.topics import Topics
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import Query
from lmerge_service.queries.rewriting import variants
from lmerge_service.tdb import TDB, reconstitute
from lmerge_service.workloads.readings import STEP, elements_of, is_low, is_whole, readings

PLANS = {
    f"udf{number}": physical(Query(variant.plan))
    for number, variant in enumerate(variants(whole.plan))
}
COSTS = Costs(cheap=0.001, expensive=0.02)
GIVEN = list(readings(300, batch=(20, 60)))
ANSWER = TDB((each.payload, each.vs, each.ve) for each in GIVEN if each.whole)


@dataclass(frozen=True)
class Kept:
    """A record as it is read."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int = -1


@dataclass
class GivenPoint:
    point: int = START


RECORDS = [Kept(number, encode(element)) for number, element in enumerate(elements_of(GIVEN))]


def published(*steps: SelectionStep) -> list[Element]:
    decode = WireDecoder().decode
    return [decode(record.value) for step in steps for record in step.records]


def test_the_generator_knows_the_answer_and_batches_take_turns() -> None:
    assert [is_whole(each.payload) for each in GIVEN] == [each.whole for each in GIVEN]
    assert 0 < len(ANSWER) < len(GIVEN)
    low = [is_low(each.payload) for each in GIVEN]
    runs = "".join("l" if each else "h" for each in low).replace("lh", "l h").replace("hl", "h l")
    assert low[0]
    assert all(20 <= len(run) <= 60 for run in runs.split()[:-1])
    assert list(readings(300, batch=(20, 60))) == GIVEN


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_by_itself_publishes_the_answer_and_is_expensive_for_one_half(
    plan: str,
) -> None:
    selection = Selection(PLANS[plan], COSTS)
    steps = list(selection.steps(RECORDS))
    assert reconstitute(published(*steps)) == TDB(ANSWER, stable=INFINITY)
    low = sum(is_low(each.payload) for each in GIVEN)
    dear = low if plan == "udf0" else len(GIVEN) - low
    assert (selection.expensive, selection.cheap) == (dear, len(GIVEN) - dear)
    assert (selection.skipped, selection.ended) == (0, True)
    assert sum(step.seconds for step in steps) == pytest.approx(
        dear * COSTS.expensive + selection.cheap * COSTS.cheap
    )


def test_what_ends_below_the_point_is_left_out_and_costs_nothing() -> None:
    feedback = GivenPoint(point=100 * STEP)
    selection = Selection(PLANS["udf0"], COSTS, feedback)
    steps = list(selection.steps(RECORDS))
    left = [each for each in GIVEN if each.ve >= feedback.point]
    assert selection.skipped == len(GIVEN) - len(left) == 99, "the one that ends there is not below"
    kept = [(each.payload, each.vs, each.ve) for each in left if each.whole]
    assert reconstitute(published(*steps)) == TDB(kept, stable=INFINITY)
    stables = [each for each in published(*steps) if isinstance(each, Stable)]
    assert stables == [each for each in elements_of(GIVEN) if isinstance(each, Stable)], "as ever"


def test_a_point_that_rises_counts_from_the_next_step_on() -> None:
    feedback = GivenPoint()
    selection = Selection(PLANS["udf0"], COSTS, feedback)
    steps = selection.steps(RECORDS)
    next(steps)
    assert (selection.expensive, selection.skipped) == (1, 0), "a dear reading is a step"
    feedback.point = 11 * STEP
    next(steps)
    assert (selection.expensive, selection.skipped) == (2, 9)


def test_two_plans_that_heed_leave_out_most_that_is_dear_and_nobody_is_to_blame() -> None:
    """The plans as they are, in turn by the time that they take; points arrive at once."""
    merge, out = lmerge("R3"), list[Element]()
    feedback = {plan: GivenPoint() for plan in PLANS}
    selections = {plan: Selection(PLANS[plan], COSTS, feedback[plan]) for plan in PLANS}
    running = {plan: each.steps(RECORDS) for plan, each in selections.items()}
    at = dict.fromkeys(PLANS, 0.0)
    for plan in PLANS:
        merge.attach(plan)
    while running:
        plan = min(running, key=lambda each: at[each])
        step = next(running[plan], None)
        if step is None:
            del running[plan]
            continue
        at[plan] += step.seconds
        out += merge.process_batch(plan, published(step))
        for each in PLANS:
            feedback[each].point = merge.max_stable
    assert merge.breaches() == []
    assert reconstitute(out) == TDB(ANSWER, stable=INFINITY)
    alone = len(GIVEN) * (COSTS.cheap + COSTS.expensive) / 2
    assert max(at.values()) < alone / 2
    assert sum(each.skipped for each in selections.values()) > len(GIVEN) / 2


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (encode(Adjust(GIVEN[0].payload, 0, 10, 20)), "offset 7 of the readings: a reading is re"),
        (
            encode(Insert(b'{"x":"1"}', 0, 10)),
            "offset 7 of the readings: no reading: wrong_type (x)",
        ),
        (encode(Insert(b"[1]", 0, 10)), "offset 7 of the readings: no reading: not_a_fact (None)"),
        (b"{", "offset 7 of the readings: not JSON"),
        (None, "offset 7 of the readings: not JSON"),
    ],
)
def test_what_is_no_reading_is_one_line(value: bytes | None, error: str) -> None:
    with pytest.raises(StateError) as raised:
        list(Selection(PLANS["udf0"], COSTS).steps([Kept(7, value)]))
    assert str(raised.value).startswith(error)
    assert "\n" not in str(raised.value)


def test_a_replica_reads_a_topic_and_begins_anew_as_the_next_incarnation(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    given, to = topic_name("readings"), topic_name("udf0")
    connection = Connection(bootstrap)
    replica = SelectionReplica(
        plan=PLANS["udf0"],
        connection=connection,
        readings=given,
        to=to,
        name="udf0",
        costs=Costs(cheap=0, expensive=0.000_1),
    )

    async def play() -> None:
        with pytest.raises(ConfigurationError, match=f"there is no topic {given}"):
            await select(replica)
        await seed(connection, given, elements_of(GIVEN))
        began: list[int] = []
        for _ in range(2):
            selection = await select(replica, begun=began.append)
            assert (selection.ended, selection.kept) == (True, len(ANSWER))
        assert began == [0, 1]
        async with Topics(connection) as topics:
            await topics.ensure(wide := topic_name("wide"), partitions=2)
        with pytest.raises(ConfigurationError, match="has 2 partitions: readings in order need"):
            await select(replace(replica, readings=wide))

    asyncio.run(play())
