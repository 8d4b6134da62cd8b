"""The options by which a presentation departs from the plainest one, of `present` and `generate`.

Each is a field of `Variation`, and None where it is not given, so that a preset stays as it is.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated, Any, Final, get_args

import typer

from lmerge_service.workloads.presentation import Variation

__all__ = ("WHEN", "given_of", "with_variation")

_WHAT: Final = "The ends and revisions of an event (fractions are of all events)"
WHEN: Final = "When it is published (times are in the unit of the stream)"
_STABLES: Final = "Stables"

_USUAL_LENGTH: Final = "an event's usual length"
_LENGTHS: Final = ("spread", "displacement")
"""As long as the events are, where they are not given."""

_OPTIONS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "ends": (_WHAT, "All ends, the first and final one (first), or the final one."),
        "provisional": (_WHAT, "Published with made-up ends first."),
        "revisions": (_WHAT, "Made-up ends at the most."),
        "spread": (_WHAT, "How far these lie below or above the final end."),
        "endless": (_WHAT, "Of the made-up ends, those at infinity."),
        "reinserted": (_WHAT, "Inserted, removed, and inserted again."),
        "phantoms": (_WHAT, "Further events, which are later removed."),
        "doubled": (_WHAT, "There twice for a while (case R4 only)."),
        "lead": (WHEN, "Inserts come so long before the start."),
        "pace": (WHEN, "Revisions come eager, late or anytime."),
        "disorder": (WHEN, "The fraction of elements that are delayed."),
        "displacement": (WHEN, "By how long at the most."),
        "stable_every": (_STABLES, "One after so many elements."),
        "stable_probability": (_STABLES, "One after an element by chance."),
        "stable_lag": (_STABLES, "How long it stays behind what is certain."),
        "repeated_stables": (_STABLES, "Repeat the last when none is due."),
        "closed": (_STABLES, "End with stable(infinity), or not."),
    }
)


def with_variation(
    usual: Variation, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the fields of a `Variation` as options, for its `**variation`; `usual`
    has what the help calls default."""
    options = [
        _option(name, usual, *_OPTIONS[name])
        for name in (each.name for each in fields(Variation))
        if name in _OPTIONS and name not in without
    ]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**values: Any) -> None:
            command(**values)

        own = inspect.signature(command).parameters.values()
        named = [each for each in own if each.kind is not each.VAR_KEYWORD]
        parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in [*named, *options]]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return add


def _option(name: str, usual: Variation, panel: str, text: str) -> inspect.Parameter:
    default = getattr(usual, name)
    shown = default
    if name in _LENGTHS:
        shown = _USUAL_LENGTH
    elif name == "closed":
        shown = "closed" if default else "open"
    declared: tuple[str, ...] = ("--closed/--open",) if name == "closed" else ()
    kind, limits = _kind(name, default)
    option = typer.Option(
        *declared, **limits, help=f"{text} [default: {shown}]", rich_help_panel=panel
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, place, default=None, annotation=annotation)


def _kind(name: str, default: object) -> tuple[Any, dict[str, Any]]:
    """The type of an option's value, and what typer is to know of it."""
    match default:
        case bool():
            return bool, {}
        case float():
            return float, {"min": 0, "max": 1, "metavar": "FRACTION"}
        case int():
            least = 1 if name in (*_LENGTHS, "revisions") else 0
            return int, {"min": least, "metavar": "N"}
        case _:
            kind = next(each.type for each in fields(Variation) if each.name == name)
            assert get_args(kind), "one of several words"
            return kind, {"metavar": "ENDS" if name == "ends" else "PACE"}


def given_of(values: Mapping[str, Any], length: int) -> dict[str, Any]:
    """The fields of a `Variation` that were given; `length` is an event's usual one."""
    given = {name: value for name, value in values.items() if value is not None}
    return {**dict.fromkeys(_LENGTHS, length), **given}
