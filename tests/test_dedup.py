"""The consumer that is held against LMerge: what it lets through, by its own words, and the drills
with it."""

import json
import subprocess
import sys

import pytest

from benchmarks.dedup import Passed, Stables
from benchmarks.drills import CALM, DRILLS, MERGERS, Verdict, experiment_with, table
from lmerge_service.drills.drills import STANDARD
from lmerge_service.drills.plan import plan_of
from lmerge_service.drills.verdicts import WrongEvents
from lmerge_service.elements import Adjust, Element, Insert, Stable

A = b'"A"'


def passed(stables: Stables, *published: tuple[str, Element]) -> list[Element]:
    state = Passed(("a", "b"), stables)
    return [out for replica, element in published for out in state.take(replica, element)]


@pytest.mark.parametrize("stables", ["first", "all"])
def test_the_first_insert_is_let_through_and_the_latest_end_counts(stables: Stables) -> None:
    assert passed(
        stables,
        ("a", Insert(A, 2, 9)),
        ("b", Insert(A, 2, 12)),
        ("b", Adjust(A, 2, 12, 15)),
        ("a", Adjust(A, 2, 9, 15)),
        ("a", Adjust(A, 2, 15, 2)),
        ("b", Adjust(A, 2, 15, 20)),
        ("b", Insert(A, 2, 20)),
    ) == [Insert(A, 2, 9), Adjust(A, 2, 9, 15), Adjust(A, 2, 15, 2), Insert(A, 2, 20)]


def test_a_stable_goes_by_the_first_or_waits_for_all_and_what_it_made_final_stays() -> None:
    published: list[tuple[str, Element]] = [
        ("a", Insert(A, 2, 9)),
        ("a", Stable(10)),
        ("b", Adjust(A, 2, 9, 5)),
        ("b", Insert(b'"B"', 3, 12)),
        ("b", Stable(8)),
        ("b", Stable(11)),
        ("a", Stable(12)),
    ]
    assert passed("first", *published) == [Insert(A, 2, 9), Stable(10), Stable(11), Stable(12)]
    assert passed("all", *published) == [
        Insert(A, 2, 9),
        Adjust(A, 2, 9, 5),
        Insert(b'"B"', 3, 12),
        Stable(8),
        Stable(10),
        Stable(11),
    ]


def test_it_goes_on_from_what_it_reads_in_its_output() -> None:
    state = Passed(("a", "b"), "first")
    for element in (Insert(A, 2, 9), Adjust(A, 2, 9, 12), Stable(5)):
        state.load(element)
    assert list(state.take("a", Insert(A, 2, 9))) == []
    assert list(state.take("a", Adjust(A, 2, 9, 11))) == [Adjust(A, 2, 12, 11)]
    assert list(state.take("a", Stable(5))) == []


def test_each_drill_is_played_with_each_merger_on_the_same_faults() -> None:
    for name in DRILLS:
        ours, theirs = (experiment_with(name, MERGERS[each]) for each in ("LMerge", "dedup, all"))
        assert ours["method"] == theirs["method"]
        assert not plan_of(ours["configuration"]).merger
        plan = plan_of(theirs["configuration"])
        assert plan.merger == ["benchmarks.dedup", "all"]
        assert (plan.traces, plan.policy) == ([], {})
    assert {*DRILLS} - {CALM} == {each for each in STANDARD if not each.startswith("nodes-")} - {
        "control-lost",
        "control-conflicts",
        "cutover-interrupted",
        "damaged-checkpoint",
    }


def test_the_table_shows_what_broke_in_numbers() -> None:
    kept = Verdict(
        drill=CALM,
        merger="one",
        broken=[],
        unclear=[],
        tally=WrongEvents(),
        hole=0.25,
        ended=True,
        why=[],
    )
    broken = Verdict(
        drill=CALM, merger="two", broken=["K1", "K5"], unclear=["K3"], ended=False, hole=41,
        tally=WrongEvents(lost=3, doubled=1), why=["K1 is invalid"],
    )  # fmt: skip
    assert table([kept, broken]).splitlines() == [
        "| drill | one | two |",
        "|---|---|---|",
        (
            f"| {CALM} | kept; 0.2 s "
            "| **K1 K5, 3 lost, 1 doubled, K3 unknown, stands still**; 41.0 s |"
        ),
    ]


@pytest.mark.deep
@pytest.mark.kafka
@pytest.mark.timeout(290)
def test_who_waits_for_all_is_right_until_one_dies_and_then_stands_still() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "drills", "--json", "--only", CALM, "leader-dies",
         "--mergers", "dedup, all"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    calm, dies = json.loads(ended.stdout)["rows"]
    assert (calm["broken"], calm["unclear"], calm["ended"]) == ([], [], True), calm
    assert (dies["broken"], dies["ended"]) == (["K5"], False), dies
    assert dies["hole"] > 10
