"""Last rows: each event ends at the n-th next distinct start of its partition."""

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import pytest

from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.queries.meaning import rows as meaning
from lmerge_service.queries.operators.last_rows import LastRows
from lmerge_service.tdb import TDB
from tests.queries.promises import Run, check_batches, check_promises
from tests.queries.streams import legal_stream, without_revisions
from tests.queries.vectors import agrees, inputs, vectors
from tests.queries.vectors import run as run_whole
from tests.seeds import seeds

By = Callable[[Any], Hashable] | None
BY: dict[str, By] = {"all": None, "by": lambda p: p[0]}


def retained(n: int, by: By) -> Callable[[Run], int]:
    """Events from c on, and those of the n last distinct starts before it, per partition."""

    def most(run: Run) -> int:
        (tdb,), kept = run.inputs, 0
        for payload, vs, _ in tdb:
            part = [e.vs for e in tdb if by is None or by(e.payload) == by(payload)]
            kept += vs in sorted({t for t in part if t < tdb.stable})[-n:] or vs >= tdb.stable
        return kept

    return most


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("by", BY)
@seeds(40)
def test_promises(n: int, by: str, seeds: range) -> None:
    def means(tdb: TDB) -> TDB:
        return meaning.last_rows(tdb, n, BY[by])

    for seed in seeds:
        rng = Random(seed)
        stream = legal_stream(rng, payloads=("a1", "a2", "b1"), length=16)
        feeds = [(0, element) for element in stream]
        make = lambda: LastRows(n, BY[by])  # noqa: E731
        stable = lambda run: run.inputs[0].stable  # noqa: E731
        check_promises(make, means, feeds, stable=stable, retained=retained(n, BY[by]))
        check_batches(make, means, feeds, rng)


@seeds(15)
def test_revisions_leave_no_trace(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        stream = legal_stream(rng, payloads=("a1", "a2", "b1"), length=16)
        revised, final = (Run(lambda: LastRows(2, lambda p: p[0])) for _ in range(2))
        for element in stream:
            revised.feed(element)
        final.feed_batch(without_revisions(stream))
        assert revised.output == final.output


# Worked examples


@pytest.mark.parametrize(
    ("case", "n", "by"),
    [
        ("P11.12", 1, None),
        ("P11.13", 1, lambda p: p),
        ("L8.12", 3, None),
        ("L8.13", 1, lambda p: p in ("a", "c")),
    ],
)
def test_examples_of_the_thesis(case: str, n: int, by: By) -> None:
    found = run_whole(LastRows(n, by), *inputs(case))
    if case.startswith("L"):  # "the row of the last instant holds to infinity": not beyond it
        found = TDB((p, vs, min(ve, 7)) for p, vs, ve in found)
    assert agrees(found, case)


def test_classes_of_events() -> None:
    """Points are facts as they are; edges live until the next sample."""
    case = vectors("streaminsight")["si-classes"]
    given, expect = case["given"], case["expect"]
    points = [[t, t + given["h"]] for t in given["point"]]
    assert points == expect["point"]
    samples = TDB((name, t, t + 1) for name, t in given["edge_samples"])
    wanted = [(name, vs, INFINITY if ve == "inf" else ve) for name, vs, ve in expect["edge"]]
    assert run_whole(LastRows(1), samples) == TDB(wanted)


def test_a_slide_over_rows_never_converges_after_a_cold_start() -> None:
    """A count since the beginning: which rows slide together depends on the first one that was
    seen. There is no operator; this is what it would have to mean."""

    def sliding(rows: list[tuple[Any, int]], n: int, slide: int) -> list[tuple[Any, int, int]]:
        times = [t for _, t in rows]
        steps = times[slide - 1 :: slide]
        found = []
        for name, t in rows:
            shown = [s for s in steps if s >= t and len([u for u in times if t < u <= s]) < n]
            if shown:
                after = [s for s in steps if s > shown[-1]]
                found.append((name, shown[0], after[0] if after else INFINITY))
        return found

    rows = sorted(((p, vs) for p, vs, _ in inputs("P17.2")[0]), key=lambda row: row[1])
    expect = vectors("pipes")["P17.2"]["expect"]
    assert TDB(sliding(rows, 2, 2)) == TDB((p, vs, ve or INFINITY) for p, vs, ve in expect)
    warm, cold = sliding(rows, 2, 2), sliding(rows[1:], 2, 2)
    assert warm[-1] != cold[-1]


# Literal cases


def test_a_start_in_the_midst_moves_the_n_before_it_and_ties_move_none() -> None:
    run = Run(lambda: LastRows(2))
    run.feed_batch([Insert(name, t, t + 1) for name, t in (("a", 1), ("b", 2), ("c", 8), ("d", 9))])
    assert run.feed(Insert("x", 5, 6)) == [
        Adjust("a", 1, 8, 5),
        Adjust("b", 2, 9, 8),
        Insert("x", 5, 9),
    ]
    assert run.feed(Insert("y", 5, 9)) == [Insert("y", 5, 9)]
    assert run.feed(Adjust("x", 5, 6, 5)) == [Adjust("x", 5, 9, 5)]
    assert run.feed(Adjust("y", 5, 9, 7)) == []  # where it ends does not matter
    assert run.feed(Adjust("y", 5, 7, 5)) == [
        Adjust("y", 5, 9, 5),
        Adjust("a", 1, 5, 8),
        Adjust("b", 2, 8, 9),
    ]


def test_a_row_that_has_ended_for_good_stays() -> None:
    run = Run(lambda: LastRows(1))
    run.feed_batch([Insert("a", 1, INFINITY), Insert("b", 3, 4), Stable(5)])
    assert len(run.operator) == 1
    assert run.feed(Adjust("a", 1, INFINITY, 9)) == []
    assert run.feed(Insert("c", 5, 6)) == [Adjust("b", 3, INFINITY, 5), Insert("c", 5, INFINITY)]


def test_a_start_at_the_stable_point_may_go() -> None:
    run = Run(lambda: LastRows(1))
    run.feed_batch([Insert("a", t, t + 1) for t in (1, 3, 5)])
    run.feed(Stable(5))
    assert len(run.operator) == 2
    assert run.feed(Adjust("a", 5, 6, 5)) == [
        Adjust("a", 5, INFINITY, 5),
        Adjust("a", 3, 5, INFINITY),
    ]


def test_a_batch_moves_each_row_once() -> None:
    operator = LastRows(3)
    operator.process_batch([Insert("a", t, t + 1) for t in range(0, 100, 10)])
    before = operator.touched
    emitted = operator.process_batch([Insert("b", t, t + 1) for t in range(45, 55)])
    assert len(emitted) == 3 + 10 + 1  # 20, 30, 40; the new ones; the old one at 50
    assert operator.touched - before < 60


def test_changes_far_apart_are_settled_apart() -> None:
    operator = LastRows(1)
    operator.process_batch([Insert("a", t, t + 1) for t in range(0, 4_000, 10)])
    before = operator.touched
    emitted = operator.process_batch([Insert("b", 15, 16), Adjust("a", 3_900, 3_901, 3_900)])
    assert emitted == [
        Adjust("a", 10, 20, 15),
        Adjust("a", 3_900, 3_910, 3_900),
        Adjust("a", 3_890, 3_900, 3_910),
        Insert("b", 15, 20),
    ]
    assert operator.touched - before < 20


def test_what_the_state_shows_to_be_illegal_is_refused() -> None:
    operator = LastRows(1)
    operator.process_batch([Insert("a", 1, 2), Insert("b", 3, 4), Stable(3)])
    before = operator.snapshot()
    for wrong in (Adjust("a", 3, 4, 3), Adjust("b", 3, 4, 3), Adjust("a", 4, 5, 6)):
        assert operator.process(wrong) == [] or wrong.payload == "b"
        if wrong.payload == "a":
            assert operator.refused.pop() == (0, BreachKind.UNKNOWN_EVENT, wrong)
        else:
            operator.process(Insert("b", 3, 4))
    assert operator.snapshot() == before


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="the last 0 rows are none"):
        LastRows(0)


def test_what_user_code_raises_takes_the_batch_back() -> None:
    operator = LastRows(1, lambda p: p[0])
    operator.process(Insert("a", 1, 9))
    before = operator.snapshot()
    with pytest.raises(IndexError):
        operator.process_batch([Insert("a", 3, 4), Adjust("a", 1, 9, 1), Insert("", 1, 2)])
    operator.check()
    assert operator.snapshot() == before
    assert operator.process(Insert("a", 5, 6)) == [
        Adjust("a", 1, INFINITY, 5),
        Insert("a", 5, INFINITY),
    ]


# Cost


def sized(n: int) -> list[int]:
    """What is looked at where n rows are alive and one thing changes."""
    operator = LastRows(2, lambda p: p[0])
    operator.process_batch([Insert("a", 10 * k, 10 * k + 1) for k in range(n)])
    operator.process_batch([Insert((k,), 10 * n, 20 * n) for k in range(n)])
    costs, before = [], operator.touched
    changes: list[Element] = [Stable(15)]
    for at in (23, 5 * n + 3, 10 * n - 7):
        changes += [Insert("a", at, at + 1), Insert("a", at, at + 2), Adjust("a", at, at + 2, at)]
        changes += [Adjust("a", at, at + 1, at)]
    for element in [*changes, Stable(36)]:
        operator.process(element)
        costs.append(operator.touched - before)
        before = operator.touched
    return costs


def test_what_is_looked_at_does_not_grow_with_what_is_alive() -> None:
    assert sized(60) == sized(240)
    assert max(sized(60)) < 12
