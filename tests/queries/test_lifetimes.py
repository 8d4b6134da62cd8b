"""AlterLifetime: every function of lifetimes against its meaning, its rules and the vectors."""

from collections.abc import Callable
from random import Random

import pytest

from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.meaning import lifetimes as meaning
from lmerge_service.queries.operators.lifetimes import (
    AlterLifetime,
    AtMost,
    Deletes,
    Ends,
    Extend,
    Hop,
    Inserts,
    Last,
    Lifetime,
    Quantise,
    Shift,
    Shorten,
    Starts,
    Window,
)
from lmerge_service.tdb import TDB
from tests.queries.promises import Make, check_batches, check_promises, tdb_of
from tests.queries.streams import legal_stream, without_revisions
from tests.queries.vectors import (
    agrees,
    cases,
    elements,
    inputs,
    outputs_of,
    run,
    stream,
    tdb,
)
from tests.seeds import seeds

Rule = Callable[[int], int]

FUNCTIONS: dict[str, tuple[Lifetime, Callable[[TDB], TDB], Rule]] = {
    "window": (Window(3), lambda tdb: meaning.window(tdb, 3), lambda c: c),
    "instant": (Window(1), lambda tdb: meaning.window(tdb, 1), lambda c: c),
    "shift": (Shift(4), lambda tdb: meaning.shift(tdb, 4), lambda c: c + 4),
    "shift_back": (Shift(-3), lambda tdb: meaning.shift(tdb, -3), lambda c: c - 3),
    "extend": (Extend(3), lambda tdb: meaning.extend(tdb, 3), lambda c: c),
    "shorten": (Shorten(2), lambda tdb: meaning.shorten(tdb, 2), lambda c: c - 2),
    "at_most": (AtMost(4), lambda tdb: meaning.at_most(tdb, 4), lambda c: c),
    "hop": (Hop(3, 5), lambda tdb: meaning.hop(tdb, 3, 5), lambda c: c // 3 * 3),
    "quantise": (Quantise(4), lambda tdb: meaning.quantise(tdb, 4), lambda c: c // 4 * 4),
    "inserts": (Inserts(), meaning.inserts, lambda c: c),
    "starts": (Starts(), meaning.starts, lambda c: c),
    "ends": (Ends(), meaning.ends, lambda c: c),
    "deletes": (Deletes(), meaning.deletes, lambda c: c),
    "last": (Last(), meaning.last, lambda c: c - 1),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def maker(name: str) -> Make:
    return lambda: AlterLifetime(FUNCTIONS[name][0])


def moved_by(rule: Rule) -> Rule:
    return lambda c: c if c in (START, INFINITY) else rule(c)


@each_function
@seeds(60)
def test_promises(name: str, seeds: range) -> None:
    _, means, rule = FUNCTIONS[name]
    point = moved_by(rule)
    for seed in seeds:
        rng = Random(seed)
        feeds = [(0, element) for element in legal_stream(rng)]
        check_promises(maker(name), means, feeds, stable=lambda run: point(run.inputs[0].stable))
        check_batches(maker(name), means, feeds, rng)


@each_function
@seeds(20)
def test_revisions_leave_no_trace(name: str, seeds: range) -> None:
    for seed in seeds:
        given = legal_stream(Random(seed))
        revised = tdb_of(maker(name)().process_batch(given))
        assert revised == tdb_of(maker(name)().process_batch(without_revisions(given)))


@each_function
@seeds(20)
def test_the_required_history_suffices(name: str, seeds: range) -> None:
    lifetime, means, _ = FUNCTIONS[name]
    for seed in seeds:
        events = tdb_of(legal_stream(Random(seed), endless=False))
        for until in range(16):
            least = lifetime.required_history(until)
            known = TDB(event for event in events if event.ve >= least)
            assert since(means(known), until) == since(means(events), until), (until, least)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("inserts", "deletes")])
def test_no_less_history_would_do(name: str) -> None:
    """Some event that ends one tick earlier has an image that counts."""
    lifetime, means, _ = FUNCTIONS[name]
    for until in range(20, 40):
        least = lifetime.required_history(until)
        short = [TDB([("a", vs, least)]) for vs in range(least - 8, least)]
        if any(len(since(means(event), until)) for event in short):
            break
    else:
        raise AssertionError("an event that ends at need(T) never counts")


def since(tdb: TDB, until: int) -> TDB:
    return TDB(event for event in tdb if event.ve >= until)


@each_function
def test_no_image_is_longer_than_the_longest(name: str) -> None:
    """And some image is as long: lengths 1 to 9, at all places of the grid."""
    lifetime, means, _ = FUNCTIONS[name]
    for length in (*range(1, 10), INFINITY):
        ends = [(vs, vs + length if length < INFINITY else INFINITY) for vs in range(12)]
        images = [means(TDB([("a", vs, ve)])) for vs, ve in ends]
        lengths = [ve - vs if ve < INFINITY else INFINITY for tdb in images for _, vs, ve in tdb]
        assert max(lengths, default=0) in (0, lifetime.longest(length)), (length, lengths)


@each_function
def test_different_starts_stay_different_where_it_is_documented(name: str) -> None:
    lifetime, means, _ = FUNCTIONS[name]
    events = [("a", vs, ve) for vs in range(8) for ve in range(vs + 1, 14)]
    starts: dict[int, set[int]] = {}
    for event in events:
        for _, a, _ in means(TDB([event])):
            starts.setdefault(a, set()).add(event[1])
    assert lifetime.keeps_starts == all(len(befores) == 1 for befores in starts.values())


def test_a_cut_where_starts_are_inexact_needs_the_whole_length() -> None:
    """A row that a cold replica begins later than everyone would be cut later, too."""
    assert AtMost(3).required_history(11) == 11
    assert AtMost(3).required_history(11, exact_starts=False) == 8


def test_a_stable_may_not_pass_what_shorten_still_moves() -> None:
    shorten = AlterLifetime(Shorten(2))
    assert shorten.process_batch([Insert("a", 1, 9), Stable(9)]) == [Insert("a", 1, 7), Stable(7)]
    assert shorten.process(Adjust("a", 1, 9, 10)) == [Adjust("a", 1, 7, 8)]


@pytest.mark.parametrize("bad", [lambda: Window(0), lambda: Extend(-1), lambda: Shorten(-1),
                                 lambda: AtMost(0), lambda: Hop(0, 5), lambda: Hop(5, 0),
                                 lambda: Quantise(0)])  # fmt: skip
def test_what_is_no_function_of_lifetimes_is_refused(bad: Callable[[], Lifetime]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        bad()


def test_times_beyond_int64_are_an_error_and_stables_stop_at_the_last() -> None:
    last = INFINITY - 1
    for lifetime, event in (
        (Window(5), Insert("a", last - 2, last)),
        (Extend(5), Insert("a", 1, last)),
        (Shift(-5), Insert("a", START + 2, 1)),
        (AtMost(5), Insert("a", last - 2, INFINITY)),
        (Hop(4, 4), Insert("a", START + 1, 1)),
    ):
        operator = AlterLifetime(lifetime)
        with pytest.raises(OverflowError):
            operator.process(event)
    assert AlterLifetime(AtMost(5)).process(Insert("a", last - 2, last)) == [
        Insert("a", last - 2, last)
    ]
    assert AlterLifetime(Shift(5)).process(Stable(last - 1)) == [Stable(last)]
    assert AlterLifetime(Shorten(5)).process(Stable(START + 2)) == []
    assert AlterLifetime(Quantise(5)).process(Stable(START + 1)) == []
    assert Quantise(5).stable(START + 1) == Hop(5, 5).stable(START + 1) == START


def test_what_has_begun_always_is_never_cut() -> None:
    """START + d = START: what has no beginning has no image with a beginning."""
    assert AlterLifetime(AtMost(5)).process(Insert("a", START, 4)) == []
    assert AlterLifetime(Shift(5)).process(Insert("a", START, 4)) == [Insert("a", START, 9)]


# --- vectors --------------------------------------------------------------------------------------

IDENTITY = Shift(0)
CEDR: dict[str, Callable[..., Lifetime]] = {
    "window": Window,
    "hopping": Hop,
    "inserts": Inserts,
    "deletes": Deletes,
    "identity": lambda: IDENTITY,
}


@pytest.mark.parametrize("case", cases("speculative", "ce-alter-"), ids=lambda case: case["id"])
def test_cedr_alter_lifetime(case: dict) -> None:  # type: ignore[type-arg]
    given = case["given"]
    expect = [elements(rows) for rows in case["expect"]["outputs"]]
    if case["id"] in ("ce-alter-2", "ce-alter-3", "ce-alter-5"):  # an empty adjust is no change
        expect = [[e for e in step if not empty(e)] for step in expect]
    if case["id"] == "ce-alter-8":  # the first stable does come out: we begin at START, not at 0
        expect[0] = [Stable(0)]
    operator = AlterLifetime(CEDR[given["function"]](*given["args"]))
    assert outputs_of(operator, given) == expect


def empty(element: Element) -> bool:
    return isinstance(element, Adjust) and element.vold == element.ve


def test_cedr_windows_depend_on_how_events_are_cut() -> None:
    (case,) = cases("speculative", "ce-view-2")
    for side in ("left", "right"):
        moving = AlterLifetime(Window(case["given"]["window"]))
        assert run(moving, tdb(case["given"][side])) == tdb(case["expect"][side])


def test_cedr_moving_window() -> None:
    (case,) = cases("speculative", "ce-moving-sum")
    moving = AlterLifetime(Window(case["given"]["window"]))
    emitted = moving.process_batch(elements(case["given"]["stream"]))
    assert tdb_of(emitted) == tdb(case["expect"]["windowed"])


@pytest.mark.parametrize(
    ("case", "lifetime"), [("P11.11b", Window(50)), ("L8.10", Window(2))], ids=str
)
def test_pipes_windows(case: str, lifetime: Lifetime) -> None:
    assert agrees(run(AlterLifetime(lifetime), *inputs(case)), case)


@pytest.mark.parametrize(("case", "lifetime"), [("P17.3", Starts()), ("P17.4", Last())])
def test_pipes_istream_and_dstream(case: str, lifetime: Lifetime) -> None:
    """The starts and the last instants of what is coalesced."""
    (given,) = inputs(case)
    coalesced = Normaliser().process_batch([*(Insert(*e) for e in given), Stable(INFINITY)])
    assert agrees(tdb_of(AlterLifetime(lifetime).process_batch(coalesced)), case)


def test_pipes_functions_that_have_no_operator() -> None:
    chronons, physical, logical = stream("P11.11a"), stream("P11.1a"), stream("L8.1a")
    assert agrees(meaning.slide(chronons, 50, 10), "P17.1")
    assert agrees(meaning.granule(physical, 2), "P20.2")
    assert agrees(meaning.granule(logical, 2), "L20.1", granule=2)
    assert agrees(meaning.split(physical, 1), "P11.14")
    assert meaning.cut(physical, 1) == meaning.split(physical, 1)
    assert meaning.cut(TDB([("a", 3, 11)]), 4) == TDB([("a", 3, 4), ("a", 4, 8), ("a", 8, 11)])


def test_cutting_and_splitting_leave_every_snapshot() -> None:
    for seed in range(40):
        events = tdb_of(legal_stream(Random(seed), endless=False))
        for pieces in (meaning.cut(events, 3), meaning.split(events, 3)):
            assert canonical(pieces) == canonical(events)


def canonical(events: TDB) -> TDB:
    ordered = sorted(events, key=lambda e: e.vs)
    return tdb_of(Normaliser().process_batch([*(Insert(*e) for e in ordered), Stable(INFINITY)]))
