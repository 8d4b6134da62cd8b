"""How events and breaches are shown to people, and documents to programs."""

from collections.abc import Hashable, Mapping
from typing import Any, Final

import msgspec
import typer

from lmerge_service.core import BreachKind
from lmerge_service.elements import INFINITY, START
from lmerge_service.text import printable, shortened

__all__ = (
    "BREACHES",
    "fields_of",
    "finite",
    "payload_json",
    "payload_text",
    "point",
    "print_json",
    "printable",
    "report",
    "shortened",
    "since",
)

BREACHES: Final[Mapping[BreachKind, str]] = {
    BreachKind.BROKE_CASE: "ignored, the case declared for the inputs rules it out",
    BreachKind.MALFORMED: "ignored, its times make no event",
    BreachKind.BROKE_OWN_STABLE: "ignored, it touches what this input had made final",
    BreachKind.UNKNOWN_EVENT: "adjusts an event that this input never inserted",
    BreachKind.WRONG_VOLD: "vold is not the end that this input gave the event last",
    BreachKind.DUPLICATE_KEY: "inserts an event that this input holds already",
    BreachKind.HALF_FROZEN_MISSING: "passes an event that this input does not have",
    BreachKind.FROZEN_END_DISAGREES: "passes an event that this input ended too early to follow",
    BreachKind.DISAGREEMENT: "passes an interval in which it has other events than the output",
    BreachKind.AFTER_DETACH: "ignored, this input was detached",
    BreachKind.STABLE_REGRESSION: "ignored, it is below the last stable of this input",
}
"""What was wrong with the element, and what became of it."""


def point(time: int) -> str:
    """A time as people read it."""
    return {INFINITY: "infinity", START: "-infinity"}.get(time, str(time))


def since(time: int) -> str:
    """From when on something is there, or holds."""
    return "the beginning" if time == START else f"{point(time)} on"


def finite(time: int) -> int | None:
    """A time as the wire has it: infinity is null."""
    return None if time in (INFINITY, START) else time


def fields_of(source: object, *names: str) -> dict[str, Any]:
    """These attributes for programs; an infinite time is null."""
    values = {name: getattr(source, name) for name in names}
    return {
        name: finite(value) if isinstance(value, int) else value for name, value in values.items()
    }


def payload_json(payload: Hashable) -> msgspec.Raw:
    """A payload of the wire, as part of a document."""
    assert isinstance(payload, bytes)
    return msgspec.Raw(payload)


def payload_text(payload: Hashable) -> str:
    """A payload's canonical JSON."""
    assert isinstance(payload, bytes)
    return payload.decode()


def report(document: object, *lines: str, as_json: bool, err: bool = False) -> None:
    """The document on standard output for programs, or the lines for people; `err`: these go to
    standard error."""
    if as_json:
        print_json(document)
        return
    for line in lines:
        typer.echo(line, err=err)


def print_json(document: object, *, err: bool = False) -> None:
    """One JSON document on one line."""
    typer.echo(msgspec.json.encode(document).decode(), err=err)
