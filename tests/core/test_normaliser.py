"""The normaliser: canonical after every element, legal whatever the input publishes, and what
merging snapshot-equivalent plans comes to with it and without."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import BreachKind, lmerge, restore
from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.tdb import TDB, Event, reconstitute
from lmerge_service.workloads.lifetime import lives_of
from lmerge_service.workloads.presentation import Variation, present
from tests.core.harness import Watched
from tests.strategies import (
    any_elements,
    interleavings,
    logical_streams,
    lying_presentations,
    presentations,
    seeded_presentations,
)

VECTORS = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "vectors" / "pipes.json").read_text())
}


def canonical(events: Iterable[tuple[Any, int, int]]) -> list[Event]:
    """The definition, from f alone: the maximal intervals of each layer {t : f(t) >= k}."""
    by_payload: dict[Any, list[tuple[int, int]]] = {}
    for payload, vs, ve in events:
        by_payload.setdefault(payload, []).append((vs, ve))
    found = []
    for payload, spans in by_payload.items():
        times = sorted({time for span in spans for time in span})
        f = [sum(vs <= time < ve for vs, ve in spans) for time in times]
        for k in range(1, max(f) + 1):
            steps = list(zip(times, [0, *f], f, strict=False))  # (time, f before, f from there on)
            starts = [time for time, was, now in steps if was < k <= now]
            ends = [time for time, was, now in steps if now < k <= was]
            found += [Event(payload, *span) for span in zip(starts, ends, strict=True)]
    return found


def split(events: Iterable[Event], length: int) -> list[Event]:
    """The split operator over events, ordered by start."""
    pieces = [
        Event(payload, start, min(start + length, ve))
        for payload, vs, ve in events
        for start in range(vs, ve, length)
    ]
    return sorted(pieces, key=lambda piece: piece.vs)


def events(rows: Iterable[Sequence[Any]]) -> list[Event]:
    return [Event(*row) for row in rows]


def inserts(found: Iterable[Event]) -> list[Element]:
    return [Insert(*event) for event in found]


class Held:
    """Feeds a normaliser and holds it to what it promises, after every element."""

    def __init__(self) -> None:
        self.normaliser = Normaliser()
        self.input = TDB()
        self.output = TDB()

    def process(self, element: Element) -> list[Element]:
        before = Counter(self.output)
        illegal = self.input.violation(element)
        refused = len(self.normaliser.refused)
        emitted = self.normaliser.process(element)
        if illegal is None:
            self.input.apply(element)
        if type(element) is Stable:
            assert emitted == [element]
        for one in emitted if type(element) is not Stable or illegal is None else ():
            self.output.apply(one)  # raises when it is not legal
        assert (len(self.normaliser.refused) > refused) == bool(
            illegal and type(element) is not Stable
        )
        assert self.output == TDB(canonical(self.input))
        assert type(element) is Stable or len(emitted) == _fewest(before, Counter(self.output))
        self.normaliser.check()
        assert len(self.normaliser) == self._live()
        return emitted

    def _live(self) -> int:
        last = self.input.stable
        return 0 if last == INFINITY else sum(event.ve >= last for event in self.input)


def _fewest(before: Counter[Event], after: Counter[Event]) -> int:
    """No element changes more than one end, so a change takes this many."""
    gone = Counter((payload, vs) for payload, vs, _ in (before - after).elements())
    come = Counter((payload, vs) for payload, vs, _ in (after - before).elements())
    return (gone | come).total()


# The form


@given(st.data())
def test_the_output_is_legal_and_canonical_after_every_element(data: st.DataObject) -> None:
    logical = data.draw(logical_streams(unique_keys=False))
    (elements,) = data.draw(
        presentations(logical, 1, "R4") | seeded_presentations(logical, 1, "R4")
    )
    held = Held()
    for element in elements:
        held.process(element)
    assert held.output == TDB(canonical(logical))
    assert not held.normaliser.refused
    assert (len(held.normaliser), held.normaliser._lines) == (0, {}), "no state after the end"


@given(st.data())
def test_whatever_an_input_publishes_the_output_is_the_form_of_what_was_legal(
    data: st.DataObject,
) -> None:
    logical = data.draw(logical_streams(unique_keys=False))
    elements = data.draw(
        lying_presentations(logical, 1, "R4").map(lambda made: made[0])
        | st.lists(any_elements(), max_size=20)
    )
    held = Held()
    for element in elements:
        held.process(element)


@pytest.mark.full
def test_twenty_thousand_elements_of_one_payload_in_all_kinds_of_overlap() -> None:
    """Deep nesting, which drawn streams seldom have."""
    rng = Random(5)
    for _ in range(500):
        held = Held()
        for _ in range(40):
            held.process(_any_legal(rng, held.input))


def _any_legal(rng: Random, tdb: TDB) -> Element:
    c, draw = max(tdb.stable, 0), rng.random()
    live = [event for event in tdb if event.ve >= c]
    if draw < 0.05:
        return Stable(c + rng.randint(1, 4))
    if draw < 0.5 or not live:
        vs = c + rng.randint(0, 9)
        return Insert("A", vs, rng.choice((vs + rng.randint(1, 9), INFINITY)))
    payload, vs, vold = rng.choice(live)
    least = max(vs, c)
    return Adjust(payload, vs, vold, rng.choice((least, least + rng.randint(0, 12), INFINITY)))


@given(st.data())
def test_a_key_of_the_input_is_a_key_of_every_prefix(data: st.DataObject) -> None:
    """So case R3 stays case R3, even where events of one payload overlap."""
    logical = data.draw(logical_streams())
    (elements,) = data.draw(presentations(logical, 1) | seeded_presentations(logical, 1))
    normaliser, output = Normaliser(), TDB()
    for element in elements:
        for emitted in normaliser.process(element):
            output.apply(emitted)
            keys = Counter((payload, vs) for payload, vs, _ in output)
            assert max(keys.values(), default=1) == 1


@given(st.data())
def test_batches_emit_what_single_elements_emit(data: st.DataObject) -> None:
    (elements,) = data.draw(lying_presentations(data.draw(logical_streams()), 1))
    one, many = Normaliser(), Normaliser()
    singly = [out for element in elements for out in one.process(element)]
    cut = data.draw(st.integers(0, len(elements)))
    assert many.process_batch(elements[:cut]) + many.process_batch(elements[cut:]) == singly
    assert many.refused == one.refused


@pytest.mark.parametrize(
    ("elements", "emitted"),
    [
        ([Insert("A", 1, 5), Insert("A", 5, 9)], [Adjust("A", 1, 5, 9)]),
        ([Insert("A", 5, 9), Insert("A", 1, 5)], [Adjust("A", 5, 9, 5), Insert("A", 1, 9)]),
        ([Insert("A", 1, 5), Insert("A", 9, 12), Insert("A", 5, 9)],
         [Adjust("A", 1, 5, 12), Adjust("A", 9, 12, 9)]),
        ([Insert("A", 1, 8), Insert("A", 4, 9)], [Adjust("A", 1, 8, 9), Insert("A", 4, 8)]),
        ([Insert("A", 4, 9), Insert("A", 1, 8)], [Adjust("A", 4, 9, 8), Insert("A", 1, 9)]),
        ([Insert("A", 1, 4), Insert("A", 2, 9)], [Adjust("A", 1, 4, 9), Insert("A", 2, 4)]),
        ([Insert("A", 1, 4), Insert("A", 1, 9)], [Insert("A", 1, 9)]),
        ([Insert("A", 1, 4), Insert("A", 1, 4)], [Insert("A", 1, 4)]),
        ([Insert("A", 1, 5), Insert("B", 5, 9)], [Insert("B", 5, 9)]),
        ([Insert("A", 1, 5), Insert("A", 5, 9), Adjust("A", 5, 9, 5)], [Adjust("A", 1, 9, 5)]),
        ([Insert("A", 1, 5), Insert("A", 5, 9), Adjust("A", 1, 5, 1)],
         [Adjust("A", 1, 9, 1), Insert("A", 5, 9)]),
        ([Insert("A", 1, 5), Insert("A", 5, 9), Insert("A", 9, 12), Adjust("A", 5, 9, 5)],
         [Adjust("A", 1, 12, 5), Insert("A", 9, 12)]),
        ([Insert("A", 1, 5), Adjust("A", 1, 5, 5)], []),
        ([Insert("A", 1, INFINITY), Adjust("A", 1, INFINITY, 5)], [Adjust("A", 1, INFINITY, 5)]),
        ([Insert("A", 1, 5), Stable(5), Insert("A", 5, 9)], [Adjust("A", 1, 5, 9)]),
        ([Insert("A", 1, 5), Stable(6), Insert("A", 6, 9)], [Insert("A", 6, 9)]),
        ([Insert("A", 1, 9), Stable(5), Stable(4)], [Stable(4)]),
    ],
)  # fmt: skip
def test_what_the_last_element_changes(elements: list[Element], emitted: list[Element]) -> None:
    held = Held()
    for element in elements[:-1]:
        held.process(element)
    assert held.process(elements[-1]) == emitted


@pytest.mark.parametrize(
    ("elements", "kind"),
    [
        ([Stable(5), Insert("A", 4, 9)], BreachKind.BROKE_OWN_STABLE),
        ([Insert("A", 1, 9), Stable(5), Adjust("A", 1, 9, 4)], BreachKind.BROKE_OWN_STABLE),
        ([Insert("A", 1, 4), Stable(5), Adjust("A", 1, 4, 9)], BreachKind.BROKE_OWN_STABLE),
        ([Insert("A", 1, 9), Adjust("A", 2, 9, 8)], BreachKind.UNKNOWN_EVENT),
        ([Insert("A", 1, 9), Adjust("B", 1, 9, 8)], BreachKind.UNKNOWN_EVENT),
        ([Insert("A", 1, 9), Adjust("A", 1, 8, 7)], BreachKind.WRONG_VOLD),
        # What the canonical form holds is not what the input holds.
        ([Insert("A", 1, 5), Insert("A", 5, 9), Adjust("A", 1, 9, 7)], BreachKind.WRONG_VOLD),
        ([Stable(INFINITY), Insert("A", 1, 9)], BreachKind.BROKE_OWN_STABLE),
    ],
)
def test_what_cannot_be_applied_is_refused_and_blamed(
    elements: list[Element], kind: BreachKind
) -> None:
    held, merge = Held(), lmerge()
    merge.attach("a")
    for element in elements:
        emitted = held.process(element)
        merge.process_batch("a", emitted)
    assert emitted == []
    assert held.normaliser.refused == [(kind, elements[-1])]
    held.normaliser.blame(merge, "a")
    assert [(each.input, each.kind, each.element) for each in merge.breaches()] == [
        ("a", kind, elements[-1])
    ]
    assert merge.inputs["a"].breaches == {kind: 1}
    assert held.normaliser.refused == []


# Merging plans that are snapshot equivalent


def history(rng: Random, payloads: int = 3, spans: int = 4) -> list[Event]:
    """Intervals of each payload that neither overlap nor touch."""
    found = []
    for payload in range(payloads):
        time = 0
        for _ in range(spans):
            start = time + rng.randint(1, 6)
            time = start + rng.randint(1, 12)
            found.append(Event(payload, start, time))
    return found


def cut_anew(rng: Random, found: Iterable[Event]) -> list[Event]:
    """The same at every instant, cut at random times."""
    pieces = []
    for payload, vs, ve in found:
        cuts = sorted(rng.sample(range(vs + 1, ve), rng.randint(0, min(3, ve - vs - 1))))
        pieces += [Event(payload, *span) for span in zip([vs, *cuts], [*cuts, ve], strict=True)]
    return sorted(pieces, key=lambda piece: piece.vs)


REVISED = Variation(
    provisional=0.4, revisions=2, spread=8, endless=0.2, reinserted=0.1, phantoms=0.1, lead=3,
    disorder=0.3, displacement=6, stable_every=4,
)  # fmt: skip


def plans(rng: Random, found: list[Event], n: int = 2) -> list[list[Element]]:
    """Ways to present a history: cut, ordered and revised each in its own."""
    return [
        list(present(lives_of(cut_anew(rng, found)), REVISED, rng.randint(0, 2**30)))
        for _ in range(n)
    ]


def merged(rng: Random, streams: list[list[Element]], case: str = "R3") -> tuple[TDB, int]:
    """What a merge emits, and how many breaches it found."""
    merge, output = lmerge(case), TDB()
    left = {str(number): list(reversed(elements)) for number, elements in enumerate(streams)}
    for name in left:
        merge.attach(name)
    while left:
        name = rng.choice(list(left))
        for emitted in merge.process(name, left[name].pop()):
            output.apply(emitted)
        if not left[name]:
            del left[name]
    return output, len(merge.breaches())


PAIRS = 500


@pytest.mark.full
def test_random_plan_pairs_merge_wrongly_without_the_normaliser_and_rightly_with_it() -> None:
    without = within = breaches = 0
    for seed in range(PAIRS):
        rng = Random(seed)
        found = history(rng)
        streams = plans(rng, found)
        expected = TDB(canonical(found))
        output, _ = merged(Random(seed), streams)
        without += TDB(canonical(output)) != expected  # wrong at some instant, not only cut anew
        output, blamed = merged(
            Random(seed), [Normaliser().process_batch(each) for each in streams]
        )
        within += output != expected
        breaches += blamed
    assert without > 0.6 * PAIRS, without
    assert (within, breaches) == (0, 0)


def test_random_plan_pairs_that_overlap_are_merged_rightly_in_case_r4() -> None:
    without = within = breaches = 0
    for seed in range(PAIRS // 2):
        rng = Random(seed)
        found = [event for _ in range(3) for event in history(rng, payloads=2, spans=2)]
        expected = TDB(canonical(found))
        streams = [*plans(rng, found, n=1), *plans(rng, canonical(found), n=1)]
        output, _ = merged(Random(seed), streams, "R4")
        without += TDB(canonical(output)) != expected
        forms = [Normaliser().process_batch(each) for each in streams]
        output, blamed = merged(Random(seed), forms, "R4")
        within += output != expected
        breaches += blamed
    assert without > PAIRS / 4, without
    assert (within, breaches) == (0, 0)


@given(st.integers(0, 2**32), st.data())
def test_a_merge_of_normalised_plans_is_compatible_after_every_element(
    seed: int, data: st.DataObject
) -> None:
    rng = Random(seed)
    found = history(rng, payloads=2, spans=2)
    streams = plans(rng, found, n=3)
    normalisers = [Normaliser() for _ in streams]
    watched = Watched([str(number) for number in range(len(streams))])
    for number, element in data.draw(interleavings(streams)):
        for emitted in normalisers[number].process(element):
            watched.process(str(number), emitted)
    assert watched.output == TDB(found)
    assert len(watched.merge) == 0


@given(st.data())
def test_plans_that_overlap_become_equivalent_too(data: st.DataObject) -> None:
    """With a multiset of events, whose pieces may be put together in other ways."""
    logical = data.draw(logical_streams(unique_keys=False))
    finite = [Event(payload, vs, min(ve, 40)) for payload, vs, ve in logical]
    rng = Random(data.draw(st.integers(0, 2**32)))
    (one,) = data.draw(presentations(finite, 1, "R4"))
    (two,) = data.draw(presentations(cut_anew(rng, canonical(finite)), 1, "R4"))
    outputs = [reconstitute(Normaliser().process_batch(each)) for each in (one, two)]
    assert outputs[0] == outputs[1] == TDB(canonical(finite))


# The worked examples


def normalised(found: Iterable[Event]) -> TDB:
    return reconstitute(Normaliser().process_batch(inserts(found)))


def test_coalesce_of_the_papers_stream() -> None:
    given, expect = events(VECTORS["P11.1b"]["expect"]), events(VECTORS["P11.15"]["expect"])
    assert normalised(given) == TDB(expect)


def test_the_normaliser_undoes_split() -> None:
    """No event of this stream touches or crosses another of its payload: it is canonical."""
    given, expect = events(VECTORS["P11.1a"]["expect"]), events(VECTORS["P11.14"]["expect"])
    assert TDB(split(given, 1)) == TDB(expect)
    assert normalised(expect) == normalised(given) == TDB(given)


@pytest.mark.parametrize("seed", range(5))
def test_the_snapshot_equivalent_set_is_equal_in_any_order(seed: int) -> None:
    rng = Random(seed)
    forms = [rng.sample(rows, len(rows)) for rows in VECTORS["D1"]["expect"]]
    whole = TDB(events(VECTORS["P11.15"]["expect"]))
    assert [normalised(events(form)) == whole for form in forms] == [True] * 3


@pytest.mark.parametrize(
    ("wrong", "case", "whole", "pieces"),
    [
        ("D4", "R0", VECTORS["D2"]["expect"][1], VECTORS["D2"]["expect"][0]),
        ("D5", "R2", VECTORS["P11.15"]["expect"], VECTORS["P11.1b"]["expect"]),
    ],
)
def test_what_merges_wrongly_in_the_vectors_is_mended(
    wrong: str, case: str, whole: list[Any], pieces: list[Any]
) -> None:
    """The coalesced plan leads at each start. The mended merge needs R3: the form is revised."""
    forms = {"whole": whole, "pieces": pieces}
    rows = [(row[1], name, Event(*row)) for name, form in forms.items() for row in form]
    steps = [(name, event) for _, name, event in sorted(rows, key=lambda row: row[0])]

    def output_of(case: str, normalisers: dict[str, Normaliser]) -> TDB:
        merge, output = lmerge(case), TDB()
        merge.attach("whole")
        merge.attach("pieces")
        for name, event in steps:
            received: list[Element] = [Insert(*event)]
            if normalisers:
                received = normalisers[name].process(received[0])
            for emitted in merge.process_batch(name, received):
                output.apply(emitted)
        for name in ("whole", "pieces"):
            for emitted in merge.process(name, Stable(INFINITY)):
                output.apply(emitted)
        return output

    expected = TDB(events(VECTORS[wrong]["expect"]))
    assert output_of(case, {}) == expected, "as in the vector"
    mended = output_of("R3", {"whole": Normaliser(), "pieces": Normaliser()})
    assert mended == TDB(events(whole)) == TDB(canonical(events(pieces)))


# Determinism, state and cost


def test_the_output_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from random import Random\n"
        "from lmerge_service.core.normaliser import Normaliser\n"
        "from tests.core.test_normaliser import history, plans\n"
        "rng = Random(7)\n"
        "streams = [plans(rng, [event._replace(payload=f'p{event.payload}') for event in"
        " history(rng, 20)])[0] for _ in range(5)]\n"
        "print([Normaliser().process_batch(each) for each in streams])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "1234")
    }
    assert len(outputs) == 1
    assert "Adjust(" in outputs.pop()


def test_a_stable_touches_what_it_makes_final_and_nothing_else() -> None:
    for h in (100, 10_000):
        normaliser = Normaliser()
        normaliser.process_batch(Insert(k, k % 100, 10_000 + k) for k in range(h))
        before = normaliser.touched
        normaliser.process_batch(Stable(t) for t in range(100, 10_000))
        assert normaliser.touched == before
        normaliser.process(Stable(10_001))
        assert normaliser.touched == before + 2, "one payload, one event"
        assert len(normaliser) == h - 1


def _work(n: int, width: int) -> int:
    """A payload's n pieces, each inserted without end and then cut, `width` open at a time."""
    normaliser = Normaliser()
    for k in range(n):
        normaliser.process(Insert("A", 10 * k, INFINITY))
        if k >= width:
            vs = 10 * (k - width)
            normaliser.process(Adjust("A", vs, INFINITY, vs + 10))
            normaliser.process(Stable(vs + 10))
    assert len(normaliser) <= width + 1
    normaliser.check()
    return normaliser.touched


@pytest.mark.parametrize("width", [1, 10])
def test_work_grows_with_the_stream(width: int) -> None:
    start, once, four_times = (_work(n, width) for n in (1_000, 2_000, 5_000))
    assert 0 < four_times - start <= 4.1 * (once - start)


def test_a_payload_whose_events_do_not_overlap_costs_the_same_however_many_there_are() -> None:
    for n in (100, 5_000):
        normaliser = Normaliser()
        normaliser.process_batch(Insert("A", 10 * k, 10 * k + 5) for k in range(n))
        before = normaliser.touched
        normaliser.process(Insert("A", 505, 510))
        normaliser.process(Adjust("A", 505, 510, 507))
        normaliser.process(Adjust("A", 505, 507, 505))
        assert normaliser.touched - before < 20


def test_events_that_were_removed_leave_no_memory_without_any_stable() -> None:
    normaliser = Normaliser()
    for k in range(10_000):
        normaliser.process_batch([Insert(k, k, INFINITY), Adjust(k, k, INFINITY, k)])
    normaliser.check()
    assert (len(normaliser), normaliser._lines) == (0, {})
    assert len(normaliser._expiry._heap) < 100


def test_an_event_that_is_extended_for_ever_leaves_the_heap_short() -> None:
    normaliser = Normaliser()
    normaliser.process(Insert("A", 0, 10))
    for k in range(10, 10_000):
        normaliser.process_batch([Adjust("A", 0, k, k + 1), Stable(k)])
    normaliser.check()
    assert len(normaliser._expiry._heap) < 100
    assert list(normaliser._lines) == ["A"]


# Snapshots


@given(st.lists(any_elements(), max_size=25), st.integers(0, 25), st.integers(1, 4))
def test_a_restored_normaliser_goes_on_the_same(
    elements: list[Element], cut: int, payloads: int
) -> None:
    original = Normaliser()
    original.process_batch(elements[:cut])
    original.refused.clear()
    parts = list(original.parts(payloads))
    twins = Normaliser.restore_parts(iter(parts)), Normaliser.restore(original.snapshot())
    for twin in twins:
        twin.check()
        assert (len(twin), twin.stable) == (len(original), original.stable)
        assert list(twin.parts(payloads)) == parts
    for element in elements[cut:]:
        emitted = original.process(element)
        for twin in twins:
            assert twin.process(element) == emitted
            assert twin.refused == original.refused
            twin.check()


def test_damaged_state_of_a_normaliser_is_refused() -> None:
    original = Normaliser()
    original.process_batch([Insert(name, 1, 5) for name in "ABC"])
    saved, parts = original.snapshot(), list(original.parts(1))
    for place in range(len(saved)):
        with pytest.raises(StateError):
            Normaliser.restore(saved[:place] + bytes([saved[place] ^ 0x41]) + saved[place + 1 :])
    for damaged in ([], parts[1:], parts[:-1], [parts[0], *parts[2:]]):
        with pytest.raises(StateError):
            Normaliser.restore_parts(damaged)
    with pytest.raises(StateError, match="damaged"):
        Normaliser.restore(lmerge().snapshot())
    with pytest.raises(StateError, match="damaged"):
        restore(saved)


def test_after_the_end_of_the_stream_it_has_no_events() -> None:
    normaliser = Normaliser()
    normaliser.process_batch([Insert("A", 1, 9), Insert("B", 2, INFINITY), Stable(INFINITY)])
    assert len(normaliser) == 0


def test_ends_that_fall_leave_the_heap_compact_without_a_stable() -> None:
    normaliser = Normaliser()
    for end in range(300, 100, -1):
        normaliser.process(Insert("A", 1, end))
        normaliser.check()


def test_a_stable_passes_the_end_of_an_event_that_was_removed() -> None:
    normaliser = Normaliser()
    normaliser.process_batch([Insert("A", 1, 9), Adjust("A", 1, 9, 1)])
    assert normaliser.process(Stable(20)) == [Stable(20)]
