"""Align: what is held, when it leaves, and that nothing is changed by that."""

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from typing import Any

import pytest

from lmerge_service.core.cleanse import Cleanse
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.operators.align import Align
from lmerge_service.queries.order import payload_order
from lmerge_service.tdb import TDB
from tests.queries.promises import (
    Run,
    check_batches,
    check_promises,
    in_order,
    inserts_only,
    tdb_of,
)
from tests.queries.streams import legal_stream, without_revisions
from tests.queries.vectors import cases, elements, outputs_of
from tests.seeds import seeds

BLOCKING = (0, 1, 2, 5, INFINITY)
each_blocking = pytest.mark.parametrize("blocking", BLOCKING)


def identity(tdb: TDB) -> TDB:
    return tdb


class Rules:
    """What is held, as a function of the events, the input's stable point and the greatest vs."""

    def __init__(self, blocking: int, stream: Sequence[Element]) -> None:
        self._blocking, self._coming = blocking, iter(stream)
        self.released_until = START - 1

    def stable(self, run: Run) -> int:
        """Called once per element."""
        element = next(self._coming)
        if type(element) is Insert and self._blocking < INFINITY:
            self.released_until = max(self.released_until, element.vs - self._blocking)
        tdb, held = run.inputs[0], self.held(run)
        assert run.output == without(tdb, held), "it emitted less or more than what is not held"
        point: int = min([tdb.stable, *(vs for _, vs, _ in held)])
        return point

    def held(self, run: Run) -> list[Any]:
        """What begins behind o, and not before something that does so, too, and is not final."""
        tdb = run.inputs[0]
        behind = [e for e in tdb if e.vs > self.released_until and tdb.stable < INFINITY]
        open_since = min((e.vs for e in behind if e.ve >= tdb.stable), default=INFINITY)
        return [e for e in behind if e.vs >= open_since]

    def retained(self, run: Run) -> int:
        return len(self.held(run))


def without(tdb: TDB, held: Sequence[Any]) -> TDB:
    left = list(tdb)
    for event in held:
        left.remove(event)
    return TDB(left)


@each_blocking
@seeds(30)
def test_promises(blocking: int, seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        stream = legal_stream(rng)
        rules, feeds = Rules(blocking, stream), [(0, element) for element in stream]
        check_promises(
            lambda: Align(blocking),
            identity,
            feeds,
            on_update=blocking == 0,
            stable=rules.stable,
            retained=rules.retained,
        )
        check_batches(lambda: Align(blocking), identity, feeds, rng)


@each_blocking
@seeds(20)
def test_revisions_leave_no_trace(blocking: int, seeds: range) -> None:
    for seed in seeds:
        stream = legal_stream(Random(seed))
        revised = tdb_of(one_by_one(Align(blocking), stream))
        assert revised == tdb_of(one_by_one(Align(blocking), without_revisions(stream)))


@seeds(50)
def test_full_blocking_is_cleanse(seeds: range) -> None:
    """Element by element: final events in order, and no adjust."""
    for seed in seeds:
        stream = legal_stream(Random(seed))
        align, cleanse = Align(INFINITY), Cleanse(payload_order)
        emitted = one_by_one(align, stream)
        assert emitted == one_by_one(cleanse, stream)
        assert inserts_only(emitted)
        assert in_order(emitted)


@seeds(30)
def test_no_blocking_is_no_operator(seeds: range) -> None:
    for seed in seeds:
        stream = legal_stream(Random(seed))
        align, point = Align(0), START
        for element in stream:
            changes = type(element) is not Stable or element.vc > point
            assert align.process(element) == ([element] if changes else [])
            point = max(point, align.stable)


@seeds(20)
def test_more_blocking_means_fewer_revisions(seeds: range) -> None:
    revisions = [
        sum(
            type(e) is Adjust
            for seed in seeds
            for e in one_by_one(Align(b), legal_stream(Random(seed)))
        )
        for b in BLOCKING
    ]
    assert revisions == sorted(revisions, reverse=True)
    assert revisions[0] > revisions[-1] == 0


def one_by_one(operator: Any, stream: Sequence[Element]) -> list[Element]:
    return [emitted for element in stream for emitted in operator.process(element)]


def test_events_that_start_together_leave_together_in_the_order_of_their_payloads() -> None:
    align = Align(2)
    for payload in ("c", "a", "b"):
        assert align.process(Insert(payload, 1, 9)) == []
    assert align.process(Insert("z", 3, 4)) == [Insert(p, 1, 9) for p in ("a", "b", "c")]


def test_a_release_raises_the_stable_and_takes_what_is_final_along() -> None:
    align = Align(5)
    assert align.process_batch([Insert("a", 3, 20), Insert("b", 6, 8)]) == []
    assert align.process(Stable(10)) == [Stable(3)]
    assert align.process(Insert("c", 10, 12)) == [
        Insert("a", 3, 20),
        Insert("b", 6, 8),
        Stable(10),
    ]
    align.check()


def test_what_was_retracted_while_it_was_held_holds_nothing() -> None:
    align = Align(5)
    align.process_batch([Insert("a", 3, 20), Insert("b", 6, 20), Adjust("b", 6, 20, 6)])
    assert align.process(Stable(10)) == [Stable(3)]
    assert align.process(Insert("c", 10, 12)) == [Insert("a", 3, 20), Stable(10)]
    align.check()


def test_restored_it_waits_for_the_same() -> None:
    align, restored = Align(5), Align(5)
    align.process_batch([Insert("a", 3, 20), Insert("b", 6, 8), Stable(10)])
    restored.restore(align.snapshot())
    restored.check()
    assert len(restored) == 2


def test_a_negative_blocking_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Align(-1)


def test_a_stable_that_releases_nothing_costs_nothing() -> None:
    """Most stables find the first event still open."""
    for events in (100, 400):
        align = Align(INFINITY, lambda payload: pytest.fail("nothing is to be sorted"))
        align.process_batch([Insert(at, at, 10_000) for at in range(events)])
        for point in range(1, 50):
            assert align.process(Stable(point)) == ([Stable(0)] if point == 1 else [])


# --- vectors --------------------------------------------------------------------------------------


class Readings(Align):
    """Releases by given readings of a clock, one per element; the last stays."""

    __slots__ = ("_readings", "_until")

    def __init__(self, readings: Sequence[int]) -> None:
        super().__init__(INFINITY)
        self._readings: Iterator[int] = iter(readings)
        self._until = START - 1

    def process(self, element: Element, port: int = 0) -> list[Element]:
        self._until = next(self._readings, self._until)
        return super().process(element, port)

    def _released_until(self) -> int:
        return self._until


BY_TDB = {
    "ce-align-3": "its readings fall, which no clock of events does",
    "ce-align-5": "it contradicts ce-align-8: b may not overtake a, which is open",
    "ce-align-6": "ve = c is not final where ends grow",
}


@pytest.mark.parametrize("case", cases("speculative", "ce-align-"), ids=lambda case: case["id"])
def test_cedr_align(case: dict[str, Any]) -> None:
    given, expect = case["given"], [elements(rows) for rows in case["expect"]["outputs"]]
    align = Readings(given["outputtime"])
    if case["id"] == "ce-align-10":  # the first stable comes out: we begin at START, not at 0
        expect[1] = [Stable(0)]
    emitted = outputs_of(align, given)
    align.check()
    if case["id"] in BY_TDB:
        emitted.append(align.process(Stable(INFINITY)))
        assert tdb_of([*chain(*emitted)]) == tdb_of([*chain(*expect)])
    else:
        assert emitted == expect
