"""Guards of conduct: real interleavings of two writers trip them, honest replicas and restarts
don't."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from lmerge_service.config.topology import GuardSettings
from lmerge_service.core import BreachKind, Case
from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.merge.guards.breach_monitor import BreachMonitor, SlidingCounts
from lmerge_service.merge.guards.verdicts import Action, Guard
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.joining import restart
from lmerge_service.workloads.lies import Lie, lie
from lmerge_service.workloads.presentation import Variation, present
from tests.merge.judged import Judged, topology_of

VARIATIONS = {
    "plain": Variation(stable_every=20),
    "revising": Variation(
        provisional=0.5, revisions=2, spread=200_000, phantoms=0.1, reinserted=0.1, stable_every=7,
        pace="eager", lead=50_000,
    ),
    "disordered": Variation(
        disorder=0.4, displacement=100_000, stable_probability=0.05, stable_lag=20_000,
        repeated_stables=0.8,
    ),
}  # fmt: skip


def stream(variation: str = "plain", events: int = 1_500, seed: int = 1) -> list[Element]:
    lives = workload(events=events, seed=seed, payload_bytes=8, active=40, varied=True)
    return list(present(list(lives), VARIATIONS[variation], f"{seed}/{variation}"))


BESIDE = stream(events=20_000)


def judge(suspect: Sequence[Element], batch: int = 500, case: str = "R3", **guards: Any) -> Judged:
    """Beside an honest replica that publishes all the time."""
    streams = {"a": suspect, "b": BESIDE}
    judged = Judged(streams, topology_of(streams, case=case, **guards))
    while judged.at["a"] < len(suspect) and not judged.stopped | judged.quarantined:
        judged.read("b")
        judged.read_chunk("a", batch)
    assert judged.at["b"] < len(BESIDE)
    return judged


def guards_of(judged: Judged, name: str = "a") -> set[Guard]:
    return {verdict.guard for verdict in judged.verdicts if verdict.replica == name} - {
        Guard.EARLY_END
    }


def interleaved(one: Sequence[Element], burst: int, delay: int, seed: int = 3) -> list[Element]:
    """Two producers of the same stream in one topic; the second is behind by `delay`."""
    rng = random.Random(seed)
    at = [0, 0]
    both: list[Element] = []
    while at[1] < len(one):
        writer = 1 if at[0] == len(one) or (at[0] - at[1] >= delay and rng.random() < 0.5) else 0
        step = rng.randint(1, burst)
        both += one[at[writer] : at[writer] + step]
        at[writer] += step
    return both


@pytest.mark.parametrize("batch", [1, 37, 1_000])
@pytest.mark.parametrize("variation", VARIATIONS)
def test_honest_replicas_trip_nothing(variation: str, batch: int) -> None:
    assert guards_of(judge(stream(variation), batch)) == set()


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 1_000])
@pytest.mark.parametrize(("burst", "delay"), [(1, 0), (1, 10), (20, 40), (200, 200), (1, 500)])
@pytest.mark.parametrize("variation", VARIATIONS)
def test_two_writers_of_one_topic_are_found(
    variation: str, burst: int, delay: int, batch: int
) -> None:
    both = interleaved(stream(variation, events=4_000), burst, delay)
    judged = judge(both, batch, max_breaches=0)
    assert guards_of(judged) == {Guard.DUPLICATE_WRITER}
    assert judged.quarantined == {"a"}
    # its breaches alone give it away, too
    assert judge(both, batch).quarantined == {"a"}


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 100, 1_000])
@pytest.mark.parametrize("back", [10, 300, 5_000])
@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_restart_that_repeats_is_neither_a_second_writer_nor_a_liar(
    variation: str, back: int, batch: int
) -> None:
    once = stream(variation)
    at = len(once) // 2
    start = max(at - back, 0)
    again = [*once[:start], *restart(once[start:], at - start)]
    assert guards_of(judge(again, batch)) == set()


@pytest.mark.parametrize("batch", [1, 100])
def test_tiny_regressions_of_stables_trip_nothing(batch: int) -> None:
    wobbly = list(lie(stream(), Lie(regress=1.0, by=5_000), seed=2))
    judged = judge(wobbly, batch)
    assert judged.merge.inputs["a"].breaches[BreachKind.STABLE_REGRESSION] > 50
    assert guards_of(judged) == set()


@pytest.mark.parametrize("batch", [10, 100, 1_000])  # by single records the other would lead
@pytest.mark.parametrize(
    "lies", [Lie(shift=0.5, by=900_000), Lie(wrong_vold=0.5), Lie(unknown=0.3)], ids=str
)
def test_a_liar_trips_the_breach_rate(lies: Lie, batch: int) -> None:
    judged = judge(list(lie(stream("revising"), lies, seed=2)), batch)
    assert Guard.BREACH_RATE in guards_of(judged)
    assert judged.quarantined == {"a"}


@pytest.mark.parametrize("batch", [1, 100, 1_000])
def test_stables_that_are_always_early_trip_the_breach_rate(batch: int) -> None:
    early: list[Element] = [
        Stable(each.vc + 400_000) if type(each) is Stable and each.vc < 2**60 else each
        for each in stream()
    ]
    judged = judge(early, batch)
    assert guards_of(judged) == {Guard.BREACH_RATE}
    assert judged.quarantined == {"a"}


def test_a_replica_that_nobody_could_stand_in_for_is_only_reported() -> None:
    streams = {"a": list(lie(stream("revising"), Lie(unknown=0.5), seed=2))}
    judged = Judged(streams, topology_of(streams))
    judged.read_all(100)
    assert (Guard.BREACH_RATE, Action.REPORT) in {(v.guard, v.action) for v in judged.verdicts}
    assert "no other replica could take its place" in judged.verdicts[0].reason
    assert judged.at["a"] == len(streams["a"])


def test_a_second_writer_may_be_reported_only() -> None:
    judged = judge(interleaved(stream(), 5, 40), 100, duplicate_writer="report", max_breaches=0)
    assert {(v.guard, v.action) for v in judged.verdicts if v.replica == "a"} >= {
        (Guard.DUPLICATE_WRITER, Action.REPORT)
    }
    assert judged.quarantined == set()


@pytest.mark.parametrize("most", [0, 2, 3])
def test_divergence_is_reported_and_quarantines_beyond_a_limit(most: int) -> None:
    streams: dict[str, Sequence[Element]] = {
        "a": [*(Insert(name, 2, 20) for name in "ABC"), Stable(10), Stable(11)],
        "b": [Stable(5), Stable(15), Stable(16)],
    }
    judged = Judged(streams, topology_of(streams, max_divergences=most))
    judged.read("a", 4)
    judged.read("b", 3)
    first = next(v for v in judged.verdicts if v.guard is Guard.DIVERGENCE)
    assert first.replica == "b"
    assert "3 times" in first.reason
    assert judged.quarantined == ({"b"} if 0 < most < 3 else set())


def test_a_window_slides_over_records() -> None:
    window = SlidingCounts(1_600)
    for _ in range(100):
        window.add(10, 1)
    assert (window.records, window.breaches) == (1_000, 100)
    for _ in range(400):
        window.add(10, 0)
    assert 1_600 <= window.records <= 1_800
    assert window.breaches == 0


def test_conduct_is_a_function_of_its_chunks() -> None:
    def found() -> Sequence[object]:
        conduct = BreachMonitor(GuardSettings(breach_window=1_000), Case.R3, [0])
        rng, breaches = random.Random(1), Counter[BreachKind]()
        findings = []
        for chunk in range(200):
            conduct.stables(0, [chunk * 5 - rng.randrange(12)])
            breaches[BreachKind.DUPLICATE_KEY] += rng.randrange(3)
            breaches[BreachKind.UNKNOWN_EVENT] += rng.randrange(9)
            findings.append(conduct.after(0, 20, breaches))
        return findings

    assert found() == found()


def test_dead_letters_count_at_once() -> None:
    conduct = BreachMonitor(GuardSettings(), Case.R3, [0])
    assert not conduct.after(0, 500, {}, dead=99)
    assert conduct.after(0, 1, {}, dead=1).breaches == 100


def test_in_r1_a_broken_case_may_be_the_other_replicas_fault() -> None:
    for case, counts in ((Case.R1, False), (Case.R2, True)):
        conduct = BreachMonitor(GuardSettings(), case, [0])
        conduct.stables(0, [5])
        conduct.after(0, 500, {BreachKind.BROKE_CASE: 200})
        conduct.stables(0, [6])
        assert bool(conduct.after(0, 1, {BreachKind.BROKE_CASE: 200})) == counts
