"""Select, project, flat_map, union, and the source of elements."""

from random import Random
from typing import Any

import pytest

from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import START, Adjust, Insert, Stable
from lmerge_service.queries.meaning import stateless as meaning
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.queries.operators.sources import Elements
from lmerge_service.queries.operators.stateless import FlatMap, Project, Select
from lmerge_service.queries.operators.union import Union
from lmerge_service.tdb import TDB
from tests.queries.promises import (
    Make,
    Meaning,
    check_batches,
    check_promises,
    tdb_of,
)
from tests.queries.streams import interleaved, legal_stream, without_revisions
from tests.queries.vectors import agrees, cases, elements, inputs, outputs_of, run, tdb
from tests.seeds import seeds

UNARY: dict[str, tuple[Make, Meaning]] = {
    "select": (
        lambda: Select(lambda p: p != "b"),
        lambda tdb: meaning.select(tdb, lambda p: p != "b"),
    ),
    "project": (
        lambda: Project(lambda p: "x" if p == "b" else p),
        lambda tdb: meaning.project(tdb, lambda p: "x" if p == "b" else p),
    ),
    "flat_map": (
        lambda: FlatMap(lambda p: {"a": [], "b": ["b", "b"]}.get(p, [p, "x"])),
        lambda tdb: meaning.flat_map(tdb, lambda p: {"a": [], "b": ["b", "b"]}.get(p, [p, "x"])),
    ),
    "elements": (Elements, lambda tdb: tdb),
}


@pytest.mark.parametrize("name", UNARY)
@seeds(60)
def test_unary(name: str, seeds: range) -> None:
    make, means = UNARY[name]
    for seed in seeds:
        rng = Random(seed)
        feeds = [(0, element) for element in legal_stream(rng)]
        check_promises(make, means, feeds, stable=lambda run: run.inputs[0].stable)
        check_batches(make, means, feeds, rng)


@pytest.mark.parametrize("name", UNARY)
@seeds(20)
def test_revisions_leave_no_trace(name: str, seeds: range) -> None:
    make, _ = UNARY[name]
    for seed in seeds:
        given = legal_stream(Random(seed))
        revised = tdb_of(make().process_batch(given))
        assert revised == tdb_of(make().process_batch(without_revisions(given)))


@seeds(60)
def test_union(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        feeds = interleaved(rng, *(legal_stream(rng) for _ in range(3)))
        make: Make = lambda: Union(3)  # noqa: E731
        least = lambda run: min(tdb.stable for tdb in run.inputs)  # noqa: E731
        check_promises(make, meaning.union, feeds, stable=least)
        check_batches(make, meaning.union, feeds, rng)


@seeds(60)
def test_a_source_keeps_what_an_adjust_may_name(seeds: range) -> None:
    for seed in seeds:
        feeds = [(0, element) for element in legal_stream(Random(seed))]
        check_promises(
            Elements,
            lambda tdb: tdb,
            feeds,
            retained=lambda run: sum(e.ve >= run.inputs[0].stable for e in run.inputs[0]),
        )


@seeds(100)
def test_a_source_refuses_what_is_illegal_and_goes_on(seeds: range) -> None:
    """Random elements, most of them illegal: exactly those that the TDB refuses are refused."""
    for seed in seeds:
        rng = Random(seed)
        source, tdb, output = Elements(), TDB(), TDB()
        for _ in range(12):
            vs, point = rng.randrange(8), rng.randrange(8)
            element = rng.choice(
                (
                    Insert("a", vs, rng.randrange(10)),
                    Adjust("a", vs, rng.randrange(10), rng.randrange(10)),
                    Stable(point),
                )
            )
            wrong = tdb.violation(element)
            emitted = source.process(element)
            assert bool(source.refused) == bool(wrong), (element, wrong, source.refused)
            source.refused.clear()
            if not wrong:
                tdb.apply(element)
            for each in emitted:
                output.apply(each)
            assert output == tdb
            assert output.stable == tdb.stable


def test_kinds_of_refusal() -> None:
    source = Elements()
    source.process_batch([Insert("a", 1, 5), Stable(4)])
    for element, kind in (
        (Insert("a", 6, 6), BreachKind.MALFORMED),
        (Insert("a", 3, 6), BreachKind.BROKE_OWN_STABLE),
        (Adjust("a", 1, 5, 3), BreachKind.BROKE_OWN_STABLE),
        (Adjust("b", 1, 5, 6), BreachKind.UNKNOWN_EVENT),
        (Adjust("a", 1, 7, 6), BreachKind.WRONG_VOLD),
        (Stable(3), BreachKind.STABLE_REGRESSION),
    ):
        assert source.process(element) == []
        assert source.refused.pop() == (0, kind, element)


@pytest.mark.parametrize("make", [Select, Project, FlatMap])
def test_a_batch_in_which_user_code_raises_changes_nothing(make: Any) -> None:
    operator = make(lambda payload: [1 // payload])
    with pytest.raises(ZeroDivisionError):
        operator.process_batch([Insert(1, 1, 5), Stable(3), Insert(0, 4, 5)])
    assert (operator.stable, operator.stables) == (START, [START])
    assert operator.process(Stable(2)) == [Stable(2)]


def test_a_stable_that_falls_changes_nothing() -> None:
    select = Select(bool)
    assert select.process(Stable(5)) == [Stable(5)]
    assert select.process_batch([Stable(3), Insert(1, 6, 7)]) == [Insert(1, 6, 7)]
    assert (select.stable, select.stables) == (5, [5])
    assert select.process_batch([Stable(7), Stable(9), Stable(8)]) == [Stable(9)]


# --- vectors --------------------------------------------------------------------------------------

# not ce-select-4: stables with counts are no elements, no source has them


@pytest.mark.parametrize(
    "case", cases("speculative", "ce-select-1", "ce-select-2"), ids=lambda case: case["id"]
)
def test_cedr_select(case: dict[str, Any]) -> None:
    given = case["given"]
    select = Select(lambda payload: payload in given["keep"])
    assert outputs_of(select, given) == [elements(rows) for rows in case["expect"]["outputs"]]


def test_cedr_select_of_tables() -> None:
    (case,) = cases("speculative", "ce-select-3")
    given = case["given"]
    select = Select(lambda payload: payload in given["keep"])
    assert run(select, tdb(given["cht"])) == tdb(case["expect"]["cht"])


@pytest.mark.parametrize(
    ("case", "operator"),
    [
        ("P11.2", Select(lambda p: p == "a")),
        ("P11.3", Project(lambda p: {"a": "x", "b": "y"}.get(p, p))),
        ("P11.4", Union(2)),
        ("L8.2", Select(lambda p: p in ("a", "c"))),
        ("L8.3", Project(lambda p: {"b": "x"}.get(p, p))),
        ("L8.4", Union(2)),
    ],
)
def test_pipes(case: str, operator: Operator) -> None:
    assert agrees(run(operator, *inputs(case)), case)
