"""`lmerge query`: what is printed for people and programs, and one line for each mistake."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Lmerge, Run

QUERIES = """\
from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import apply, count, elements, facts, snapshots, tumbling
from tests.queries.faulty_modules import Forgetful, inverse

flights = facts("flights", time="at", lateness=10, fields={"origin": str, "delay": int})
late = flights.where(col.delay > 15)
hourly = late.windows(tumbling(60)).by("origin").aggregate(n=count())
sky = facts("sky", time="at", fields={"origin": str, "wind": int})
windy = late.extend(9).join(sky.extend(9), on="origin")
numbers = elements("numbers", {"n": int})
forgetful = numbers.windows(snapshots()).apply(apply(Forgetful, "n", {"sum": int}))
raising = numbers.windows(snapshots()).apply(apply(inverse, "n", {"x": float}))
newest = flights.by("origin").last_rows(1)
"""
FACTS = [
    {"at": 3, "origin": "JFK", "delay": 20},
    {"at": 30, "origin": "JFK", "delay": 5},
    {"at": 29, "origin": "EWR", "delay": 45},
    {"at": 12, "origin": "EWR", "delay": 16},
    {"at": 70, "origin": "JFK", "delay": 90},
    {"at": 80, "origin": "JFK", "delay": True},
]
NUMBERS = [
    {"op": "insert", "payload": {"n": 13}, "vs": 1, "ve": 5},
    {"op": "insert", "payload": {"n": 1}, "vs": 1, "ve": 5},
    {"op": "adjust", "payload": {"n": 13}, "vs": 1, "vold": 5, "ve": 1},
    {"op": "adjust", "payload": {"n": 1}, "vs": 1, "vold": 5, "ve": 1},
    {"op": "stable", "vc": 9},
]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> Iterator[None]:
    write(tmp_path / "facts.jsonl", FACTS)
    write(tmp_path / "sky.jsonl", [{"at": 25, "origin": "EWR", "wind": 3}])
    write(tmp_path / "numbers.jsonl", NUMBERS)
    (tmp_path / "flights_of_a_test.py").write_text(QUERIES)
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("flights_of_a_test", None)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_queries_are_listed(lmerge: Lmerge) -> None:
    done = lmerge("query", "list", "flights_of_a_test.py")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:3] == [
        "flights    (origin: str, delay: int)",
        "late       (origin: str, delay: int)",
        "hourly     (origin: str, n: int)",
    ]
    assert len(lines) == 9
    (found,) = (
        each
        for each in json.loads(lmerge("query", "list", "flights_of_a_test.py", "--json").out)
        if each["name"] == "windy"
    )
    assert found["columns"] == {"origin": "str", "delay": "int", "wind": "int"}
    assert found["sources"] == ["flights", "sky"]


GRID = "tumbling windows as snapshots of a grid"


def test_a_query_is_explained(lmerge: Lmerge) -> None:
    done = lmerge("query", "explain", "flights_of_a_test.py:hourly", "--plans", "3")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "windows tumbling(60) by origin: n=count()",
        "└─ where col.delay > 15",
        "   └─ facts flights (origin: str, delay: int)",
        "",
        "plan 1: on_update; alone R3",
        "plan 2: on_close; alone R3",
        f"  rewritten: {GRID}, drop what an aggregate does not read",
        "  aggregate by origin, cut: n=count()",
        "  └─ select origin",
        "     └─ quantise(60)",
        "        └─ where col.delay > 15",
        "           └─ facts flights (origin: str, delay: int)",
        "plan 3: on_update, sources aligned; alone R3",
        f"  rewritten: {GRID}",
        "  aggregate by origin, cut: n=count()",
        "  └─ quantise(60)",
        "     └─ where col.delay > 15",
        "        └─ facts flights (origin: str, delay: int)",
        "merged: R3 (revisions in plan 1, 3; no order in plan 1, 2, 3)",
        "key: origin at one instant",
        "flights: for what ends at T or later, what ends at T-59 or later",
        "joining: with input from S on, right from S+60 on",
        "partitions: flights by origin",
    ]


def test_a_query_that_needs_all_is_explained_so(lmerge: Lmerge) -> None:
    lines = lmerge("query", "explain", "flights_of_a_test.py:newest").out.splitlines()
    assert "flights: all of it is needed: a replica resumes from its state only" in lines
    assert not any(line.startswith("joining") for line in lines)
    document = json.loads(lmerge("query", "explain", "flights_of_a_test.py:newest", "--json").out)
    assert (document["history"], document["joining"]) == ({"flights": None}, None)


def test_a_query_is_explained_to_programs(lmerge: Lmerge) -> None:
    found = json.loads(lmerge("query", "explain", "flights_of_a_test.py:windy", "--json").out)
    assert found["tree"]["node"] == "join on origin"
    assert [child["node"] for child in found["tree"]["of"]] == ["extend(9)", "extend(9)"]
    assert [each["number"] for each in found["plans"]] == [1, 2, 3, 4]
    assert found["plans"][0]["rewritten"] == []
    assert any("turn a join round" in each["rewritten"] for each in found["plans"])
    assert (found["case"], found["why"]) == ("R4", "no key in plan 1, 2, 3, 4")
    assert found["history"] == {"flights": 9, "sky": 9}
    assert found["joining"] == 10
    assert found["partition_columns"] == {"flights": ["origin"], "sky": ["origin"]}


def test_a_query_as_a_flowchart(lmerge: Lmerge) -> None:
    done = lmerge("query", "explain", "flights_of_a_test.py:late", "--mermaid")
    assert done.out.splitlines() == [
        "flowchart BT",
        '  n0["facts flights (origin: str, delay: int)"]',
        '  n1["where col.delay #gt; 15"]',
        "  n0 --> n1",
    ]


def test_plans_that_agree_and_what_was_left_out(lmerge: Lmerge) -> None:
    done = lmerge("query", "check", "flights_of_a_test.py:hourly", "facts.jsonl")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:3] == [
        "input: 4 events; left out: 1 late, 1 rejected",
        "  facts.jsonl:4: late, its time 12 is below 20",
        "  facts.jsonl:6: wrong_type (delay: True)",
    ]
    assert all(": as the query means, " in line for line in lines[3:])
    assert lines[-1].endswith("judged after each; 3 events in the end")


def test_several_sources_have_a_file_each(lmerge: Lmerge) -> None:
    target = "flights_of_a_test.py:windy"
    done = lmerge("query", "check", target, "sky=sky.jsonl", "flights=facts.jsonl", "--json")
    found = json.loads(done.out)
    assert (done.code, found["agrees"], found["first"]) == (0, True, None)
    assert (found["taken"], found["merge"]["events"]) == (5, 1)
    assert lmerge("query", "check", target, "facts.jsonl", "sky.jsonl").error == (
        "name the source of facts.jsonl, as NAME=facts.jsonl: there is flights, sky"
    )
    assert lmerge("query", "check", target, "sky=sky.jsonl").error == (
        "no file is given for the source 'flights': flights=FILE"
    )
    assert lmerge("query", "check", target, "sea=sky.jsonl", "sky=sky.jsonl").error == (
        "the query has no source 'sea'; there is flights, sky"
    )


def test_a_plan_that_is_wrong_midway_ends_in_1_and_is_shown_where(lmerge: Lmerge) -> None:
    target = "flights_of_a_test.py:forgetful"
    done = lmerge("query", "check", target, "numbers.jsonl", "--plans", "2")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        "input: 4 events",
        "plan 1 (on_update): wrong",
        "  numbers.jsonl:3, element 5: it differs from the meaning",
        "  expected (1,) [1, 5)",
        "  found nothing",
        "plan 2 (on_close): as the query means, 1 elements, compared 4 times",
        "merged (R3): not judged any more once plan 1 was wrong",
    ]
    found = json.loads(lmerge("query", "check", target, "numbers.jsonl", "--json").out)
    assert found["first"] == 1
    assert found["plans"][0]["deviation"] == {
        "place": "numbers.jsonl:3",
        "element": 5,
        "what": "it differs from the meaning",
        "expected": [{"payload": [1], "vs": 1, "ve": 5}],
        "found": [],
    }


def test_each_mistake_is_one_line(lmerge: Lmerge, tmp_path: Path) -> None:
    def error(*arguments: str) -> tuple[int, str]:
        done = lmerge("query", *arguments)
        return done.code, done.error

    assert error("list", "nothing.py") == (2, "there is no file nothing.py")
    assert error("explain", "flights_of_a_test.py") == (
        2,
        (
            "name a query of flights_of_a_test.py, as flights_of_a_test.py:NAME; there is "
            "flights, late, hourly, sky, windy, numbers, forgetful, raising, newest"
        ),
    )
    (tmp_path / "broken_of_a_test.py").write_text(QUERIES + "wrong = late.where(col.dely > 3)\n")
    assert error("explain", "broken_of_a_test.py:wrong") == (
        2,
        (
            "broken_of_a_test.py:14: where col.dely > 3: there is no column 'dely'; there is "
            "origin, delay"
        ),
    )
    write(tmp_path / "numbers.jsonl", [{**NUMBERS[0], "payload": {"n": "x"}}])
    assert error("check", "flights_of_a_test.py:numbers", "numbers.jsonl") == (
        2,
        "numbers.jsonl:1: no row (n: int): wrong_type (n: 'x')",
    )
    write(tmp_path / "numbers.jsonl", [NUMBERS[2]])
    assert error("check", "flights_of_a_test.py:numbers", "numbers.jsonl") == (
        2,
        "numbers.jsonl:1: adjust of an event [1, 5) that the stream does not hold",
    )
    write(tmp_path / "numbers.jsonl", [{**NUMBERS[0], "payload": {"n": 0}}])
    code, line = error("check", "flights_of_a_test.py:raising", "numbers.jsonl")
    assert code == 4
    assert line.startswith("plan 1, numbers.jsonl:1: ")
    assert "ZeroDivisionError" in line
    code, line = error("check", "flights_of_a_test.py:late", "no.jsonl")
    assert code == 2
    assert "no.jsonl" in line


def test_facts_may_come_by_standard_input(run: Run) -> None:
    done = run(pipeline="lmerge query check flights_of_a_test.py:hourly - < facts.jsonl")
    assert done.returncode == 0, done.stderr
    assert "<stdin>:4: late" in done.stdout


def test_facts_with_a_key_count_once_and_none_after_the_end(lmerge: Lmerge, tmp_path: Path) -> None:
    (tmp_path / "flights_of_a_test.py").write_text(
        "from lmerge_service.queries.expressions import col\n"
        "from lmerge_service.queries.plan import facts\n"
        'keyed = facts("keyed", time="at", key="n", ends=col.n == 9, fields={"n": int})\n'
    )
    write(
        tmp_path / "facts.jsonl", [{"at": at, "n": n} for at, n in ((1, 1), (2, 1), (3, 9), (4, 2))]
    )
    done = lmerge("query", "check", "flights_of_a_test.py:keyed", "facts.jsonl")
    assert done.code == 0
    assert done.out.splitlines()[:3] == [
        "input: 1 events; left out: 1 late, 1 repeated",
        "  facts.jsonl:2: repeated, a fact has this key already",
        "  facts.jsonl:4: late, its time 4 is below the end",
    ]


def test_what_ends_a_source_and_heartbeats_are_no_events(lmerge: Lmerge, tmp_path: Path) -> None:
    """As in a replica; what ends it needs no time."""
    (tmp_path / "flights_of_a_test.py").write_text(
        "from lmerge_service.queries.expressions import col\n"
        "from lmerge_service.queries.plan import count, facts, tumbling\n"
        'beats = facts("f", time="at", ends=col.n == 9, heartbeats=col.n == 8, fields={"n": int})\n'
        "hourly = beats.windows(tumbling(60)).aggregate(n=count())\n"
    )
    write(
        tmp_path / "facts.jsonl",
        [{"at": 1, "n": 1}, {"at": 70, "n": 8}, {"at": 5, "n": 2}, {"n": 8}, {"n": 9}, {"at": 80}],
    )
    done = lmerge("query", "check", "flights_of_a_test.py:hourly", "facts.jsonl", "--plans", "2")
    assert (done.code, done.out.splitlines()[:4], done.out.splitlines()[-1]) == (
        0,
        [
            "input: 1 events; left out: 2 late, 1 rejected",
            "  facts.jsonl:3: late, its time 5 is below 70",
            "  facts.jsonl:4: not_a_fact (at: None)",
            "  facts.jsonl:6: late, its time 80 is below the end",
        ],
        "merged (R3): as the query means, 4 elements, judged after each; 1 events in the end",
    )
