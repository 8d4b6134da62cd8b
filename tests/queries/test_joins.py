"""Inner and outer joins against their meaning, their rules, relational joins and the vectors."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.queries.meaning import joins as meaning
from lmerge_service.queries.operators.joins import Join
from lmerge_service.queries.operators.outer_joins import OuterJoin
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.tdb import TDB
from tests.queries.promises import (
    Make,
    Run,
    check_batches,
    check_promises,
    snapshot_at,
    tdb_of,
)
from tests.queries.streams import interleaved, legal_stream, without_revisions
from tests.queries.vectors import agrees, cases, elements, inputs, outputs_of, run, tdb
from tests.seeds import seeds

ROWS = (("k", 1), ("k", 2), ("m", 1), (None, 1))


def key(row: Any) -> Any:
    return row[0]


def below(left: Any, right: Any) -> bool:
    return bool(left[1] < right[1])


def joined(left: Any, right: Any) -> Any:
    return (*left, right[1])


def padded(row: Any) -> Any:
    return (*row, None)


FORMS: dict[str, dict[str, Any]] = {
    "inner": {},
    "inner_residual": {"residual": below},
    "left": {"left_only": padded},
    "left_residual": {"left_only": padded, "residual": below},
    "right": {"right_only": padded},
    "full": {"left_only": padded, "right_only": padded},
    "full_residual": {"left_only": padded, "right_only": padded, "residual": below},
}
each_form = pytest.mark.parametrize("form", FORMS)
each_inner = pytest.mark.parametrize("form", [form for form in FORMS if "inner" in form])


def make_and_means(form: str) -> tuple[Make, Callable[..., TDB]]:
    given = {"left_key": key, "right_key": key, "combine": joined, **FORMS[form]}
    if "inner" in form:
        return lambda: Join(**given), lambda one, two: meaning.join(one, two, **given)
    return lambda: OuterJoin(**given), lambda one, two: meaning.outer_join(one, two, **given)


def drawn(seed: int) -> tuple[Random, list[tuple[int, Element]]]:
    rng = Random(seed)
    streams = (legal_stream(rng, payloads=ROWS, length=10) for _ in range(2))
    return rng, interleaved(rng, *streams)


def least(run: Run) -> int:
    return min(tdb.stable for tdb in run.inputs)


def kept_by_join(run: Run) -> int:
    """Side j: ve >= c_k, k the other side."""
    held = 0
    for side, other in (run.inputs, run.inputs[::-1]):
        held += sum(
            e.ve >= other.stable and other.stable < INFINITY and key(e.payload) is not None
            for e in side
        )
    return held


def kept_by_parts(form: str) -> Callable[[Run], int]:
    """That of the join; and of each anti-join, both sides: ve >= m."""

    def retained(run: Run) -> int:
        alive = sum(
            e.ve >= least(run) and key(e.payload) is not None for tdb in run.inputs for e in tdb
        )
        antis = sum(name in FORMS[form] for name in ("left_only", "right_only"))
        return kept_by_join(run) + antis * (alive if least(run) < INFINITY else 0)

    return retained


@each_form
@seeds(25)
def test_promises(form: str, seeds: range) -> None:
    make, means = make_and_means(form)
    for seed in seeds:
        rng, feeds = drawn(seed)
        check_promises(make, means, feeds, stable=least, retained=kept_by_parts(form))
        check_batches(make, means, feeds, rng)


@each_inner
@seeds(40)
def test_exactly_what_the_retention_rule_names_is_held(form: str, seeds: range) -> None:
    make, _ = make_and_means(form)
    for seed in seeds:
        _, feeds = drawn(seed)
        operator = Run(make)
        for port, element in feeds:
            operator.feed(element, port)
            assert len(operator.operator) == kept_by_join(operator)


@each_form
@seeds(20)
def test_every_snapshot_is_the_join_of_snapshots(form: str, seeds: range) -> None:
    make, _ = make_and_means(form)
    given = FORMS[form]
    for seed in seeds:
        _, feeds = drawn(seed)
        both = Run(make)
        for port, element in feeds:
            both.feed(element, port)
        for t in range(20):
            one, two = (snapshot_at(tdb, t) for tdb in both.inputs)
            assert snapshot_at(both.output, t) == relational(one, two, **given)


def relational(
    left: Counter[Any],
    right: Counter[Any],
    residual: Callable[[Any, Any], bool] = lambda p, q: True,
    left_only: Callable[[Any], Any] | None = None,
    right_only: Callable[[Any], Any] | None = None,
) -> Counter[Any]:
    """The join of two bags."""

    def fits(p: Any, q: Any) -> bool:
        return key(p) is not None and key(p) == key(q) and residual(p, q)

    found: Counter[Any] = Counter()
    for p in left.elements():
        found.update(joined(p, q) for q in right.elements() if fits(p, q))
        if left_only and not any(fits(p, q) for q in right):
            found[left_only(p)] += 1
    for q in right.elements():
        if right_only and not any(fits(p, q) for p in left):
            found[right_only(q)] += 1
    return found


@each_form
@seeds(20)
def test_revisions_leave_no_trace(form: str, seeds: range) -> None:
    make, _ = make_and_means(form)
    for seed in seeds:
        rng = Random(seed)
        revised = [legal_stream(rng, payloads=ROWS, length=10) for _ in range(2)]
        finals = [without_revisions(stream) for stream in revised]
        outputs = []
        for streams in (revised, finals):
            both = Run(make)
            for port, element in interleaved(rng, *streams):
                both.feed(element, port)
            outputs.append(both.output)
        assert outputs[0] == outputs[1]


@each_form
@seeds(15)
def test_what_ended_before_is_not_needed_after(form: str, seeds: range) -> None:
    """need(T) = T: with the events that end at T or later the rows that do are the same, but for
    starts before T of padded rows."""
    make, _ = make_and_means(form)
    for seed in seeds:
        rng = Random(seed)
        whole = [tdb_of(legal_stream(rng, payloads=ROWS, length=10)) for _ in range(2)]
        until = rng.randrange(15)
        known = [TDB(event for event in tdb if event.ve >= until) for tdb in whole]
        found, wanted = (run(make(), *tdbs) for tdbs in (known, whole))
        exact = "inner" in form
        assert late_rows(found, until, exact) == late_rows(wanted, until, exact)


def late_rows(tdb: TDB, until: int, exact: bool) -> TDB:
    return TDB(
        (p, vs if exact or vs >= until else until - 1, ve) for p, vs, ve in tdb if ve >= until
    )


def test_an_end_that_grows_again_is_found_by_what_comes_later() -> None:
    both = Join(key, key, combine=joined)
    both.process_batch([Insert(("k", 1), 1, 4), Stable(4)])
    both.process(Stable(5), port=1)
    assert len(both) == 0
    assert both.process(Adjust(("k", 1), 1, 4, 9)) == []
    assert both.process(Insert(("k", 2), 5, 7), port=1) == [Insert(("k", 1, 2), 5, 7)]


def test_what_ends_at_the_other_sides_stable_is_kept_beside_what_goes() -> None:
    both = Join(key, key, combine=joined)
    both.process_batch([Insert(("k", 1), 1, 4), Insert(("k", 1), 1, 5)])
    both.process(Stable(5), port=1)
    assert len(both) == 1
    assert both.process(Insert(("k", 2), 5, 7), port=1) == []
    assert both.process(Adjust(("k", 1), 1, 5, 6)) == [Insert(("k", 1, 2), 5, 6)]


def test_of_equal_events_each_is_adjusted_by_itself() -> None:
    both = Join(key, key, combine=joined)
    both.process_batch([Insert(("k", 1), 1, 9), Insert(("k", 1), 1, 9), Insert(("k", 1), 1, 9)])
    both.process(Adjust(("k", 1), 1, 9, 5))
    assert both.process(Insert(("k", 2), 7, 8), port=1) == [Insert(("k", 1, 2), 7, 8)] * 2


def test_what_only_a_part_can_know_to_be_illegal_changes_no_part() -> None:
    """The inner join has no left events that end before the right side's stable."""
    left = OuterJoin(key, key, left_only=padded)
    left.process_batch([Insert(("k", 2), 1, 20), Stable(9)], port=1)
    wrong = Adjust(("k", 1), 1, 4, 12)
    assert left.process(wrong) == []
    assert left.refused == [(0, BreachKind.UNKNOWN_EVENT, wrong)]
    assert left.process(Insert(("k", 3), 10, 11), port=1) == []


def test_what_the_own_state_shows_to_be_illegal_changes_nothing() -> None:
    for make in (make_and_means("inner")[0], make_and_means("full")[0]):
        both = make()
        both.process_batch([Insert(("k", 1), 1, 8), Insert(("k", 1), 2, 8)])
        both.process(Insert(("k", 2), 1, 9), port=1)
        for wrong in (
            Adjust(("k", 1), 1, 7, 5),
            Adjust(("k", 1), 3, 8, 5),
            Adjust(("k", 3), 1, 8, 5),
            Adjust(("z", 1), 1, 8, 1),
        ):
            assert both.process(wrong) == []
            assert both.refused.pop() == (0, BreachKind.UNKNOWN_EVENT, wrong)
            both.check()
        assert both.process(Adjust(("k", 1), 1, 8, 1)) != []


def fragile(left: Any, right: Any) -> bool:
    """A pure function that raises for some payloads."""
    if POISON in (left, right):
        raise ZeroDivisionError
    return below(left, right)


POISON = ("k", -1)


@pytest.mark.parametrize("form", ["inner_residual", "full_residual"])
@seeds(20)
def test_a_batch_in_which_user_code_raises_changes_nothing(form: str, seeds: range) -> None:
    _, means = make_and_means(form)
    given = {"combine": joined, **FORMS[form], "residual": fragile}
    raised = 0

    def make() -> Operator:
        return (Join if "inner" in form else OuterJoin)(key, key, **given)

    for seed in seeds:
        rng, feeds = drawn(seed)
        both, tdbs, found = make(), [TDB(), TDB()], TDB()
        for port, element in feeds:
            trial = make()
            trial.restore(both.snapshot())
            batch = [Insert(("k", 1), 20, 30), element, Insert(POISON, rng.randrange(9, 15), 30)]
            try:
                trial.process_batch(batch, port)
            except ZeroDivisionError:
                raised += 1
                assert (len(trial), trial.stables) == (len(both), both.stables)
                trial.check()
                both = trial  # and goes on
            tdbs[port].apply(element)
            for emitted in both.process(element, port):
                found.apply(emitted)
            assert found == means(*tdbs)
    assert raised > len(seeds) // 2


# --- cost -----------------------------------------------------------------------------------------


def work(events: int, keys: int) -> float:
    """Entries looked at per element: each event has one partner, all of a key being alive."""
    both = Join(key, key, combine=joined)
    for at in range(events):
        both.process(Insert((at % keys, at), 2 * at, 2 * at + 1), port=0)
    both.touched = 0
    emitted = 0
    for at in range(events):
        emitted += len(both.process(Insert((at % keys, 0), 2 * at, 2 * at + 1), port=1))
        if at % 16 == 0:
            both.process(Stable(2 * at), port=0)
    assert emitted == events
    return both.touched / events


def test_a_probe_looks_at_what_ends_behind_it_only() -> None:
    """With as many events of its key, whatever there is of others."""
    few, many = work(200, 100), work(800, 400)
    assert many < 1.1 * few < 6


def test_a_probe_does_not_look_at_what_has_ended() -> None:
    both = Join(key, key, combine=joined)
    both.process_batch([Insert(("k", at), at, at + 1) for at in range(800)])
    assert len(both.process(Insert(("k", 0), 799, 800), port=1)) == 1
    assert both.touched == 1


def test_an_adjust_looks_at_what_lies_between_its_ends() -> None:
    both = Join(key, key, combine=joined)
    both.process_batch([Insert(("k", at), at, at + 1) for at in range(800)])
    both.process(Insert(("k", 0), 0, 800), port=1)
    both.touched = 0
    assert len(both.process(Adjust(("k", 0), 0, 800, 790), port=1)) == 10
    assert both.touched == 10


def test_a_stable_costs_what_it_makes_final() -> None:
    for alive in (100, 400):
        both = Join(key, key, combine=joined)
        both.process_batch([Insert((at, 1), 1, 50) for at in range(alive)])
        both.process_batch([Insert((at, 1), 1, 5) for at in range(10)])
        both.process_batch([Insert((at, 1), 2, 50) for at in range(alive)], port=1)
        both.touched = 0
        for point in range(2, 20):
            both.process(Stable(point), port=0)
            both.process(Stable(point), port=1)
        assert both.touched == 10


# --- vectors --------------------------------------------------------------------------------------

CEDR = [case for case in cases("speculative", "ce-join-") if "steps" in case["given"]]


@pytest.mark.parametrize("case", CEDR, ids=lambda case: case["id"])
def test_cedr_join(case: dict[str, Any]) -> None:
    expect = [elements(rows) for rows in case["expect"]["outputs"]]
    if case["id"] == "ce-join-cti":  # it repeats the stable of the slower side: that is no change
        expect[3] = []
    both = Join(lambda p: p, lambda p: p)
    emitted = outputs_of(both, case["given"])
    assert emitted == expect
    assert tdb_of([e for step in emitted for e in step]) == tdb(case["expect"]["cht"])
    state = case["expect"]["state"]
    if case["id"] == "ce-join-full-input":  # an event that was fully retracted is not kept
        state = [[], state[1]]
    for side, held in zip(both._sides, state, strict=True):
        events = [(k, vs, ve) for k, es in side.events.items() for ve, vs, each in es
                  for n in each.values() for _ in range(n)]  # fmt: skip
        assert TDB(events) == tdb(held)


def test_cedr_join_of_tables() -> None:
    (case,) = cases("speculative", "ce-join-def4")
    both = Join(lambda p: p, lambda p: p)
    found = run(both, tdb(case["given"]["left"]), tdb(case["given"]["right"]))
    assert found == tdb(case["expect"]["cht"])


def test_pipes_join() -> None:
    equal = Join(lambda p: p, lambda p: p, combine=lambda p, q: p)
    assert agrees(run(equal, *inputs("P11.6")), "P11.6")
    cross = Join(lambda p: 0, lambda p: 0, combine=lambda p, q: f"{p}.{q}")
    assert agrees(run(cross, *inputs("L8.5")), "L8.5")
