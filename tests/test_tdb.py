"""The model: reconstitution, legality, freezing, and the judge of compatibility."""

import itertools
from typing import Any

import pytest

from lmerge_service.elements import (
    INFINITY,
    START,
    Adjust,
    Insert,
    Stable,
    defect,
    is_fully_frozen,
    is_half_frozen,
    is_unfrozen,
)
from lmerge_service.errors import IllegalStreamError
from lmerge_service.tdb import TDB, Difference, compatibility, differences, reconstitute
from tests import vectors


def by_id(case: Any) -> str:
    return str(case["id"])


@pytest.mark.parametrize("case", vectors.cases("tdb"), ids=by_id)
def test_reconstitution_gives_the_papers_tdb(case: Any) -> None:
    stream = vectors.elements(case["given"]["stream"])
    expect = case["expect"]
    if "tdb" in expect:
        found = reconstitute(stream)
        assert found == vectors.tdb(expect["tdb"])
        if "last" in expect:
            assert found.stable == vectors.time(expect["last"])
        if other := case["given"].get("equivalent_to"):
            assert found == reconstitute(vectors.elements(other))
    else:
        sizes = [len(reconstitute(stream[: k + 1])) for k in range(len(stream))]
        assert sizes == expect["prefix_sizes"]


@pytest.mark.parametrize("case", vectors.cases("equivalent"), ids=by_id)
def test_prefixes_are_equivalent_when_their_tdbs_are_equal(case: Any) -> None:
    one, two = TDB(), TDB()
    for row, expect in zip(case["given"]["rows"], case["expect"]["rows"], strict=True):
        for tdb, side in ((one, "phy1"), (two, "phy2")):
            if row[side] is not None:
                tdb.apply(vectors.element(row[side]))
            assert tdb == vectors.tdb(expect[side])
        assert (one == two) is expect["equivalent"]


@pytest.mark.parametrize("case", vectors.cases("admissible"), ids=by_id)
def test_an_element_may_follow_a_prefix_or_not(case: Any) -> None:
    tdb = reconstitute(vectors.elements(case["given"]["prefix"]))
    broken = tdb.violation(vectors.element(case["given"]["element"]))
    assert (broken is None) is case["expect"]["admissible"], broken


@pytest.mark.parametrize("case", vectors.cases("freeze"), ids=by_id)
def test_freezing_has_three_states(case: Any) -> None:
    given, status = case["given"], case["expect"]["status"]
    if "cases" in given:
        rows = [(*row, expect) for row, expect in zip(given["cases"], status, strict=True)]
    else:
        rows = [(vs, ve, given["last"], status[payload]) for payload, vs, ve in given["tdb"]]
    for vs, ve, c, expect in rows:
        times = vectors.time(vs), vectors.time(ve), vectors.time(c)
        assert is_fully_frozen(*times) is (expect == "FF"), times
        assert is_half_frozen(*times) is (expect == "HF"), times
        assert is_unfrozen(*times) is (expect == "UF"), times


@pytest.mark.parametrize("case", vectors.cases("compatible"), ids=by_id)
def test_c1_to_c3_judge_the_papers_outputs(case: Any) -> None:
    inputs = [vectors.tdb(each["tdb"], each["last"]) for each in case["given"]["inputs"]]
    output = vectors.tdb(case["given"]["output"]["tdb"], case["given"]["output"]["last"])
    broken = compatibility(inputs, output)
    assert (not broken) is case["expect"]["compatible"], broken
    conditions = [not any(line.startswith(name) for line in broken) for name in ("C1", "C2", "C3")]
    assert conditions == case["expect"]["c1_c2_c3"], broken


@pytest.mark.parametrize("case", vectors.cases("compatible_streams"), ids=by_id)
def test_c1_to_c3_judge_whole_prefixes(case: Any) -> None:
    inputs = [reconstitute(vectors.elements(rows)) for rows in case["given"]["inputs"]]
    output = reconstitute(vectors.elements(case["given"]["output"]))
    assert (not compatibility(inputs, output)) is case["expect"]["compatible"]


ENDS = (None, 3, 4, 5, 6, INFINITY)
FUTURE_ENDS = (None, 3, 4, 5, 6, 7, INFINITY)
VS = 2


def reachable(end: int | None, last: int) -> set[int | None]:
    """What one event that starts at VS can still become, by the definition of legal elements."""
    if last <= VS:
        return set(FUTURE_ENDS)
    if end is None or is_fully_frozen(VS, end, last):
        return {end}
    return {future for future in FUTURE_ENDS if future is not None and future >= last}


def test_c1_to_c3_equal_the_definition_for_one_key_and_two_inputs() -> None:
    """III-B: compatible iff the output can follow every common future of the inputs."""
    states = list(itertools.product(ENDS, range(7)))
    tdbs = {s: TDB([] if s[0] is None else [("A", VS, s[0])], s[1]) for s in states}
    checked = 0
    for one, two in itertools.product(states, states):
        futures = reachable(*one) & reachable(*two)
        if not futures:
            continue  # not mutually consistent
        for out in states:
            follows = out[1] <= max(one[1], two[1]) and futures <= reachable(*out)
            broken = compatibility([tdbs[one], tdbs[two]], tdbs[out])
            assert (not broken) == follows, (one, two, out, broken)
            checked += 1
    (case,) = vectors.cases("summary")
    assert checked == case["expect"]["checked"] == 63_168


def test_an_illegal_element_is_named_by_its_position_and_changes_nothing() -> None:
    with pytest.raises(IllegalStreamError, match=r"element 2, Adjust.*stable\(11\)"):
        reconstitute([Insert("A", 6, 20), Stable(11), Adjust("A", 6, 20, 10)])
    tdb = reconstitute([Insert("A", 6, 20), Stable(11)])
    before = list(tdb)
    with pytest.raises(IllegalStreamError):
        tdb.apply(Adjust("A", 6, 19, 30))
    assert list(tdb) == before
    assert tdb.stable == 11


@pytest.mark.parametrize(
    "element",
    [
        Insert("A", 6, 6),
        Insert("A", 6, 5),
        Insert("A", 6.0, 8),  # type: ignore[arg-type]
        Insert("A", True, 8),
        Insert("A", 6, 2**63),
        Insert("A", START - 1, 8),
        Insert(["not hashable"], 6, 8),
        Adjust("A", 6, 6, 8),
        Adjust("A", 6, 8, 5),
        Stable(2**63),
        "stable",
    ],
)
def test_what_is_not_an_element_is_recognised(element: object) -> None:
    assert defect(element) is not None


@pytest.mark.parametrize(
    "element",
    [
        Insert("A", START, INFINITY),
        Insert(None, INFINITY - 1, INFINITY),
        Adjust(("A", 1), 6, INFINITY, 6),
        Stable(INFINITY),
        Stable(START),
    ],
)
def test_the_ends_of_time_are_times(element: object) -> None:
    assert defect(element) is None


def test_differences_name_what_either_side_holds() -> None:
    left = TDB([("A", 1, 5), ("A", 1, 7), ("B", 0, 2)])
    right = TDB([("A", 1, 5), ("A", 1, 9), ("C", 3, 4)])
    assert differences(left, right) == [
        Difference("B", 0, ((2,), ())),
        Difference("A", 1, ((7,), (9,))),
        Difference("C", 3, ((), (4,))),
    ]
    assert differences(left, left) == []


def test_differences_of_several_leave_out_what_all_hold() -> None:
    one = TDB([("A", 1, 5), ("A", 1, 5), ("B", 2, 9)])
    two = TDB([("A", 1, 5), ("B", 2, 9)])
    three = TDB([("A", 1, 5), ("A", 1, 7), ("B", 2, 9), ("C", 0, 1)])
    assert differences(one, two, three) == [
        Difference("C", 0, ((), (), (1,))),
        Difference("A", 1, ((5,), (), (7,))),
    ]
    assert differences(one) == []


def test_before_a_point_ends_beyond_it_are_cut_there() -> None:
    tdb = TDB([("A", 1, 5), ("A", 1, 7), ("B", 2, INFINITY), ("C", 6, 9), ("D", 5, 6)])
    assert tdb.before(6) == TDB([("A", 1, 5), ("A", 1, 6), ("B", 2, 6), ("D", 5, 6)])
    assert tdb.before(START) == TDB()
    assert tdb.before(INFINITY) == tdb
