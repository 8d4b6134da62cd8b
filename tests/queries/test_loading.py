"""Queries in files and modules: what is found, and one clear line for each mistake."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.loading import load, queries_in

HEAD = """\
from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import count, facts, tumbling
"""
FLIGHTS = f"""{HEAD}
flights = facts("flights", time="time", fields={{"origin": str, "delay": int}})
_hidden = flights.select("origin")
late = flights.where(col.delay > 15)
hourly = late.windows(tumbling(60)).by("origin").aggregate(n=count())
size = 60
"""


Write = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Write]:
    """Writes a file; what is imported of it is forgotten behind the test."""
    path, modules = list(sys.path), set(sys.modules)

    def write(text: str, name: str = "of_a_test.py") -> str:
        file = tmp_path / name
        file.write_text(text)
        return str(file)

    yield write
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        del sys.modules[name]


def failure(target: str, file: str = "") -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(target)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(file, "FILE") if file else line


def test_the_queries_of_a_file_in_their_order(written: Write) -> None:
    file = written(FLIGHTS)
    assert list(queries_in(file)) == ["flights", "late", "hourly"]
    assert load(f"{file}:hourly").schema.names == ("origin", "n")


def test_a_module_is_loaded_by_its_name(
    written: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written(FLIGHTS, "module_of_a_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("module_of_a_test:late") == load(f"{tmp_path}/module_of_a_test.py:late")
    assert list(queries_in("module_of_a_test")) == ["flights", "late", "hourly"]


def test_functions_beside_a_query_are_found_again(written: Write) -> None:
    """By the name under which the plan has them, in this process and in another."""
    written("def doubled(row): return [row, row]\n", "helper_of_a_test.py")
    file = written(
        f"{HEAD}from lmerge_service.queries.modules import uda\n"
        "from lmerge_service.queries.plan import apply, snapshots\n"
        "@uda('1')\n"
        "def most(values): return max(values)\n"
        "flights = facts('flights', time='time', fields={'n': int})\n"
        "best = flights.windows(snapshots()).apply(apply(most, 'n', {'n': int}))\n"
        "twice = flights.flat_map('helper_of_a_test:doubled', {'n': int})\n"
    )
    here = [load(f"{file}:{name}").fingerprint for name in ("best", "twice")]
    code = (
        "import sys; from lmerge_service.queries.loading import load\n"
        "for name in ('best', 'twice'): print(load(f'{sys.argv[1]}:{name}').fingerprint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, file], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == here


@pytest.mark.parametrize(
    ("text", "target", "line"),
    [
        (FLIGHTS, "late2", "FILE has no query 'late2'; there is flights, late, hourly"),
        (FLIGHTS, "size", "FILE:size is 60, not a query: flights, late, hourly are"),
        ("", "late", "FILE has no query 'late'; there is none"),
        (f"{HEAD}\nx = 1 / 0\n", "x", "FILE:4: ZeroDivisionError: division by zero"),
        ("x = (1,\n", "x", "FILE:1: SyntaxError: '(' was never closed"),
        ("import nothing_\n", "x", "FILE:1: ModuleNotFoundError: No module named 'nothing_'"),
        ("raise SystemExit(3)\n", "x", "FILE:1: SystemExit: 3"),
        (
            FLIGHTS + "\ndef made(): return flights.where(\n    col.dely > 1)\nq = made()\n",
            "q",
            "FILE:10: where col.dely > 1: there is no column 'dely'; there is origin, delay",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(
    written: Write, text: str, target: str, line: str
) -> None:
    file = written(text)
    assert failure(f"{file}:{target}", file) == line


def test_a_target_names_a_file_and_a_query(written: Write) -> None:
    file = written(FLIGHTS)
    assert (
        failure(file, file) == "name a query of FILE, as FILE:NAME; there is flights, late, hourly"
    )
    assert failure(f"{file}x.py:late", file) == "there is no file FILEx.py"
    assert failure("no_such_module:late") == "there is neither a file nor a module 'no_such_module'"
    assert failure("os.no_such:late") == "there is neither a file nor a module 'os.no_such'"
    taken = written(FLIGHTS, "json.py")
    assert failure(f"{taken}:late", taken) == (
        "FILE has the name of another module, 'json': give the file another name"
    )
    text = written(FLIGHTS, "queries.txt")
    assert failure(f"{text}:late", text) == "FILE is no Python file: name it .py"
