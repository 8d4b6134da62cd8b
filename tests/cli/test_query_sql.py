"""Statements on the command line: their tables are the queries of a file."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Lmerge

PAGE = Path("docs/sql.md").read_text()
FILE = """
from lmerge_service.queries.plan import facts

departed = facts("flights", time="time", fields={"origin": str, "delay": int})
"""
FACTS = [
    {"time": 1, "origin": "JFK", "delay": 20},
    {"time": 2, "origin": "EWR", "delay": 90},
    {"time": 3_600_001, "origin": "JFK", "delay": 16},
]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[str]:
    path = list(sys.path)
    (tmp_path / "tables_of_sql.py").write_text(FILE)
    (tmp_path / "facts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in FACTS))
    yield str(tmp_path / "tables_of_sql.py")
    sys.path[:] = path
    sys.modules.pop("tables_of_sql", None)


def test_the_statement_of_the_page_runs_by_all_its_plans(
    file: str, tmp_path: Path, lmerge: Lmerge
) -> None:
    (command,) = re.findall(r"```console\n\$ (.*?)```", PAGE, re.DOTALL)
    statement = shlex.split(command)[-1]
    done = lmerge("query", "check", file, str(tmp_path / "facts.jsonl"), "--sql", statement)
    assert (done.code, done.err) == (0, "")
    assert "3 events in the end" in done.out


def test_explain_shows_the_plans_of_a_statement(file: str, lmerge: Lmerge) -> None:
    statement = "SELECT COUNT(*) AS n FROM TUMBLE(departed, time, 5) GROUP BY window_start"
    done = lmerge("query", "explain", file, "--sql", statement, "--unit", "s", "--plans", "2")
    assert done.out.startswith("windows tumbling(5): n=count()\n└─ facts flights")


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT n FROM departed", "SQL, line 1, column 8: there is no column n; there is origin"),
        ("SELECT * FROM flights", "SQL, line 1, column 15: there is no table flights; there is"),
    ],
)
def test_a_mistake_is_one_line(file: str, statement: str, error: str, lmerge: Lmerge) -> None:
    done = lmerge("query", "explain", file, "--sql", statement)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {error}")
    assert done.err.count("\n") == 1


def test_a_file_without_queries_has_no_tables(tmp_path: Path, lmerge: Lmerge) -> None:
    (tmp_path / "no_tables.py").write_text("")
    done = lmerge("query", "explain", "no_tables.py", "--sql", "SELECT x FROM t")
    assert done.code == 2
    assert "has no queries, which --sql has as its tables" in done.err


def test_a_sample_shows_what_each_plan_costs(file: str, tmp_path: Path, lmerge: Lmerge) -> None:
    statement = "SELECT COUNT(*) AS n FROM TUMBLE(departed, time, 3600000) GROUP BY window_start"
    explained = ("query", "explain", file, "--sql", statement, "--plans", "2")
    facts = str(tmp_path / "facts.jsonl")
    done = lmerge(*explained, "--sample", facts)
    assert "\nsample: 3 events\nplan 1: 2 events by 4 elements (2.00 an event)" in done.out
    shown = json.loads(lmerge(*explained, "--sample", f"flights={facts}", "--json").out)["sample"]
    assert shown["taken"] == 3
    assert [(each["events"], each["emitted"]) for each in shown["plans"]] == [(2, 4), (2, 2)]
    done = lmerge(*explained, "--sample", "away.jsonl")
    assert (done.code, done.err.count("\n")) == (2, 1)
