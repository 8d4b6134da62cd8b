"""Replicas that are normalised: through records and incarnations, rebuilds, and a real broker."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import BreachKind, lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.step import MergeStep
from lmerge_service.tdb import TDB
from tests.core.test_normaliser import history, plans
from tests.service.cluster import Merge
from tests.service.test_rebuild import Record, histories

A = b'"A"'


def records(*elements: Element, incarnation: int = 0, joining_at: int = START) -> list[Record]:
    headers = incarnation_headers(incarnation, joining_at)
    return [Record(encode(element), 0, headers) for element in elements]


class Fed:
    def __init__(self) -> None:
        self.merge = lmerge()
        self.step = MergeStep(
            self.merge, "r", WireDecoder(), topic="in", partitions=1, normalise=True
        )
        self.dead: list[DeadLetter] = []

    def take(self, batch: list[Record]) -> list[Element]:
        out: list[Element] = []
        self.step.take(0, batch, out, self.dead)
        return out


def test_the_operator_receives_the_canonical_form() -> None:
    fed = Fed()
    emitted = fed.take(records(Insert(A, 1, 5), Stable(5), Insert(A, 5, 9), Stable(INFINITY)))
    assert emitted == [Insert(A, 1, 5), Stable(5), Adjust(A, 1, 5, 9), Stable(INFINITY)]


def test_the_replica_is_blamed_for_what_its_normaliser_refused() -> None:
    fed = Fed()
    wrong = Adjust(A, 1, 9, 7)
    fed.take(records(Insert(A, 1, 5), Insert(A, 5, 9), wrong))
    (breach,) = fed.merge.breaches()
    assert (breach.kind, breach.element) == (BreachKind.WRONG_VOLD, wrong)


def test_a_new_incarnation_has_a_form_of_its_own() -> None:
    fed = Fed()
    fed.take(records(Insert(A, 1, 5), Stable(3)))
    emitted = fed.take(records(Insert(A, 1, 5), Insert(A, 5, 9), Stable(INFINITY), incarnation=1))
    assert emitted == [Adjust(A, 1, 5, 9), Stable(INFINITY)], "its stable begins anew as well"
    assert fed.merge.breaches() == []


def test_an_incarnation_that_joins_late_goes_to_the_dead_letters() -> None:
    fed = Fed()
    fed.take(records(Insert(A, 1, 5), Stable(3)))
    assert fed.take(records(Insert(A, 5, 9), Stable(9), incarnation=1, joining_at=4)) == []
    assert fed.step.decoder.incarnation == 0
    assert [letter.reason for letter in fed.dead] == ["header", "header"]
    assert "must be correct from the beginning" in fed.dead[0].message
    assert fed.take(records(Insert(A, 5, 9), Stable(10))) == [Adjust(A, 1, 5, 9), Stable(10)]


@given(histories(), st.data())
def test_a_rebuilt_task_has_nothing_to_add_and_goes_on_the_same(
    history: tuple[dict[str, int], list[tuple[str, Record]]], data: st.DataObject
) -> None:
    """Lies and new incarnations included: the form is a function of a partition's prefix."""
    widths, merged = history
    which = {name: data.draw(st.booleans()) for name in widths}

    def attached(was: dict[str, MergeStep] | None) -> dict[str, MergeStep]:
        merge = lmerge()
        if was is not None:
            merge.replay_output(emitted)
        return {
            name: MergeStep(
                merge,
                name,
                WireDecoder(),
                topic="in",
                partitions=width,
                joining_at=START if was is None else was[name].decoder.joining_at,
                incarnation=0 if was is None else was[name].decoder.incarnation,
                normalise=which[name],
            )
            for name, width in widths.items()
        }

    cut = data.draw(st.integers(0, len(merged)))
    emitted: list[Element] = []
    steps = attached(None)
    for name, record in merged[:cut]:
        steps[name].take(record.partition, [record], emitted, [])

    again = attached(steps)
    missed: list[Element] = []
    for name in data.draw(st.permutations(list(widths))):
        for partition in data.draw(st.permutations(range(widths[name]))):
            prefix = [r for n, r in merged[:cut] if (n, r.partition) == (name, partition)]
            again[name].take(partition, prefix, missed, [], replay_input=True)
    assert missed == [], "the output has all of it"

    for name, record in merged[cut:]:
        one: list[Element] = []
        two: list[Element] = []
        steps[name].take(record.partition, [record], one, [])
        again[name].take(record.partition, [record], two, [])
        assert sorted(map(repr, one)) == sorted(map(repr, two))


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path)


@pytest.mark.full
def test_plans_cut_anew_are_merged_rightly_across_kill_9(merge: Merge) -> None:
    rng = Random(1)
    found = [
        event._replace(payload=f'"p{event.payload}"'.encode())
        for event in history(rng, payloads=40, spans=8)
    ]
    streams = dict(zip("abc", plans(rng, found, n=3), strict=True))
    merge.extra["replicas"] = [
        {"name": name, "topic": topic, "normalise": True} for name, topic in merge.topics.items()
    ]
    merge.write()
    halves = {name: len(elements) // 2 for name, elements in streams.items()}
    widths = {"a": 1, "b": 3, "c": 5}
    with merge.worker() as worker:
        worker.wait_until_running()
        for name, elements in streams.items():
            merge.publish(name, elements[: halves[name]], partitions=widths[name])
        worker.wait(lambda s: s["output"]["stable_point"] is not None, "a stable")
        worker.kill()
    with merge.worker() as worker:
        worker.wait_until_running()
        for name, elements in streams.items():
            merge.publish(name, elements[halves[name] :], partitions=widths[name])
        worker.wait_until_ended()
        status = worker.wait(
            lambda s: all(each["lag_records"] == 0 for each in s["replicas"]), "no lag"
        )
        assert worker.terminate() == 0
    assert merge.output_is(TDB(found))
    assert all(each["breaches"] == {} for each in status["replicas"]), status
