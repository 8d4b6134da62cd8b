"""The logs: every event that the worker can log is documented, with its fields."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from lmerge_service.cli.run import log_to_stderr

SOURCES = [
    path
    for room in ("service", "http", "merge", "reader", "kafka")
    for path in sorted(Path("lmerge_service", room).rglob("*.py"))
    if path != Path("lmerge_service/kafka/feedback.py")  # it runs in a replica
]
PAGE = Path("docs/operations/logs.md").read_text()
BOUND = {"merge", "worker", "task"}
"""These are in every line that is about one, without being named there."""

_EVENT = re.compile(r"^\| `([^`]+)` \| (info|warning) \|([^|]*)\|", re.MULTILINE)


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    rows = _EVENT.findall(PAGE)
    found = {
        event: (level, frozenset(re.findall(r"`(\w+)`", fields))) for event, level, fields in rows
    }
    assert len(found) == len(rows)
    return found


def logged() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Event, level and fields of each call of `log` in the code."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"log.info", "log.warning"}:
                level = ast.unparse(node.func).removeprefix("log.")
                fields = {each.arg for each in node.keywords if each.arg is not None}
                for event in _constants(node.args[0]):
                    yield event, level, frozenset(fields - BOUND)


def _constants(event: ast.expr) -> Iterator[str]:
    """One event, or either of two."""
    for node in ast.walk(event):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_event_is_documented_with_its_level_and_fields() -> None:
    found = {event: (level, fields) for event, level, fields in logged()}
    assert found == documented()


def test_a_replicas_event_names_the_replica_and_a_place_is_whole() -> None:
    for event, _, fields in logged():
        if event.startswith("replica") or event in {"breach", "not an element"}:
            assert "replica" in fields, event
        if "partition" in fields or "offset" in fields:
            assert fields & {"topic", "id"}, f"{event}: a place in no topic"


def test_what_is_bound_to_the_context_is_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    try:
        log_to_stderr(as_json=True)
        with structlog.contextvars.bound_contextvars(merge="m", worker="w", task=3):
            structlog.get_logger().info("running", case="R3")
    finally:
        structlog.configure(**before)
    line = json.loads(capsys.readouterr().err)
    assert {"merge": "m", "worker": "w", "task": 3, "case": "R3"}.items() <= line.items()
    assert {"timestamp", "level", "event"} <= set(line)
