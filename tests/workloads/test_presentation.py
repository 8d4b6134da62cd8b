"""Presentations are legal, equivalent, deterministic and lazy, whatever the variation."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable, defect
from lmerge_service.tdb import TDB, reconstitute
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.lifetime import Life, deadline, final_tdb
from lmerge_service.workloads.presentation import Variation, present, presentations, timed
from tests.strategies import logical_streams, times, variations

SEEDS = st.integers(0, 2**32)
DAY = [Life(f"{n % 7}", 10 * n, (10 * n + 30, 10 * n + 25)) for n in range(400)]


@st.composite
def lives(draw: st.DrawFn, *, unique_keys: bool = True) -> list[Life]:
    """Logical streams with histories, cancelled events among them."""
    drawn = draw(logical_streams(unique_keys=unique_keys))
    earlier = st.lists(times(0, 12, endless=True), max_size=2)
    last = st.sampled_from(("kept", "kept", "cancelled"))
    return [
        Life(
            payload,
            vs,
            (
                *(min(vs + 1 + end, INFINITY) for end in draw(earlier)),
                *((ve,) if draw(last) == "kept" else (ve, vs)),
            ),
        )
        for payload, vs, ve in drawn
    ]


def of(kind: type[Any], elements: list[Element]) -> list[Any]:
    return [element for element in elements if type(element) is kind]


def floors(elements: list[Element]) -> list[int]:
    """For each stable, the least deadline of what follows it; recomputed from scratch."""
    return [
        min((deadline(e) for e in elements[n:] if not isinstance(e, Stable)), default=INFINITY)
        for n, element in enumerate(elements)
        if isinstance(element, Stable)
    ]


# P1 to P4: the promises


@given(lives(), variations(), SEEDS)
def test_every_presentation_is_legal_and_equivalent(
    logical: list[Life], variation: Variation, seed: int
) -> None:
    elements = list(present(logical, variation, seed))
    assert not any(map(defect, elements))
    assert reconstitute(elements) == final_tdb(logical)


@given(lives(unique_keys=False), variations("R4"), SEEDS)
def test_so_it_is_for_multisets(logical: list[Life], variation: Variation, seed: int) -> None:
    assert reconstitute(present(logical, variation, seed)) == final_tdb(logical)


@given(lives(), variations(), SEEDS)
def test_a_key_of_the_lives_is_a_key_of_every_prefix(
    logical: list[Life], variation: Variation, seed: int
) -> None:
    prefix = TDB()
    for element in present(logical, variation, seed):
        prefix.apply(element)
        keys = Counter((payload, vs) for payload, vs, _ in prefix)
        assert set(keys.values()) <= {1}


@given(lives(), SEEDS, st.integers(0, 10), st.sampled_from((0.0, 1.0)))
def test_without_lag_every_stable_is_as_high_as_it_may_be(
    logical: list[Life], seed: int, lead: int, share: float
) -> None:
    variation = Variation(
        provisional=share, spread=9, phantoms=share, lead=lead, disorder=share, stable_every=1
    )
    elements = list(present(logical, variation, seed))
    assert [stable.vc for stable in of(Stable, elements)] == floors(elements)


@given(lives(), variations(), SEEDS, st.integers(1, 4))
def test_the_placing_of_stables_changes_no_other_element(
    logical: list[Life], variation: Variation, seed: int, every: int
) -> None:
    plain = Variation(
        **{
            name: getattr(variation, name)
            for name in Variation.__slots__
            if "stable" not in name and name != "closed"
        },
        stable_every=every,
        closed=False,
    )
    one, other = (list(present(logical, each, seed)) for each in (variation, plain))
    assert [e for e in one if not isinstance(e, Stable)] == [
        e for e in other if not isinstance(e, Stable)
    ]


FINGERPRINT = """
from hashlib import sha256
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.lies import Lie, lie
from lmerge_service.workloads.joining import joining_from
from lmerge_service.workloads.presentation import Variation, present
v = Variation(provisional=0.5, spread=90000, phantoms=0.2, reinserted=0.1, lead=50000,
              disorder=0.3, displacement=70000, stable_probability=0.1, doubled=0.1)
truth = list(present(workload(events=300, payload_bytes=8), v, "seed"))
lies = lie(truth, Lie(drop=0.1, shift=0.2), 1)
elements = [*truth, *lies, *joining_from(truth, 10**6, partial=0.5)]
print(sha256(repr(elements).encode()).hexdigest())
"""


def test_every_process_presents_the_same_whatever_its_hash_seed() -> None:
    def fingerprint(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert fingerprint("1") == fingerprint("2")


def test_every_seed_gives_a_presentation_of_its_own() -> None:
    variation = Variation(disorder=0.5, displacement=100)
    assert len({repr(list(present(DAY[:20], variation, seed))) for seed in range(50)}) == 50


# What each option does


def test_the_plainest_presentation_publishes_each_event_once_and_ends() -> None:
    elements = list(present(DAY[:2], Variation(ends="final"), 0))
    assert elements == [Insert("0", 0, 25), Insert("1", 10, 35), Stable(INFINITY)]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("all", [Insert("A", 0, 9), Adjust("A", 0, 9, 5), Adjust("A", 0, 5, 7)]),
        ("first", [Insert("A", 0, 9), Adjust("A", 0, 9, 7)]),
        ("final", [Insert("A", 0, 7)]),
    ],
)
def test_ends_selects_among_the_ends_of_a_life(ends: Any, expected: list[Element]) -> None:
    variation = Variation(ends=ends, closed=False)
    assert list(present([Life("A", 0, (9, 5, 7))], variation, 0)) == expected


def test_a_cancelled_event_is_not_published_with_final_ends_only() -> None:
    assert list(present([Life("A", 0, (9, 0))], Variation(ends="final", closed=False), 0)) == []


def test_provisional_ends_lie_above_and_below_the_final_one() -> None:
    logical = [Life("A", 10 * n, (10 * n + 50,)) for n in range(200)]
    variation = Variation(provisional=1.0, revisions=3, spread=20, endless=0.1)
    inserts = of(Insert, list(present(logical, variation, 0)))
    lengths = {insert.ve - insert.vs for insert in inserts if insert.ve != INFINITY}
    assert min(lengths) < 40
    assert max(lengths) > 60
    assert all(30 <= length <= 70 for length in lengths)
    assert any(insert.ve == INFINITY for insert in inserts)


def test_phantoms_and_second_insertions_are_removed_before_a_stable_passes_them() -> None:
    logical = [Life("A", 10 * n, (10 * n + 5,)) for n in range(200)]
    variation = Variation(phantoms=0.5, reinserted=0.5, spread=9, lead=30, stable_every=1)
    elements = list(present(logical, variation, 0))
    assert len(of(Insert, elements)) > 350
    assert len(of(Adjust, elements)) == len(of(Insert, elements)) - 200
    assert reconstitute(elements) == final_tdb(logical)


def test_phantoms_take_no_key_of_an_event_or_of_each_other() -> None:
    logical = [Life("A", 3 * n, (3 * n + 5,)) for n in range(100)]
    variation = Variation(phantoms=1.0, spread=9, lead=30)
    inserts = of(Insert, list(present(logical, variation, 0)))
    assert len({i.vs for i in inserts}) == len(inserts) > 140


def test_doubles_are_held_twice_for_a_while() -> None:
    inserts = of(Insert, list(present(DAY, Variation(doubled=1.0), 0)))
    assert set(Counter((i.payload, i.vs) for i in inserts).values()) == {2}


def test_without_disorder_inserts_come_in_order_of_vs() -> None:
    inserts = of(Insert, list(present(DAY, Variation(lead=200, pace="eager"), 0)))
    assert [i.vs for i in inserts] == [life.vs for life in DAY]


def test_disorder_displaces_by_no_more_than_displacement() -> None:
    variation = Variation(ends="final", disorder=0.5, displacement=100)
    highest, displaced = 0, []
    for insert in of(Insert, list(present(DAY, variation, 0))):
        displaced.append(highest - insert.vs)
        highest = max(highest, insert.vs)
    assert 50 < max(displaced) <= 100
    assert 100 < sum(each > 0 for each in displaced) < 300


def test_the_eager_revise_before_the_late_do() -> None:
    def age_when_revised(pace: Any) -> float:
        variation = Variation(pace=pace, lead=50)
        revised = [
            send - element.vs
            for send, element in timed(DAY, variation, 0)
            if isinstance(element, Adjust)
        ]
        return sum(revised) / len(revised)

    eager, anytime, late = map(age_when_revised, ("eager", "anytime", "late"))
    assert eager < -40 < anytime < 0 < 20 < late


def test_stables_come_as_often_and_as_far_behind_as_configured() -> None:
    elements = list(present(DAY, Variation(ends="final", stable_every=10, stable_lag=35), 0))
    assert [s.vc for s in of(Stable, elements)] == [
        *(100 * k - 35 for k in range(1, 40)),
        INFINITY,
    ]
    by_chance = list(present(DAY, Variation(ends="final", stable_probability=0.25), 0))
    assert 70 < len(of(Stable, by_chance)) < 130


def test_a_stable_that_cannot_rise_is_repeated_only_on_request() -> None:
    logical = [Life("A", 0, (9,)), Life("B", 0, (9,)), Life("C", 0, (9,))]
    silent, repeating = (
        list(present(logical, Variation(stable_every=1, repeated_stables=share, closed=False), 0))
        for share in (0.0, 1.0)
    )
    assert [s.vc for s in of(Stable, silent)] == [0]
    assert [s.vc for s in of(Stable, repeating)] == [0, 0, 0]


def test_send_times_never_fall_and_lag_moves_them_all() -> None:
    def sends(lag: int) -> list[int]:
        variation = Variation(disorder=0.3, displacement=40, stable_every=3, lag=lag)
        return [send for send, _ in timed(DAY, variation, 0)]

    assert sends(0) == sorted(sends(0))
    assert sends(1000) == [send + 1000 for send in sends(0)]


@pytest.mark.parametrize(
    "wrong", [{"disorder": 1.5}, {"phantoms": -0.1}, {"lead": -1}, {"spread": 0}, {"revisions": 0}]
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Variation(**wrong)


def test_lives_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="in order of vs"):
        list(present([DAY[1], DAY[0]], Variation(), 0))


def test_presentations_of_equal_variations_differ_by_their_seeds() -> None:
    variation = Variation(disorder=0.5, displacement=100)
    one, other = map(list, presentations(DAY, [variation, variation], 7))
    assert one != other
    assert reconstitute(one) == reconstitute(other)


# Cost


def test_lives_are_read_only_as_far_as_they_are_needed() -> None:
    read = []

    def endless() -> Iterator[Life]:
        for n in count():
            read.append(n)
            yield Life("A", 10 * n, (10 * n + 30,))

    variation = Variation(lead=100, disorder=0.5, displacement=100, stable_every=5)
    assert len(list(islice(present(endless(), variation, 0), 1000))) == 1000
    assert len(read) < 1000


def test_the_papers_workload_is_presented_in_one_pass() -> None:
    variation = Variation(disorder=0.2, displacement=40_000, stable_probability=0.01)
    elements = list(present(workload(events=2000, payload_bytes=4), variation, 0))
    assert len(of(Insert, elements)) == 2000
    assert len(elements) < 2100


@given(st.integers(-(2**63), -(2**63) + 3), st.integers(2**63 - 3, INFINITY), variations(), SEEDS)
def test_times_at_both_ends_of_int64_are_kept_within_it(
    vs: int, ve: int, variation: Variation, seed: int
) -> None:
    logical = [Life("A", vs, (ve,)), Life("B", 2**63 - 3, (2**63 - 2, ve))]
    elements = list(present(logical, variation, seed))
    assert not any(map(defect, elements))
    assert reconstitute(elements) == final_tdb(logical)
