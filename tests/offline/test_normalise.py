"""The merge of files with `normalise`: inputs that are the same at every instant, cut anew."""

from random import Random

import pytest

from lmerge_service.core import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.offline.merge import MergeReport, interleaving, merge_streams
from lmerge_service.tdb import TDB, reconstitute
from tests.core.test_normaliser import canonical, history, plans


def merged(order: str, *streams: list[Element]) -> tuple[list[Element], MergeReport]:
    emitted: list[Element] = []
    names = [f"input {number}" for number in range(len(streams))]
    numbered = [iter(list(enumerate(stream, 1))) for stream in streams]
    report = merge_streams(
        names, numbered, emitted.append, order=interleaving(order), normalise=True
    )
    return emitted, report


@pytest.mark.parametrize("order", ["round-robin", "sequential", "random:3"])
def test_plans_that_are_cut_anew_become_one_canonical_output(order: str) -> None:
    for seed in range(30):
        rng = Random(seed)
        found = history(rng)
        streams = plans(rng, found, n=3)
        emitted, report = merged(order, *streams)
        assert reconstitute(emitted) == TDB(canonical(found)) == TDB(found)
        assert report.output.complete
        assert report.output.live_events == 0
        assert report.breaches == 0
        assert report.elements == sum(map(len, streams)), "as read, not as normalised"


def test_counts_are_of_what_became_of_an_input() -> None:
    _, report = merged("sequential", [Insert("A", 7, 15), Insert("A", 1, 7), Stable(INFINITY)])
    (counted,) = report.inputs
    assert (counted.inserts, counted.adjusts, counted.stables) == (2, 1, 1)
    assert report.elements == 3


def test_what_an_input_does_wrong_is_blamed_at_its_line_by_the_element_read() -> None:
    wrong: list[Element] = [
        Insert("A", 1, 5),
        Adjust("A", 2, 5, 9),
        Adjust("A", 1, 9, 7),
        Stable(4),
        Insert("A", 3, 9),
        Stable(2),
    ]
    emitted, report = merged("sequential", wrong)
    assert emitted == [Insert("A", 1, 5), Stable(4)]
    assert [(each.where, each.breach.kind, each.breach.element) for each in report.found] == [
        ("input 0:2", BreachKind.UNKNOWN_EVENT, wrong[1]),
        ("input 0:3", BreachKind.WRONG_VOLD, wrong[2]),
        ("input 0:5", BreachKind.BROKE_OWN_STABLE, wrong[4]),
        ("input 0:6", BreachKind.STABLE_REGRESSION, wrong[5]),
    ]
    assert report.breaches == 4


@pytest.mark.parametrize("case", [Case.R0, Case.R1, Case.R2])
def test_a_case_without_revisions_is_refused(case: Case) -> None:
    with pytest.raises(ConfigurationError, match=f"case R3 or R4, not {case}"):
        merge_streams(["a"], [iter([])], print, case=case, normalise=True)
