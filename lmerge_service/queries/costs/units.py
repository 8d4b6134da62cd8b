"""Unit costs: what each piece of work takes on one machine, measured once (`costs.calibrating`).

The file is JSON: nanoseconds of each unit, bytes of each kind of state, and of which version of the
model they are. Work is never priced without such a file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from lmerge_service.errors import ConfigurationError

__all__ = ("KINDS", "MODEL", "UNITS", "UnitCosts", "read_units", "write_units")

MODEL: Final = 2
"""Raised when units get another meaning: costs of another model are not taken."""

UNITS: Final[Mapping[str, str]] = {
    "call": "an operator without state is given a batch",
    "turn": "an operator that holds state is given a batch",
    "row": "an element passes an operator without state",
    "operation": "an operator or function of an expression, for a row",
    "create": "a row is made, of columns",
    "lifetime": "another lifetime, besides the row",
    "check": "an element is checked as it enters",
    "align": "an element is held until later",
    "hash": "an element is found its key, held and forgotten by a join",
    "probe": "an event of the other side is looked at",
    "pair": "a pair is made",
    "support": "an element enters a semi-join",
    "fragment": "a fragment of a left event is made",
    "clip": "an element enters clip",
    "layer": "an element enters distinct, coalesce or a set operator",
    "settle": "what a batch changes of a payload is settled by one of these",
    "sweep": "an endpoint is passed meanwhile",
    "boundary": "an endpoint of an event enters an aggregate",
    "cell": "a piece of time between endpoints is aggregated anew",
    "group": "a group is looked at in a batch",
    "pass": "a stable point comes to an aggregate or windows",
    "value": "a number is added at an endpoint, or shown of a piece of time",
    "ordered": "a value enters those that are kept in order at an endpoint, or is shown of them",
    "wait": "a row waits until it is emitted",
    "fold": "an element enters windows",
    "archive": "a fact is packed, to be replayed",
    "window": "what entered is added to a window",
    "lasting": "an event that lasts longer than a pane is added to a window",
    "mark": "a window of a pane is noted",
    "merge": "a pane is merged into a window",
    "result": "a window is computed",
    "expand": "an event is made for a window",
    "sum": "a number is added to that of a window, or shown of one",
    "kept": "a value enters those that a window keeps in order, or is shown of them",
    "last": "an element enters last_rows",
    "moved": "an end in last_rows is known",
    "net": "an element is netted with others, which may take it back",
}
"""What is counted, each for once."""

KINDS: Final[Mapping[str, str]] = {
    "element": "a live event of a topic",
    "align": "an event that is held",
    "join": "an event in a join",
    "support": "an event in a semi-join",
    "clip": "an event or start in clip",
    "layer": "an event in distinct or a set operator",
    "cell": "a boundary or row of an aggregate",
    "fact": "a fact that is packed, to be replayed",
    "window": "a window or pane of a group",
    "last": "a row of last_rows",
}
"""What entries of state are."""


class UnitCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What work and state cost here."""

    nanoseconds: dict[str, float]
    """By unit."""
    bytes: dict[str, float]
    """Of an entry, by kind."""
    error: float = 0.0
    """How far the runs that were measured are from what these costs make of them: the median of
    the greater of both by the lesser, less 1."""
    model: int = MODEL

    def __post_init__(self) -> None:
        wanted = (set(UNITS), set(KINDS))
        if self.model != MODEL or (set(self.nanoseconds), set(self.bytes)) != wanted:
            raise ValueError(f"the costs are of model {self.model}, this is model {MODEL}")
        if min(*self.nanoseconds.values(), *self.bytes.values()) < 0:
            raise ValueError("a cost is negative")

    def time(self, work: Mapping[str, float]) -> float:
        """Nanoseconds that work takes."""
        return sum(self.nanoseconds[unit] * number for unit, number in work.items())

    def memory(self, held: Mapping[str, float]) -> float:
        """Bytes that entries take, by kind."""
        return sum(self.bytes[kind] * number for kind, number in held.items())


def read_units(path: Path) -> UnitCosts | None:
    """The costs in a file; None if there is none.

    Raises:
        ConfigurationError: it cannot be read, or is no calibration of this version.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=UnitCosts)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"{path} is no calibration ({error}): run `lmerge query calibrate` again"
        ) from error


def write_units(path: Path, units: UnitCosts) -> None:
    """Writes a file, whole or not at all.

    Raises:
        ConfigurationError: it cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(units), indent=2)
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(text + b"\n")
        partial.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
