"""What an input did wrong, as data.

A merge never raises for what an input sends; it keeps the output legal, records the breach, and
leaves it to the caller to report, quarantine or ignore the input.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lmerge_service.elements import Element
from lmerge_service.tdb import Event

__all__ = ("DIVERGENT", "Breach", "BreachKind")


class BreachKind(StrEnum):
    """The kinds of breach; the values are labels of metrics."""

    BROKE_CASE = "broke_case"
    """An element that the declared case rules out: an adjust or a step back in cases R0 to R2, in
    R1 another event than the other inputs have at that place. It changes nothing."""
    MALFORMED = "malformed"
    """An insert with ve <= vs, or an adjust with ve < vs or vold <= vs: no element at all."""
    BROKE_OWN_STABLE = "broke_own_stable"
    """An insert or adjust that touches what the input itself had declared final."""
    UNKNOWN_EVENT = "unknown_event"
    """An adjust of an event that the input never inserted."""
    WRONG_VOLD = "wrong_vold"
    """An adjust whose old end is not the end that the input gave last."""
    DUPLICATE_KEY = "duplicate_key"
    """A second insert of a (payload, vs) that the input still holds."""
    HALF_FROZEN_MISSING = "half_frozen_missing"
    """The input passed an event by its stable without having it; the output cannot drop it."""
    FROZEN_END_DISAGREES = "frozen_end_disagrees"
    """The input gives an event another end than the output, which cannot follow it: it is final,
    or the majority of the voting inputs decided otherwise."""
    DISAGREEMENT = "disagreement"
    """The input has passed a range of time in which it has other events than the output, or other
    ends of them, late ones included; only a worker looks for that
    (`merge.findings.confirmation`)."""
    AFTER_DETACH = "after_detach"
    """An element of an input that is not attached any more."""
    STABLE_REGRESSION = "stable_regression"
    """A stable below the one that the same partition of the input sent before."""


DIVERGENT: Final = frozenset({BreachKind.HALF_FROZEN_MISSING, BreachKind.FROZEN_END_DISAGREES})
"""What contradicts what the output has made final."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One breach: its input, kind and element, and the event as the output kept it."""

    input: str
    incarnation: int
    kind: BreachKind
    element: Element
    kept: Event | None = None
    """The event as the output held it when the breach was found."""
    versions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """What each attached input had contributed to that (payload, vs) until then: its name, and its
    ends, none if it does not have it. Only breaches about an event that the merge has a node
    for, in cases with an index, have any."""
