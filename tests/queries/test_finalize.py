"""Finalize and Repair: what is late, and what comes too early."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.operators.finalize import Finalize, Repair
from lmerge_service.tdb import TDB
from tests.queries.promises import Run, check_batches, check_promises, tdb_of
from tests.queries.streams import legal_stream
from tests.queries.vectors import cases, elements, outputs_of
from tests.seeds import seeds

MEMORY = (0, 1, 3, INFINITY)


class Late:
    """The definition, over all that has come: [payload, vs, end as given, end as emitted]."""

    def __init__(self, memory: int) -> None:
        self.memory, self.late = memory, 0
        self.events: list[list[Any]] = []
        self.greatest = self.closed = START

    @property
    def point(self) -> int:
        forced = self.greatest - self.memory if self.memory < INFINITY else START
        return max(self.closed, forced)

    def apply(self, element: Element) -> None:
        if type(element) is Stable:
            self.closed = max(self.closed, element.vc)
        elif type(element) is Insert:
            if element.vs < self.point:
                self.late += 1
            else:
                self.events.append([element.payload, element.vs, element.ve, element.ve])
                self.greatest = max(self.greatest, element.vs)
        elif type(element) is Adjust:
            self._adjust(element)

    def _adjust(self, element: Adjust[Any]) -> None:
        key = [element.payload, element.vs, element.vold]
        found = [event for event in self.events if event[:3] == key]
        if not found:
            self.late += 1
            return
        event = max(found, key=lambda event: event[3])
        event[2] = None if element.ve == element.vs else element.ve
        if min(event[3], element.ve) < self.point:
            self.late += 1
        elif event[2] is None:
            self.events.remove(event)
        else:
            event[3] = element.ve

    def emitted(self) -> TDB:
        return TDB((payload, vs, end) for payload, vs, _, end in self.events)

    def live(self) -> int:
        if self.point == INFINITY:
            return 0
        return sum(e[2] is not None and e[3] >= self.point for e in self.events)


@pytest.mark.parametrize("memory", MEMORY)
@seeds(60)
def test_what_is_late_is_dropped(memory: int, seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        stream = legal_stream(rng, payloads=("a", "b"), length=20)
        rules, final = Late(memory), Run(lambda: Finalize(memory))
        operator = final.operator
        assert isinstance(operator, Finalize)
        restore_at = rng.randrange(len(stream))
        for position, element in enumerate(stream):
            if position == restore_at:
                saved = operator.snapshot()
                operator = final.operator = Finalize(memory)
                operator.restore(saved)
            rules.apply(element)
            final.feed(element)
            assert final.output == rules.emitted()
            assert operator.stable == max(rules.point, START)
            assert operator.late == rules.late
            assert len(operator) == rules.live()


@pytest.mark.parametrize("memory", MEMORY)
@seeds(60)
def test_batches_make_no_difference(memory: int, seeds: range) -> None:
    """Replicas must agree on what is late, however their input is cut."""
    for seed in seeds:
        rng = Random(seed)
        stream = legal_stream(rng, length=20)
        one, other = Run(lambda: Finalize(memory)), Run(lambda: Finalize(memory))
        left = list(stream)
        while left:
            size = rng.choice((1, 2, 5, 9))
            batch, left = left[:size], left[size:]
            for element in batch:
                one.feed(element)
            other.feed_batch(batch)
            assert one.output == other.output
            assert one.operator.stable == other.operator.stable
        assert one.operator.late == other.operator.late  # type: ignore[attr-defined]
        assert len(one.operator) == len(other.operator)


@seeds(60)
def test_all_memory_changes_nothing(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        feeds = [(0, element) for element in legal_stream(rng)]
        check_promises(
            lambda: Finalize(INFINITY),
            lambda tdb: tdb,
            feeds,
            stable=lambda run: run.inputs[0].stable,
            retained=lambda run: sum(e.ve >= run.inputs[0].stable for e in run.inputs[0]),
        )
        check_batches(lambda: Finalize(INFINITY), lambda tdb: tdb, feeds, rng)


def test_an_adjust_of_what_was_dropped_is_dropped() -> None:
    final = Finalize(0)
    assert final.process(Insert("a", 8, 11)) == [Insert("a", 8, 11), Stable(8)]
    assert final.process(Insert("a", 1, 6)) == []
    assert final.process(Adjust("a", 1, 6, 16)) == []
    assert final.late == 2


def test_an_adjust_starts_from_what_was_emitted() -> None:
    final = Finalize(10)
    final.process_batch([Insert("a", 1, 30), Insert("b", 20, 25)])
    assert final.process(Adjust("a", 1, 30, 7)) == []
    assert final.process(Adjust("a", 1, 7, 16)) == [Adjust("a", 1, 30, 16)]
    assert final.process(Adjust("a", 1, 16, 16)) == []
    assert final.late == 1


def test_what_became_final_within_a_batch_is_adjusted_no_more() -> None:
    """Two events that the source gives one end: one was emitted with it and is final."""
    stream: list[Element] = [
        Insert("a", 1, 30),
        Insert("a", 1, 7),
        Insert("b", 20, 25),
        Adjust("a", 1, 30, 7),
        Adjust("a", 1, 7, 16),
    ]
    together, one_by_one = Finalize(10), Finalize(10)
    wanted = TDB([("a", 1, 16), ("a", 1, 7), ("b", 20, 25)])
    assert tdb_of(together.process_batch(stream)) == wanted
    assert tdb_of([e for element in stream for e in one_by_one.process(element)]) == wanted
    assert (len(together), together.late) == (len(one_by_one), one_by_one.late) == (2, 1)


def test_finalize_forgets_only_what_it_makes_final() -> None:
    for alive in (100, 400):
        final = Finalize(INFINITY)
        final.process_batch([Insert(at, 1, 10_000) for at in range(alive)])
        final.process_batch([Insert("short", 1, end) for end in range(2, 12)])
        for point in range(2, 40):
            final.process(Stable(point))
        assert final.touched == 10


def test_a_negative_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Finalize(-1)


# --- repair ---------------------------------------------------------------------------------------


def by_partitions(rng: Random, stream: Sequence[Element], partitions: int) -> list[Element]:
    """A stream whose elements come by several partitions, each in its order; a stable goes to all,
    and holds when all have passed it."""
    queues: list[list[Element]] = [[] for _ in range(partitions)]
    for element in stream:
        if type(element) is Stable:
            for queue in queues:
                queue.append(element)
        else:
            rng.choice(queues).append(element)
    points, merged = [START] * partitions, []
    while any(queues):
        at = rng.choice([at for at, queue in enumerate(queues) if queue])
        element = queues[at].pop(0)
        if type(element) is not Stable:
            merged.append(element)
        elif element.vc > points[at]:
            behind, points[at] = min(points), element.vc
            if min(points) > behind:
                merged.append(Stable(min(points)))
    return merged


@seeds(150)
def test_what_overtook_its_event_is_put_behind_it(seeds: range) -> None:
    overtook = 0
    for seed in seeds:
        rng = Random(seed)
        stream = legal_stream(rng, payloads=("a", "b"), length=25, horizon=10)
        final = tdb_of(stream)
        merged = by_partitions(rng, stream, 3)
        repair, restored, output = Repair(), Repair(), TDB()
        restore_at = rng.randrange(len(merged))
        for position, element in enumerate(merged):
            if position == restore_at:
                restored.restore(repair.snapshot())
            emitted = repair.process(element)
            if position >= restore_at:
                assert restored.process(element) == emitted
            overtook += not emitted
            repair.check()
            for each in emitted:
                output.apply(each)
            point = repair.stable
            assert output.stable == point
            assert output.before(point) == final.before(point)
        assert output == final
        assert (repair.dropped, len(repair), repair.refused) == (0, 0, [])
    assert overtook > len(seeds)


@seeds(60)
def test_repair_passes_what_is_in_order(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        feeds = [(0, element) for element in legal_stream(rng)]
        check_promises(
            Repair,
            lambda tdb: tdb,
            feeds,
            stable=lambda run: run.inputs[0].stable,
            retained=lambda run: sum(e.ve >= run.inputs[0].stable for e in run.inputs[0]),
        )
        check_batches(Repair, lambda tdb: tdb, feeds, rng)


@seeds(100)
def test_whatever_comes_the_repaired_stream_is_legal(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        repair, output = Repair(), TDB()
        for _ in range(25):
            vs = rng.randrange(5)
            vold, ve = vs + rng.randrange(1, 5), vs + rng.randrange(5)
            drawn: list[Element] = [
                Insert("a", vs, vold), Adjust("a", vs, vold, ve), Stable(rng.randrange(8))
            ]  # fmt: skip
            for emitted in repair.process(rng.choices(drawn, (3, 5, 1))[0]):
                output.apply(emitted)
            repair.check()


def test_adjusts_that_lead_around_in_a_circle_do_not_wait() -> None:
    """What is left would lead astray when a stable has taken a part of the circle."""
    repair = Repair()
    for edge in ((9, 6), (6, 12)):
        assert repair.process(Adjust("a", 1, *edge)) == []
    assert len(repair) == 2
    assert repair.process(Adjust("a", 1, 12, 9)) == []
    assert len(repair) == 0
    assert repair.process(Insert("a", 1, 9)) == [Insert("a", 1, 9)]


def test_what_ends_at_the_stable_is_known_beside_what_goes() -> None:
    for operator in (Repair(), Finalize(INFINITY)):
        operator.process_batch([Insert("a", 1, 5), Insert("a", 1, 6), Stable(6)])
        assert len(operator) == 1
        assert operator.process(Adjust("a", 1, 6, 9)) == [Adjust("a", 1, 6, 9)]


def test_what_waits_in_vain_is_dropped_and_counted() -> None:
    repair = Repair()
    repair.process_batch([Adjust("a", 1, 9, 6), Adjust("a", 1, 7, 9), Adjust("a", 1, 12, 8)])
    assert repair.process(Stable(6)) == [Stable(6)]
    assert (repair.dropped, len(repair)) == (0, 3)
    assert repair.process(Stable(7)) == [Stable(7)]
    assert (repair.dropped, len(repair)) == (1, 2)
    assert repair.process(Stable(INFINITY)) == [Stable(INFINITY)]
    assert (repair.dropped, len(repair)) == (3, 0)


def test_what_breaks_the_stable_is_refused() -> None:
    repair = Repair()
    repair.process(Stable(5))
    for wrong in (Insert("a", 4, 9), Adjust("a", 1, 4, 9), Adjust("a", 1, 9, 4)):
        assert repair.process(wrong) == []
        assert repair.refused.pop() == (0, BreachKind.BROKE_OWN_STABLE, wrong)
    assert len(repair) == 0


# --- vectors --------------------------------------------------------------------------------------

FINALIZE = {case["id"]: case for case in cases("speculative", "ce-finalize-")}


@pytest.mark.parametrize("number", ["3", "4", "5"])
def test_cedr_broken_chains(number: str) -> None:
    case = FINALIZE[f"ce-finalize-{number}"]
    expect = [elements(rows) for rows in case["expect"]["outputs"]]
    assert outputs_of(Repair(), case["given"]) == expect


def test_the_cases_left_out_are_those_of_stables_with_counts() -> None:
    """No source counts its elements, so these are not built."""
    external = {
        id_
        for id_, case in FINALIZE.items()
        if any(row[0] == "external" for row in case["given"]["stream"])
    }
    left_out = {f"ce-finalize-{number}" for number in (1, 2, 7, 8, 9, 11)}
    assert external == left_out | {"ce-finalize-table5", "ce-finalize-10"}


def test_cedr_worked_example() -> None:
    """Without its external stable; the walk-through wants that to include its end."""
    case = FINALIZE["ce-finalize-table5"]
    data = elements([row for row in case["given"]["stream"] if row[0] != "external"])
    expect = [elements([row for row in rows if row[0] != "stable"])
              for rows, row in zip(case["expect"]["outputs"], case["given"]["stream"], strict=True)
              if row[0] != "external"]  # fmt: skip
    repair = Repair()
    assert [repair.process(element) for element in data] == expect


class Readings(Finalize):
    """Forces progress by given readings, one per element."""

    __slots__ = ("_readings",)

    def __init__(self, readings: Sequence[int]) -> None:
        super().__init__(INFINITY)
        self._readings = list(readings)

    def process(self, element: Element, port: int = 0) -> list[Element]:
        emitted = super().process(element, port)
        return emitted + super().process(Stable(self._readings.pop(0)))


def test_cedr_forced_progress() -> None:
    case = FINALIZE["ce-finalize-6"]
    final = Readings(case["given"]["finalizetime"])
    expect = [elements(rows) for rows in case["expect"]["outputs"]]
    assert outputs_of(final, case["given"]) == expect
    assert final.late == 1


def test_cedr_a_long_event_is_known_until_its_end() -> None:
    """Its external stable is complete when it comes: a stable at its end."""
    case = FINALIZE["ce-finalize-10"]
    stream = [
        ["stable", row[2]] if row[0] == "external" else row for row in case["given"]["stream"]
    ]
    expect = [elements(rows) for rows in case["expect"]["outputs"]]
    for operator in (Repair(), Finalize(INFINITY)):
        assert outputs_of(operator, {"stream": stream}) == expect
