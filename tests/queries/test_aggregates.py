"""Aggregates: results against their definitions, and states that know no history."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import msgspec
import pytest

from lmerge_service.elements import INFINITY
from lmerge_service.errors import StateError
from lmerge_service.queries.aggregates import (
    Aggregate,
    Average,
    Composite,
    Count,
    CountOf,
    DistinctCount,
    First,
    Last,
    Max,
    Median,
    Min,
    Percentile,
    Sum,
    TopK,
)
from lmerge_service.queries.meaning import aggregates as meaning
from tests.seeds import seeds

Members = list[tuple[Any, int]]
Form = tuple[Callable[[], Aggregate], Callable[[Members], list[tuple[Any, ...]]]]


def whole(row: Any) -> Any:
    return row[0]


def real(row: Any) -> Any:
    return row[1]


def text(row: Any) -> Any:
    return row[2]


def ranked(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [(*row, rank) for rank, row in enumerate(rows, 1)]


def edge(members: Members, of: Callable[..., Any]) -> Any:
    return of(members, text) if members else None


FORMS: dict[str, Form] = {
    "count": (Count, lambda m: [(meaning.count(m),)]),
    "count_of": (lambda: CountOf(whole), lambda m: [(meaning.count_of(m, whole),)]),
    "sum": (lambda: Sum(whole), lambda m: [(meaning.total(m, whole),)]),
    "sum_real": (lambda: Sum(real, real=True), lambda m: [(meaning.total(m, real, True),)]),
    "average": (lambda: Average(whole), lambda m: [(meaning.average(m, whole),)]),
    "average_real": (lambda: Average(real, real=True), lambda m: [(meaning.average(m, real),)]),
    "min": (lambda: Min(real), lambda m: [(meaning.least(m, real),)]),
    "max": (lambda: Max(text), lambda m: [(meaning.greatest(m, text),)]),
    "distinct": (lambda: DistinctCount(text), lambda m: [(meaning.distinct_count(m, text),)]),
    "median": (lambda: Median(real), lambda m: [(meaning.percentile(m, real, Fraction(1, 2)),)]),
    "percentile": (
        lambda: Percentile(whole, 0.9),
        lambda m: [(meaning.percentile(m, whole, Fraction(9, 10)),)],
    ),
    "discrete": (
        lambda: Percentile(text, "0.25", discrete=True),
        lambda m: [(meaning.percentile(m, text, Fraction(1, 4), True),)],
    ),
    "first": (lambda: First(text), lambda m: [(edge(m, meaning.first),)]),
    "last": (lambda: Last(text), lambda m: [(edge(m, meaning.last),)]),
    "top": (lambda: TopK(2, real, width=3), lambda m: ranked(meaning.top_k(m, 2, real))),
    "top_bag": (
        lambda: TopK(3, text, lambda row: row[2:], ranked=False),
        lambda m: [row[2:] for row in meaning.top_k(m, 3, text)],
    ),
    "several": (
        lambda: Composite({"n": Count(), "mean": Average(real, real=True), "max": Max(whole)}),
        lambda m: [(len(m), meaning.average(m, real), meaning.greatest(m, whole))],
    ),
    "linear": (
        lambda: Composite({"n": CountOf(text), "sum": Sum(real, real=True)}),
        lambda m: [(meaning.count_of(m, text), meaning.total(m, real, True))],
    ),
    "product": (
        lambda: Composite({"n": Count(), "top": TopK(2, whole, lambda row: row[:1])}),
        lambda m: [(len(m), *row) for row in ranked([r[:1] for r in meaning.top_k(m, 2, whole)])],
    ),
}

WHOLES = (None, 0, 1, -7, 2**62, -(2**62), 2**63 - 1)
REALS = (None, 0.0, 0.1, 0.2, -0.3, 1e308, -1e308, 5e-324, 1e16, 1.0)
TEXTS = (None, "a", "b", "ä", "")


def member(rng: Random) -> tuple[Any, int]:
    return (rng.choice(WHOLES), rng.choice(REALS), rng.choice(TEXTS)), rng.randrange(4)


def state_of(aggregate: Aggregate, members: Members) -> Any:
    state = aggregate.empty()
    for payload, vs in members:
        state = aggregate.add(state, aggregate.entry(payload, vs))
    return state


def bytes_of(aggregate: Aggregate, state: Any) -> bytes:
    return msgspec.msgpack.encode(aggregate.saved(state))


@pytest.mark.parametrize("name", FORMS)
@seeds(25)
def test_a_state_is_a_function_of_the_rows(name: str, seeds: range) -> None:
    """Whatever has come and gone, in whatever order, by entries or by merging: the results are the
    definition's, and the bytes are those of a state made of the rows in another order."""
    make, means = FORMS[name]
    for seed in seeds:
        rng = Random(seed)
        aggregate, state = make(), make().empty()
        members: Members = []
        for _ in range(12):
            if members and rng.random() < 0.4:
                payload, vs = members.pop(rng.randrange(len(members)))
                state = aggregate.remove(state, aggregate.entry(payload, vs))
            else:
                n, (payload, vs) = rng.choice((1, 1, 2)), member(rng)
                members += [(payload, vs)] * n
                state = aggregate.add(state, aggregate.entry(payload, vs), n)
            assert list(aggregate.results(state)) == means(members), members
        rng.shuffle(members)
        again = state_of(aggregate, members)
        assert bytes_of(aggregate, state) == bytes_of(aggregate, again)
        cut = rng.randrange(len(members) + 1)
        one, two = (state_of(aggregate, part) for part in (members[:cut], members[cut:]))
        kept = bytes_of(aggregate, two)
        assert bytes_of(aggregate, aggregate.merge(one, two)) == bytes_of(aggregate, again)
        assert bytes_of(aggregate, two) == kept, "merging changes the second state"


@pytest.mark.parametrize("name", FORMS)
@seeds(10)
def test_copies_and_saved_states_share_nothing(name: str, seeds: range) -> None:
    make, means = FORMS[name]
    for seed in seeds:
        rng = Random(seed)
        aggregate, members = make(), [member(rng) for _ in range(6)]
        entry = aggregate.entry(*member(rng))
        state = state_of(aggregate, members)
        for other in (aggregate.copy(state), restored(aggregate, state)):
            aggregate.remove(aggregate.add(other, entry, 2), entry)
            assert list(aggregate.results(state)) == means(members)
        back = msgspec.msgpack.decode(msgspec.msgpack.encode(aggregate.saved_entry(entry)))
        assert aggregate.loaded_entry(back) == entry


def restored(aggregate: Aggregate, state: Any) -> Any:
    found = aggregate.loaded(msgspec.msgpack.decode(bytes_of(aggregate, state)))
    assert found == state
    return found


@pytest.mark.parametrize("name", [name for name, (make, _) in FORMS.items() if make().linear])
@seeds(10)
def test_a_change_is_a_state_of_a_linear_aggregate(name: str, seeds: range) -> None:
    """Removed first, added later, and merged into the state of what was there."""
    make, means = FORMS[name]
    for seed in seeds:
        rng = Random(seed)
        aggregate, members = make(), [member(rng) for _ in range(6)]
        added = [member(rng) for _ in range(2)]
        change = aggregate.empty()
        for payload, vs in members[:3]:
            change = aggregate.remove(change, aggregate.entry(payload, vs))
        for payload, vs in added:
            change = aggregate.add(change, aggregate.entry(payload, vs))
        state = aggregate.merge(state_of(aggregate, members), change)
        assert list(aggregate.results(state)) == means(members[3:] + added)


@seeds(200)
def test_sums_of_floats_are_exact_in_any_order(seeds: range) -> None:
    """Sums that are kept as partial sums, or as floats, depend on the order."""
    for seed in seeds:
        rng = Random(seed)
        values = [rng.uniform(-1, 1) * 2.0 ** rng.randrange(-1000, 1000) for _ in range(8)]
        total, members = Sum(lambda row: row, real=True), [(v, 0) for v in values]
        state = state_of(total, members)
        assert total.results(state) == ((float(sum(map(Fraction, values))),),)
        for value in values:
            state = total.remove(state, total.entry(value, 0))
        assert state == total.empty()


def test_what_is_too_large_is_null_and_counted() -> None:
    total, mean = Sum(lambda row: row), Average(lambda row: row)
    state = state_of(total, [(INFINITY, 0), (1, 0)])
    assert total.results(state) == ((None,),)
    assert total.overflowed == 1
    assert mean.results(state) == ((2.0**62,),), "a mean is never too large"
    assert total.results(total.remove(state, 1)) == ((INFINITY,),)
    floats = Sum(lambda row: row, real=True)
    several = Composite({"n": Count(), "sum": floats})
    assert several.results(state_of(several, [(1.5e308, 0), (1.5e308, 0)])) == ((2, None),)
    assert several.overflowed == floats.overflowed == 1


def test_no_rows_are_null_but_for_counts() -> None:
    for name, (make, _) in FORMS.items():
        aggregate = make()
        if aggregate.single:
            (values,) = aggregate.results(aggregate.empty())
            assert len(values) == aggregate.width
            assert all(value in (None, 0) for value in values), name
        else:
            assert aggregate.results(aggregate.empty()) == ()


def test_what_a_state_does_not_hold_cannot_be_removed() -> None:
    for aggregate in (Max(text), TopK(2, real, width=3), First(text), DistinctCount(text)):
        present, absent = (1, 1.0, "a"), (2, 2.0, "b")
        state = state_of(aggregate, [(present, 0)])
        for entry, n in ((aggregate.entry(absent, 0), 1), (aggregate.entry(present, 0), 2)):
            with pytest.raises(ValueError, match="the state has no"):
                aggregate.remove(state, entry, n)
        assert state == state_of(aggregate, [(present, 0)])


def test_what_cannot_be_aggregated() -> None:
    with pytest.raises(TypeError, match="declare it real"):
        Sum(lambda row: row).entry(0.5, 0)
    with pytest.raises(TypeError, match="declare it real"):
        Sum(lambda row: row).entry(True, 0)
    with pytest.raises(ValueError, match="top 0 rows"):
        TopK(0, whole)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Percentile(whole, 1.5)
    least = Min(lambda row: row)
    state = state_of(least, [(2**70, 0)])
    with pytest.raises(StateError):
        least.saved(state)


def test_equal_scores_are_ordered_by_payload() -> None:
    top = TopK(2, lambda row: row[1], width=2)
    state = state_of(top, [(("b", 5), 0), (("c", None), 0), (("a", 5), 0), (("a", 5), 3)])
    assert top.results(state) == (("a", 5, 1), ("a", 5, 2))
    assert top.width == 3
