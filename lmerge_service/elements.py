"""Stream elements: insert, adjust and stable.

Theory
    A stream is a sequence of elements that describe a temporal database (TDB): a multiset of
    events ⟨payload, [vs, ve)⟩. The three elements are those of the paper (III-C, Example 5):

    >>> Insert("A", 6, 20)          # adds ⟨A, [6, 20)⟩
    Insert(payload='A', vs=6, ve=20)
    >>> Adjust("A", 6, 20, 30)      # ⟨A, [6, 20)⟩ becomes ⟨A, [6, 30)⟩; ve = vs removes it
    Adjust(payload='A', vs=6, vold=20, ve=30)
    >>> Stable(11)                  # the part of the TDB before 11 is final
    Stable(vc=11)

Invariants
    E1  Times are int64 in the unit the topology names. `INFINITY`, the largest int64, is the end
        of an event without end, and the stable point of a stream that has ended.
    E2  -2**63 <= vs < ve <= INFINITY for an insert; vs <= ve and vs < vold for an adjust.
    E3  A payload is any hashable value; it need not be orderable.

The elements are msgspec structs, generic in the payload, so that decoding JSON with the payload
left raw *is* construction (`formats.wire`). Like every msgspec struct they are validated when
decoded, not when built by hand; `defect` finds what is wrong with one.
"""

from collections.abc import Hashable
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

__all__ = (
    "INFINITY",
    "START",
    "Adjust",
    "Element",
    "Insert",
    "Stable",
    "defect",
    "is_fully_frozen",
    "is_half_frozen",
    "is_unfrozen",
)

INFINITY: Final = 2**63 - 1
START: Final = -(2**63)
"""The stable point of a stream that has not sent a stable yet."""

P = TypeVar("P")


class Insert(
    msgspec.Struct, Generic[P], frozen=True, gc=False, tag_field="op", tag="insert",
    forbid_unknown_fields=True,
):  # fmt: skip
    """Adds the event ⟨payload, [vs, ve)⟩; legal after the stream's own `stable(c)` iff vs >= c."""

    payload: P
    vs: int
    ve: int


class Adjust(
    msgspec.Struct, Generic[P], frozen=True, gc=False, tag_field="op", tag="adjust",
    forbid_unknown_fields=True,
):  # fmt: skip
    """Moves the end of ⟨payload, [vs, vold)⟩ to ve; ve = vs removes the event.

    Legal after the stream's own `stable(c)` iff vold >= c and ve >= c.
    """

    payload: P
    vs: int
    vold: int
    ve: int


class Stable(
    msgspec.Struct, frozen=True, gc=False, tag_field="op", tag="stable", forbid_unknown_fields=True
):
    """Declares the part of the TDB before vc final; one that does not rise has no effect."""

    vc: int


Element: TypeAlias = Insert[Any] | Adjust[Any] | Stable


def is_unfrozen(vs: int, ve: int, c: int) -> bool:
    """After stable(c) the event [vs, ve) may still vanish altogether."""
    return c <= vs


def is_half_frozen(vs: int, ve: int, c: int) -> bool:
    """After stable(c) the event [vs, ve) stays, but its end may still move: vs < c <= ve."""
    return vs < c <= ve


def is_fully_frozen(vs: int, ve: int, c: int) -> bool:
    """After stable(c) the event [vs, ve) is final: ve < c.

    By the letter an event without end is half frozen for ever; stable(INFINITY) ends the stream,
    so that it is final too, and all state may go.
    """
    return ve < c


def defect(element: object) -> str | None:
    """Why `element` is not a stream element at all (E1 to E3), or None when it is one.

    >>> defect(Insert("A", 6, 6))
    'an insert needs vs < ve, got vs=6, ve=6'
    >>> defect(Stable(True))
    'vc must be an int64, got True'
    """
    if type(element) is Insert:  # nearly all there are, and nearly all of these sound
        vs, ve = element.vs, element.ve
        if type(vs) is type(ve) is int and START <= vs < ve <= INFINITY:
            return _bad_payload(element.payload)
    match element:
        case Insert():
            return (
                _bad_time(element)
                or _bad_payload(element.payload)
                or (
                    None
                    if element.vs < element.ve
                    else f"an insert needs vs < ve, got vs={element.vs}, ve={element.ve}"
                )
            )
        case Adjust():
            return (
                _bad_time(element)
                or _bad_payload(element.payload)
                or (
                    None
                    if element.vs <= element.ve and element.vs < element.vold
                    else "an adjust needs vs < vold and vs <= ve, got "
                    f"vs={element.vs}, vold={element.vold}, ve={element.ve}"
                )
            )
        case Stable():
            return _bad_time(element)
    return f"not an insert, adjust or stable: {element!r}"


def _bad_time(element: Element) -> str | None:
    for name in ("vs", "vold", "ve", "vc"):
        value = getattr(element, name, 0)
        if type(value) is not int or not START <= value <= INFINITY:
            return f"{name} must be an int64, got {value!r}"
    return None


def _bad_payload(payload: object) -> str | None:
    return None if isinstance(payload, Hashable) else f"the payload is not hashable: {payload!r}"
