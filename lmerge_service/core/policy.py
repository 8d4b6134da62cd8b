"""When the output emits: the policies of V-A, as a value that operators are made with.

Theory
    Compatibility leaves freedom at three places, and each has its own choice:

    insert   which event is emitted, before a stable forces it
        first         the first time any input has it
        leader        once an input with the highest stable has it
        half_frozen   not before the stable that half freezes it: nothing is ever removed
        quorum(n)     once n inputs have it, or a fraction of the attached ones: quorum(0.5)
    adjust   which revision of an emitted event is emitted, before a stable forces it
        lazy          none
        eager         each, and each insert that gives another end
        leader        those of the input with the highest stable, first attached among equals
    stable   how far the output's stable point goes
        max           to the highest stable of a joined input
        lag(d)        d behind that: fewer adjusts, since much is final by then
        quorum(k)     to the k-th highest; what any of those k has is kept, and the majority
                      decides about its end

    >>> Policy()
    Policy(insert='first', adjust='lazy', stable='max')
    >>> Policy(insert=quorum(2), stable=lag(500))
    Policy(insert='quorum(2)', adjust='lazy', stable='lag(500)')
    >>> Policy(insert="last")
    Traceback (most recent call last):
    ...
    ValueError: insert must be one of first, leader, half_frozen, quorum(n), got 'last'

    The texts are what topologies, snapshots and command lines hold, so there is one form only.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from lmerge_service.elements import INFINITY

__all__ = ("Emission", "Policy", "lag", "quorum")

_CALL = re.compile(r"(lag|quorum)\((\d+(?:\.\d+)?)\)")
_CHOICES = {
    "insert": ("first", "leader", "half_frozen", "quorum(n)"),
    "adjust": ("lazy", "eager", "leader"),
    "stable": ("max", "lag(d)", "quorum(k)"),
}


def quorum(share: int | float) -> str:
    """So many inputs, or for a fraction below 1 so many of the attached ones, rounded up."""
    return f"quorum({share})"


def lag(d: int) -> str:
    """So much time behind, in the unit of the elements."""
    return f"lag({d})"


@dataclass(frozen=True, slots=True)
class Emission:
    """What the output emits for an insert or adjust of an input, before a stable forces it."""

    at_once: bool
    """An event that is not on the output is emitted with its first insert."""
    awaited: bool
    """Such an event is emitted as soon as the inputs have it that the insert policy names."""
    reflected: bool
    """Revisions are emitted of those inputs that the adjust policy names."""


@dataclass(frozen=True, slots=True)
class Policy:
    """See the module's text.

    Raises:
        ValueError: there is no such choice.
    """

    insert: str = "first"
    adjust: str = "lazy"
    stable: str = "max"

    def __post_init__(self) -> None:
        for where, choices in _CHOICES.items():
            text = getattr(self, where)
            call = _CALL.fullmatch(text)
            if call is None:
                known = text in choices and "(" not in text
            else:
                known = any(choice.startswith(f"{call[1]}(") for choice in choices)
                known = known and _is_sensible(where, call[1], call[2])
            if not known:
                raise ValueError(f"{where} must be one of {', '.join(choices)}, got {text!r}")

    @property
    def remembers(self) -> bool:
        """It holds events back, or lets inputs vote on them, so that an index is needed."""
        return self.insert != "first" or self.stable.startswith("quorum")

    @property
    def lag(self) -> int:
        """How far the output stays behind; 0 for other choices."""
        return int(_argument(self.stable, "lag") or 0)

    @property
    def voters(self) -> int:
        """How many inputs decide about a stable; 1 but for quorum(k)."""
        return int(_argument(self.stable, "quorum") or 1)

    @property
    def emission(self) -> Emission:
        """What an operator emits of itself."""
        return Emission(
            at_once=self.insert == "first",
            awaited=self.insert not in ("first", "half_frozen"),
            reflected=self.adjust != "lazy",
        )

    @property
    def replayed(self) -> Emission:
        """What an operator emits for what another one has taken already: events that the output
        lacks and should have. Where revisions are reflected it may lack one because a revision has
        removed it."""
        at_once = self.insert == "first" and self.adjust == "lazy"
        return Emission(at_once=at_once, awaited=False, reflected=False)

    def check_inputs(self, count: int) -> None:
        """Refuses a quorum that so many inputs can never make.

        Raises:
            ValueError: it is larger than that.
        """
        for where, needed in (("insert", self.witnesses(count)), ("stable", self.voters)):
            if needed > count:
                policy = f"{where}={getattr(self, where)}"
                raise ValueError(f"{policy} of {count} inputs is never reached")

    def witnesses(self, attached: int) -> int:
        """How many of the attached inputs must have an event for `insert=quorum(...)`.

        >>> Policy(insert=quorum(0.5)).witnesses(3), Policy(insert=quorum(2)).witnesses(5)
        (2, 2)

        A whole number counts inputs, a decimal fraction is a share of them: quorum(1) is any one
        input, quorum(1.0) is all of them.
        """
        share = _argument(self.insert, "quorum") or "1"
        return ceil(Fraction(share) * attached) if "." in share else int(share)


def _argument(text: str, function: str) -> str | None:
    call = _CALL.fullmatch(text)
    return call[2] if call is not None and call[1] == function else None


def _is_sensible(where: str, function: str, argument: str) -> bool:
    if function == "lag":
        return argument.isdigit() and int(argument) <= INFINITY
    if "." in argument:
        return where == "insert" and 0 < float(argument) <= 1
    return int(argument) >= 1
