"""The pages for who runs the service: complete and true, as far as code can check."""

import ast
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from lmerge_service import errors
from lmerge_service.config.topology import Kafka, Output, Replica, Topology
from lmerge_service.core import BreachKind
from lmerge_service.merge.findings.evidence import NotificationKind
from lmerge_service.merge.guards.verdicts import Guard
from lmerge_service.service.status.document import ReasonKind
from tests.operations.documented import PAGES, anchors_of, commands

NIGHT = Path("docs/operations.md")
REFERENCE = Path("docs/operations/topology.md")
PACKAGE = Path("lmerge_service")


def blocks(page: Path) -> list[Any]:
    """What the page's YAML contains."""
    found = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [YAML(typ="safe").load(each) for each in found]


# --- the topology reference -----------------------------------------------------------------------


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The paths of all fields, into models and lists of them; not into dialects."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        yield path
        if path != "replicas.format":
            for inner in models_in(field.annotation):
                yield from fields(inner, f"{path}.")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for each in typing.get_args(annotation):
            yield from models_in(each)


def paths(document: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(document, list):
        for each in document:
            yield from paths(each, prefix)
    elif isinstance(document, dict):
        for name, value in document.items():
            yield f"{prefix}{name}"
            yield from paths(value, f"{prefix}{name}.")


def test_the_reference_has_every_field_of_the_topology_and_no_other() -> None:
    known = set(fields(Topology))
    shown = {path for block in blocks(REFERENCE) for path in paths(block)}
    assert shown <= known, shown - known
    secrets = {path for path in known if path.endswith((".file", ".env"))}
    assert known - shown <= secrets, known - shown - secrets
    assert {path.rpartition(".")[2] for path in shown & secrets} == {"file", "env"}


def test_the_reference_is_a_topology_and_shows_the_defaults() -> None:
    document = blocks(REFERENCE)[0]
    shown = Topology.model_validate(document)
    least = Topology(
        name="flights",
        kafka=Kafka(bootstrap="127.0.0.1:9092"),
        output=Output(topic="flights.merged"),
        replicas=(Replica(name="a", topic="flights.a"),),
    )
    examples = {"key", "output.dead_letters", "replicas.joining_at"}
    as_resolved = {"guards.max_skew": least.max_skew, "guards.max_leap": least.max_leap}
    for path in set(paths(document)) - examples:
        ours, default = at(shown, path), as_resolved.get(path, at(least, path))
        if not isinstance(ours, BaseModel | tuple):
            assert ours == default, path


def at(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model[0] if isinstance(model, tuple) else model, name)
    return model


# --- from a message to what to do ----------------------------------------------------------------

NOT_WORDS = re.compile(r"[^a-z]+")


def words(text: str) -> str:
    return NOT_WORDS.sub(" ", text.lower())


def texts_of(path: Path, *functions: str) -> Iterator[str]:
    """The literal texts in these functions of a module, the longest part of each that is put
    together; docstrings and what is logged left out."""
    tree = ast.parse(path.read_text())
    found = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions
    }
    assert set(found) == set(functions), f"{path}: {set(functions) - set(found)} is gone"
    for function in found.values():
        yield from _texts(function.body[ast.get_docstring(function) is not None :])


def _texts(nodes: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [each.value for each in node.values if isinstance(each, ast.Constant)]
            yield max(map(str, parts), key=lambda part: len(words(part)))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.value
        elif not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")):
            yield from _texts(ast.iter_child_nodes(node))


REASONS = [
    *texts_of(PACKAGE / "service/status/health.py", "reasons", "unreachable", "_wrong_with"),
    *texts_of(PACKAGE / "merge/replicas.py", "begin", "_unfit"),
    *texts_of(PACKAGE / "merge/recovery.py", "_stand", "_replay_input"),
    *texts_of(PACKAGE / "merge/topic_monitor.py", "_compare", "_miss"),
    *texts_of(PACKAGE / "kafka/source.py", "poll", "_why"),
]


@pytest.mark.parametrize("text", sorted({words(each) for each in REASONS if " " in each.strip()}))
def test_every_text_of_a_reason_is_on_the_page(text: str) -> None:
    """The first words of it, which is how a person would look for it."""
    key = " ".join(text.split()[:4])
    assert key in words(NIGHT.read_text()), f"{key!r} is not on {NIGHT}"


@pytest.mark.parametrize("closed_set", [ReasonKind, BreachKind, Guard])
def test_every_word_of_a_closed_set_has_a_row(closed_set: Any) -> None:
    first = set(re.findall(r"^\| `(\w+)` \|", NIGHT.read_text(), re.MULTILINE))
    assert {each.value for each in closed_set} <= first


def test_every_notification_is_documented() -> None:
    section = NIGHT.read_text().partition("### What else is in the events topic")[2]
    known = set(re.findall(r"`(\w+)`", section.partition("\n## ")[0]))
    left = {each.value for each in NotificationKind} - known
    assert not left


def test_every_exit_code_has_a_row() -> None:
    codes = {
        each.exit_code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.LMergeError)
    }
    assert {0, *codes} == set(map(int, re.findall(r"^\| (\d) \|", NIGHT.read_text(), re.MULTILINE)))


# --- links and commands ---------------------------------------------------------------------------

ALL = [
    *PAGES,
    *sorted(Path("docs").glob("*.md")),
    *sorted(Path("docs/uses").glob("*.md")),
    Path("README.md"),
]


@pytest.mark.parametrize("page", dict.fromkeys(ALL), ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name) if name else page
        assert there.exists(), f"{target}: there is no {there}"
        assert not anchor or anchor in anchors_of(there), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_commands_of_the_pages_exist(page: Path) -> None:
    named = set(re.findall(r"(?:^|`)lmerge ([a-z][a-z-]+)", page.read_text(), re.MULTILINE))
    assert named <= commands(), named - commands()
