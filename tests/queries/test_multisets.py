"""Coalesce, distinct and the set operators."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.layers import Layers
from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.queries.meaning.multisets import combined
from lmerge_service.queries.meaning.stateless import union
from lmerge_service.queries.multiplicity import Multiplicity
from lmerge_service.queries.operators.joins import Join
from lmerge_service.queries.operators.multisets import COMBINATIONS, MultisetOps
from lmerge_service.tdb import TDB
from tests.queries.promises import (
    Make,
    Run,
    check_batches,
    check_promises,
    snapshot_at,
    tdb_of,
)
from tests.queries.streams import Feed, interleaved, legal_stream, without_revisions
from tests.queries.vectors import agrees, inputs, tdb, vectors
from tests.queries.vectors import run as run_whole
from tests.seeds import seeds


def making(combine: str) -> Make:
    return lambda: MultisetOps(combine)


def drawn(rng: Random, ports: int, length: int = 14) -> list[Feed]:
    """Streams of one or two payloads, which overlap a lot."""
    payloads = rng.choice((("a",), ("a", "b")))
    streams = [legal_stream(rng, payloads=payloads, length=length) for _ in range(ports)]
    return interleaved(rng, *streams)


def least(run: Run) -> int:
    return min(tdb.stable for tdb in run.inputs)


def retained(run: Run) -> int:
    return sum(event.ve >= least(run) for tdb in run.inputs for event in tdb)


@pytest.mark.parametrize("combine", COMBINATIONS)
@seeds(40)
def test_promises(combine: str, seeds: range) -> None:
    def means(*tdbs: TDB) -> TDB:
        return combined(combine, *tdbs)

    for seed in seeds:
        rng = Random(seed)
        feeds = drawn(rng, len(COMBINATIONS[combine].leads))
        check_promises(making(combine), means, feeds, stable=least, retained=retained)
        check_batches(making(combine), means, feeds, rng)


SNAPSHOTS: dict[str, Any] = {
    "coalesce": lambda f: f,
    "distinct": lambda f: Counter(set(f)),
    "union_max": lambda f, g: f | g,
    "except_all": lambda f, g: f - g,
    "except": lambda f, g: Counter(set(f) - set(g)),
    "intersect_all": lambda f, g: f & g,
    "intersect": lambda f, g: Counter(set(f) & set(g)),
}


def ports(combine: str) -> int:
    return len(COMBINATIONS[combine].leads)


@pytest.mark.parametrize("combine", COMBINATIONS)
@seeds(6)
def test_every_snapshot_is_that_of_the_multiset_operator(combine: str, seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        given = [tdb_of(legal_stream(rng, payloads=("a", "b"))) for _ in range(ports(combine))]
        found = run_whole(MultisetOps(combine), *given)
        for t in range(24):
            wanted = SNAPSHOTS[combine](*(snapshot_at(each, t) for each in given))
            assert snapshot_at(found, t) == wanted


@pytest.mark.parametrize("combine", COMBINATIONS)
@seeds(10)
def test_revisions_leave_no_trace(combine: str, seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        streams = [legal_stream(rng, payloads=("a", "b")) for _ in range(ports(combine))]
        revised, final = Run(making(combine)), Run(making(combine))
        for port, element in interleaved(rng, *streams):
            revised.feed(element, port)
        for port, stream in enumerate(streams):
            final.feed_batch(without_revisions(stream), port)
        assert revised.output == final.output


@seeds(30)
def test_coalesce_is_the_normaliser(seeds: range) -> None:
    """Not only as a TDB: element by element, but for the order in which a change is emitted."""
    for seed in seeds:
        coalesce, normaliser = MultisetOps("coalesce"), Normaliser()
        for element in legal_stream(Random(seed), payloads=("a", "b")):
            emitted, wanted = coalesce.process(element), normaliser.process(element)
            if type(element) is not Stable:
                assert Counter(emitted) == Counter(wanted)


@seeds(30)
def test_laws_of_the_canonical_form(seeds: range) -> None:
    def of(combine: str, *tdbs: TDB) -> TDB:
        return run_whole(MultisetOps(combine), *tdbs)

    for seed in seeds:
        rng = Random(seed)
        a, b, c = (tdb_of(legal_stream(rng, payloads=("a",), length=8)) for _ in range(3))
        assert of("except_all", of("except_all", a, b), c) == of("except_all", a, union(b, c))
        assert of("intersect_all", a, b) == of("except_all", a, of("except_all", a, b))
        assert of("distinct", union(a, b)) == of("distinct", union(of("distinct", a), b))
        assert of("except", a, b) == of("except_all", of("distinct", a), of("distinct", b))
        assert of("intersect", a, b) == of("distinct", of("intersect_all", a, b))
        assert of("distinct", union(a, b)) == of("distinct", of("union_max", a, b))


# The layers that it shares with the normaliser, and the multiplicities


@seeds(100)
def test_layers_take_any_change_at_once(seeds: range) -> None:
    """Several steps up and down are one change, and the same as a new line."""
    for seed in seeds:
        rng = Random(seed)
        layers, height = Layers(), Counter[int]()
        output = TDB()
        for _ in range(4):
            new = Counter(height)
            first, last = sorted(rng.sample(range(11), 2)) if height else (0, 10)
            for t in range(first, last):
                new[t] = rng.choice((0, 0, 1, 1, 2, 3))
            found: list[list[tuple[int, int]]] = []
            change = 0
            for t in range(11):
                by = (new[t] - height[t]) - (new[t - 1] - height[t - 1])
                if by:
                    if not change:
                        found.append([])
                    found[-1].append((t, by))
                    change += by
            for steps in found:
                for element in layers.changed("a", steps):
                    output.apply(element)
                layers.check()
            height = new
            whole = TDB(("a", t, t + 1) for t in range(10) for _ in range(new[t]))
            assert output == combined("coalesce", whole)


def test_what_is_cut_out_of_the_midst_of_nested_events() -> None:
    """The innermost closes first, of equal ends, too; what opens behind takes the ends in order."""
    layers = Layers()
    for x in (1, 2):
        layers.raised("a", x, 9)
    assert layers.lowered("a", 3, 5) == [Adjust("a", 2, 9, 3), Insert("a", 5, 9)]
    layers = Layers()
    layers.raised("a", 1, 9)
    layers.raised("a", 2, 8)
    assert Counter(layers.changed("a", [(3, -2), (5, 1), (6, 1)])) == Counter(
        [Adjust("a", 1, 9, 3), Adjust("a", 2, 8, 3), Insert("a", 5, 9), Insert("a", 6, 8)]
    )


@seeds(100)
def test_multiplicities(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        events = [(vs, vs + rng.randint(1, 4)) for vs in (rng.randrange(12) for _ in range(6))]
        held = Multiplicity()
        for event in events:
            held.add(*event)
        point = rng.randrange(12)
        gone = held.forget(point)
        held.check()
        assert gone == sum(ve < point for _, ve in events)
        valid = {t: sum(vs <= t < ve for vs, ve in events) for t in range(point, 20)}
        assert {t: held.valid(t) for t in valid} == valid
        x = rng.randrange(point, 16)
        y = rng.randrange(x + 1, 18)
        bare, covered = held.uncovered(x, y)[0], held.covered(x, y)[0]
        assert {t for span in bare for t in range(*span)} == {
            t for t in range(x, y) if not valid[t]
        }
        assert sorted([*bare, *covered])[0][0] == x
        assert sum(end - begin for begin, end in [*bare, *covered]) == y - x
        ends = [end for _, end in sorted([*bare, *covered])]
        assert ends[:-1] == [begin for begin, _ in sorted([*bare, *covered])][1:]


# Worked examples


@pytest.mark.parametrize(
    ("case", "combine"),
    [
        ("P11.7", "distinct"),
        ("L8.6", "distinct"),
        ("P11.8", "except_all"),
        ("L8.7", "except_all"),
        ("P11.15", "coalesce"),
    ],
)
def test_examples_of_the_thesis(case: str, combine: str) -> None:
    assert agrees(run_whole(MultisetOps(combine), *inputs(case)), case)


def coalesced(rows: list[Any]) -> TDB:
    return run_whole(MultisetOps("coalesce"), tdb(rows))


def test_snapshot_equivalent_streams_have_one_form() -> None:
    whole = tdb(vectors("pipes")["P11.15"]["expect"])
    assert all(coalesced(rows) == whole for rows in vectors("pipes")["D1"]["expect"])
    one, other = vectors("pipes")["D2"]["expect"]
    assert coalesced(one) == coalesced(other)


def test_merging_forms_that_differ_is_wrong_at_some_instant() -> None:
    """Negative controls: what a merge makes of streams that were not brought to one form."""
    right = {"D4": vectors("pipes")["D2"]["expect"][0], "D5": vectors("pipes")["P11.15"]["expect"]}
    for case, rows in right.items():
        assert coalesced(vectors("pipes")[case]["expect"]) != coalesced(rows)


def test_two_plans_side_by_side_duplicate() -> None:
    """Negative control: a Parallel Track's output has a payload twice, that of distinct has not."""
    given = vectors("pipes")["D8"]["input"]
    join = Join(lambda p: p, lambda p: p, combine=lambda left, right: left)
    joined = run_whole(join, tdb(given["A"][:2]), tdb(given["B"][:2]))
    right = run_whole(MultisetOps("distinct"), joined)
    wrong = tdb(vectors("pipes")["D9"]["expect"])
    assert {snapshot_at(wrong, t)["a"] for t in range(70, 121)} == {2}
    assert {snapshot_at(right, t)["a"] for t in range(70, 121)} == {1}
    assert run_whole(MultisetOps("distinct"), wrong) == right


def test_distinct_does_not_depend_on_ties() -> None:
    """D3: the thesis' algorithm gives another cutting for each order."""
    rows: list[Element] = [Insert("a", 1, 5), Insert("a", 1, 10)]
    for ordered in (rows, rows[::-1]):
        run = Run(making("distinct"))
        for element in ordered:
            run.feed(element)
        assert run.output == TDB([("a", 1, 10)])


def test_difference_is_associative() -> None:
    """D6: a[8,13) on both sides; the thesis' algorithm cuts it at 10 on one."""
    a, b, c = tdb([["a", 4, 10], ["a", 7, 13]]), tdb([["a", 4, 8]]), tdb([["a", 4, 10]])

    def minus(one: TDB, other: TDB) -> TDB:
        return run_whole(MultisetOps("except_all"), one, other)

    assert minus(minus(a, b), c) == minus(a, union(b, c)) == TDB([("a", 8, 13)])


def test_distinct_of_what_overlaps_is_one_event() -> None:
    """D7: the thesis' algorithm emits [10, 13) besides, and cuts at 15."""
    rows = vectors("pipes")["D7"]["input"]
    assert run_whole(MultisetOps("distinct"), tdb(rows)) == TDB([("b", 9, 17)])


# Literal cases


@pytest.mark.parametrize(
    ("combine", "feeds", "emitted"),
    [
        ("distinct", [(0, Insert("a", 1, 5)), (0, Insert("a", 5, 9))], [Adjust("a", 1, 5, 9)]),
        ("distinct", [(0, Insert("a", 5, 9)), (0, Insert("a", 1, 5))],
         [Adjust("a", 5, 9, 5), Insert("a", 1, 9)]),
        ("except", [(1, Insert("a", 1, 9)), (0, Insert("a", 3, 12))], [Insert("a", 9, 12)]),
        ("except", [(0, Insert("a", 1, 9)), (1, Insert("a", 1, 9))], [Adjust("a", 1, 9, 1)]),
        ("intersect", [(0, Insert("a", 1, 9)), (1, Insert("a", 3, 12))], [Insert("a", 3, 9)]),
        ("union_max", [(0, Insert("a", 1, 9)), (1, Insert("a", 3, 12))],
         [Adjust("a", 1, 9, 12)]),
        # The layer that is open at m keeps its start, though the event that began it is forgotten.
        ("distinct", [(0, Insert("a", 1, 5)), (0, Insert("a", 3, 20)), (0, Stable(8)),
                      (0, Adjust("a", 3, 20, 10))], [Adjust("a", 1, 20, 10)]),
        ("coalesce", [(0, Insert("a", 1, 5)), (0, Insert("a", 3, 20)), (0, Stable(8)),
                      (0, Insert("a", 20, 30))], [Adjust("a", 1, 20, 30)]),
    ],
)  # fmt: skip
def test_what_the_last_element_changes(
    combine: str, feeds: list[Feed], emitted: list[Element]
) -> None:
    run = Run(making(combine))
    for port, element in feeds[:-1]:
        run.feed(element, port)
    port, last = feeds[-1]
    assert run.feed(last, port) == emitted


def test_one_event_that_grew_to_the_stable_point_may_grow_on() -> None:
    run = Run(making("distinct"))
    run.feed_batch([Insert("a", 1, 3), Adjust("a", 1, 3, 7), Stable(7)])
    assert len(run.operator) == 1
    assert run.feed(Adjust("a", 1, 7, 9)) == [Adjust("a", 1, 7, 9)]


def test_what_the_state_shows_to_be_illegal_is_refused() -> None:
    for given in ([Insert("a", 1, 9)], [Insert("a", 1, 9), Insert("a", 2, 9)]):
        rest = MultisetOps("except_all")
        rest.process_batch(given)
        before = rest.snapshot()
        for port, wrong in (
            (0, Adjust("a", 1, 8, 3)),
            (0, Adjust("a", 1, 8, 9)),
            (1, Adjust("a", 1, 9, 3)),
            (0, Adjust("a", 3, 9, 3)),
            (0, Adjust("b", 1, 9, 3)),
        ):
            assert rest.process(wrong, port) == []
            assert rest.refused == [(port, BreachKind.UNKNOWN_EVENT, wrong)]
            rest.refused.clear()
            rest.check()
        assert rest.snapshot() == before


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="there is no 'both', there are coalesce, distinct"):
        MultisetOps("both")
    with pytest.raises(ValueError, match="distinct has 1 inputs, not 2"):
        MultisetOps("distinct", 2)
    with pytest.raises(StateError, match="of except, this is intersect"):
        MultisetOps("intersect").restore(MultisetOps("except").snapshot())


# Cost


def cost(operator: MultisetOps, element: Element, port: int = 0) -> int:
    before = operator.touched
    operator.process(element, port)
    return operator.touched - before


def sized(combine: str, n: int) -> list[int]:
    """What is looked at where n events are alive and one thing changes."""
    last = ports(combine) - 1
    many = MultisetOps(combine)
    many.process_batch([Insert(k, k, k + n) for k in range(n)])
    many.process_batch([Insert(k, k + 1, k + n + 1) for k in range(n)], last)
    costs = [cost(many, Insert(5, n, n + 5)), cost(many, Adjust(7, 8, 8 + n, 9 + n), last)]
    costs += [cost(many, Stable(n + 2), port) for port in range(last + 1)]
    apart = MultisetOps(combine)  # of one payload
    for port in range(last + 1):
        apart.process_batch([Insert("a", 10 * k, 10 * k + 5 + port) for k in range(n)], port)
    for at in (23, 5 * n + 3, 10 * n - 7):
        costs += [
            cost(apart, Insert("a", at, at + 9)),
            cost(apart, Adjust("a", at, at + 9, at + 1)),
        ]
    return costs


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_what_is_looked_at_does_not_grow_with_what_is_alive(combine: str) -> None:
    assert sized(combine, 60) == sized(combine, 240)
    assert max(sized(combine, 60)) < 25


def test_distinct_passes_over_what_lies_beneath() -> None:
    costs = []
    for n in (50, 200):
        deep = MultisetOps("distinct")
        deep.process_batch([Insert("a", k, 2 * n + k) for k in range(n)])
        deep.process(Insert("a", 0, 9 * n))
        costs.append([cost(deep, Insert("a", 1, 3 * n)), cost(deep, Adjust("a", 0, 9 * n, n))])
    assert costs[0] == costs[1]


def test_a_batch_sweeps_a_payload_once() -> None:
    """Elements one by one look at all boundaries that they enclose, each anew."""
    batch: list[Element] = [Insert("a", k, 200 - k) for k in range(100)]
    one, many = MultisetOps("coalesce"), MultisetOps("coalesce")
    many.process_batch(batch)
    for element in reversed(batch):
        one.process(element)
    assert many.touched < 500 < 2_000 < one.touched


def test_no_boundary_of_time_is_too_far() -> None:
    run = Run(making("except_all"))
    run.feed_batch([Insert("a", 0, INFINITY), Insert("a", 5, INFINITY)])
    run.feed(Insert("a", 7, INFINITY), 1)
    assert run.output == TDB([("a", 0, INFINITY), ("a", 5, 7)])
    run.feed(Adjust("a", 7, INFINITY, 9), 1)
    assert run.output == TDB([("a", 0, INFINITY), ("a", 5, 7), ("a", 9, INFINITY)])
