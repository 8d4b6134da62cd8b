"""Generated streams: legal, equivalent, and the same into however many slices they are cut."""

from collections import Counter
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.payload import canonical
from lmerge_service.spark.generator.emission import Events, emit, reach
from lmerge_service.spark.generator.randomness import Draws
from lmerge_service.spark.generator.slices import Presentation
from lmerge_service.spark.generator.workload import Workload
from lmerge_service.tdb import reconstitute
from lmerge_service.workloads.lifetime import deadline, lives_of
from lmerge_service.workloads.presentation import Variation, present
from tests.spark.generated import batches, check_stables, elements, logical, variations, workloads

SMALL = Workload(events=3000, max_gap=10, event_duration=300, payload_bytes=16)
MUCH = Variation(
    provisional=0.5,
    revisions=3,
    spread=200,
    endless=0.2,
    reinserted=0.2,
    phantoms=0.2,
    doubled=0.2,
    lead=20,
    disorder=0.3,
    displacement=400,
    stable_probability=0.1,
    stable_lag=3,
)


# Meaning


@given(workloads(), variations(), st.integers(0, 99), st.integers(1, 41))
def test_a_generated_stream_is_legal_and_means_the_logical_one(
    workload: Workload, variation: Variation, seed: int, block: int
) -> None:
    """S1, by the judge of streams and an oracle of the events."""
    stream = elements(Presentation(workload, variation, f"{seed}", block))
    tdb = reconstitute(stream)
    assert tdb == logical(workload)
    assert (tdb.stable == INFINITY) == variation.closed


@given(workloads(), variations(), st.integers(1, 41), st.integers(1, 41))
def test_a_stream_does_not_depend_on_where_it_is_cut(
    workload: Workload, variation: Variation, one: int, other: int
) -> None:
    assert elements(Presentation(workload, variation, "x", one)) == elements(
        Presentation(workload, variation, "x", other)
    )


@pytest.mark.full
def test_many_slices_are_one_stream_at_a_size_where_all_reach_into_others() -> None:
    whole = elements(Presentation(SMALL, MUCH, "x", 3000))
    for block in (7, 61, 500):
        assert elements(Presentation(SMALL, MUCH, "x", block)) == whole
    assert reconstitute(whole) == logical(SMALL)


def test_two_presentations_differ_and_mean_the_same() -> None:
    one, same, other = (elements(Presentation(SMALL, MUCH, seed)) for seed in ("1", "1", "2"))
    assert one == same
    assert one != other
    assert reconstitute(one) == reconstitute(other)


def test_the_logical_stream_is_the_presentation_without_variation() -> None:
    *inserts, end = elements(Presentation(SMALL, Variation()))
    assert end == Stable(INFINITY)
    assert len(inserts) == 3000
    assert all(isinstance(each, Insert) for each in inserts)
    starts = [each.vs for each in inserts if isinstance(each, Insert)]
    assert starts == sorted(starts)


def test_other_seeds_have_other_events_and_other_variations_the_same() -> None:
    assert logical(Workload(events=9, seed=1)) != logical(Workload(events=9, seed=2))


# Stables


@given(workloads(), variations(), st.integers(1, 41))
def test_a_stable_covers_all_that_is_certain_and_something_stands_between_two(
    workload: Workload, variation: Variation, block: int
) -> None:
    """P2, against the deadlines of all that comes later."""
    check_stables(elements(Presentation(workload, variation, block=block)), variation)


@given(workloads(), variations(), st.integers(1, 41))
def test_where_every_element_may_be_followed_by_a_stable_each_rise_is_published(
    workload: Workload, variation: Variation, block: int
) -> None:
    stream = elements(
        Presentation(workload, replace(variation, stable_probability=1.0), block=block)
    )
    events = [each for each in stream if not isinstance(each, Stable)]
    floors = list(accumulate(map(deadline, reversed(events)), min))[::-1][1:]
    stables = {each.vc + variation.stable_lag for each in stream if isinstance(each, Stable)}
    assert set(floors) <= stables


def test_about_as_many_elements_are_stables_as_asked_for() -> None:
    workload = Workload(events=20_000, payload_bytes=16)
    counts = Counter(
        type(each) for each in elements(Presentation(workload, Variation(stable_probability=0.01)))
    )
    assert counts[Insert] == 20_000
    assert 160 < counts[Stable] < 240


# What is emitted


@given(workloads(), variations(), st.integers(0, 99))
def test_nothing_is_sent_out_of_reach(workload: Workload, variation: Variation, seed: int) -> None:
    """T2: slices look back no further."""
    vs = workload.times(0, workload.events, 0)
    numbers = np.arange(workload.events)
    events = Events(numbers, vs, vs + workload.duration, numbers)
    emitted = emit(events, variation, Draws(f"{seed}"))
    first = vs[emitted.event] - variation.lead
    assert (emitted.send >= first).all()
    assert (emitted.send <= first + reach(variation, workload.duration)).all()
    assert len(set(emitted.serial.tolist())) == len(emitted.serial)


@pytest.mark.parametrize(
    "variation",
    [
        Variation(provisional=0.4, revisions=2, spread=100, stable_probability=0.1),
        Variation(provisional=0.4, spread=400, endless=0.5, stable_probability=0.1),
        Variation(phantoms=0.2, spread=50, stable_probability=0.1),
        Variation(reinserted=0.3, stable_probability=0.1),
        Variation(doubled=0.3, disorder=0.3, displacement=300, stable_probability=0.1),
        Variation(disorder=0.3, displacement=300, lead=20, stable_probability=0.1),
    ],
    ids=lambda each: ",".join(
        name
        for name in ("endless", "phantoms", "reinserted", "doubled", "disorder", "provisional")
        if getattr(each, name)
    ),
)
def test_options_mean_what_they_mean_to_present(variation: Variation) -> None:
    """Other numbers are drawn, of the same kind: about as many elements of each, as disordered,
    and stables as far behind."""
    events = [(payload, vs, ve) for payload, vs, ve in logical(SMALL)]
    by_one = list(present(lives_of(events), variation, seed=1))
    by_many = elements(Presentation(SMALL, variation))
    one, many = portrait(by_one), portrait(by_many)
    for name in one:
        assert many[name] == pytest.approx(one[name], rel=0.15, abs=25), (name, one, many)


def portrait(stream: list[Element]) -> dict[str, float]:
    """What can be counted of a stream."""
    inserts = [each.vs for each in stream if isinstance(each, Insert)]
    tops = list(accumulate(inserts, max))
    behind: list[int] = []
    latest = 0
    for each in stream:
        if isinstance(each, Stable) and each.vc < INFINITY:
            behind.append(latest - each.vc)
        elif isinstance(each, Insert):
            latest = max(latest, each.vs)
    return {
        "inserts": len(inserts),
        "adjusts": sum(isinstance(each, Adjust) for each in stream),
        "removals": sum(isinstance(each, Adjust) and each.ve == each.vs for each in stream),
        "endless": sum(not isinstance(each, Stable) and each.ve == INFINITY for each in stream),
        "disordered": sum(vs < top for vs, top in zip(inserts, tops, strict=True)),
        "how far behind": sum(behind) / max(1, len(behind)),
    }


# The events


def test_payloads_are_canonical_of_the_size_asked_for_and_all_different() -> None:
    for size in (16, 17, 33, 1000):
        payloads = Workload(payload_bytes=size).payloads(np.arange(500)).to_pylist()
        assert all(canonical(each.encode()).decode() == each for each in payloads)
        assert len({each[9:25] for each in payloads}) == 500
        assert {len(each.split('"')[3]) for each in payloads} == {size}


def test_gaps_fill_their_range_and_about_ten_thousand_events_are_alive() -> None:
    assert set(np.diff(Workload(max_gap=20).times(0, 5_000, 0)).tolist()) == set(range(21))
    workload = Workload(events=50_000)
    gaps = np.diff(workload.times(0, 50_000, 0))
    assert 9_800 < workload.duration / gaps.mean() < 10_200


def test_rows_come_in_batches_of_a_few_megabytes() -> None:
    workload = Workload(events=300, payload_bytes=100_000)
    assert max(batch.nbytes for batch in batches(Presentation(workload, Variation()))) < 5 << 20


# Mistakes


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"events": 0}, "events must be at least 1, got 0"),
        ({"max_gap": 0}, "max_gap must be at least 1, got 0"),
        ({"payload_bytes": 15}, "payload_bytes must be at least 16, got 15"),
        ({"event_duration": 0}, "event_duration must be at least 1, got 0"),
        ({"max_gap": 2**60}, "events, max_gap and event_duration lead beyond the times there are"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        Workload(**wrong)


def test_what_is_not_to_be_had_of_a_generated_stream_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^stable_every is not to be had of a generated stream$"):
        Presentation(SMALL, Variation(stable_every=9))
    with pytest.raises(ValueError, match=r"^revisions are 100 at the most, got 101$"):
        Presentation(SMALL, Variation(revisions=101))


def test_more_events_under_way_than_memory_holds_are_refused() -> None:
    crowded = Workload(events=10_000_000, max_gap=1, event_duration=5_000_000)
    Presentation(crowded, Variation())
    with pytest.raises(ValueError, match=r"^about 10,000,000 events would be under way at once"):
        Presentation(crowded, Variation(provisional=0.1, spread=5_000_000))
