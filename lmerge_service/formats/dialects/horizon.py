"""How far a partition has come: its own stable, and the rule that moves it.

Theory
    A dialect must never break its own stable, so the decoder tracks it. A watermark moves it
    (`reach`); or it follows the latest time seen at a distance (`see`), if that is the rule. It
    only ever rises, and a step back is ignored.

    >>> horizon = Horizon(Lateness(lateness=5))
    >>> horizon.see(20), horizon.see(18), horizon.reach(16)
    ([Stable(vc=15)], [], [Stable(vc=16)])

    The largest int64 ends the stream, whatever the rule: it is what a source that has ended
    gives as its watermark.
"""

from lmerge_service.elements import INFINITY, START, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.dialects.options import Lateness
from lmerge_service.formats.reasons import Reason

__all__ = ("Horizon",)


class Horizon:
    """A stable point and the latest time seen."""

    __slots__ = ("_rule", "latest", "stable")

    def __init__(self, rule: object) -> None:
        self._rule = rule if isinstance(rule, Lateness) else None
        self.stable = START
        self.latest = START

    def see(self, t: int) -> list[Stable]:
        """A change at t, or a heartbeat, was read."""
        if t <= self.latest:
            return []
        self.latest = t
        rule = self._rule
        if rule is None:
            return []
        if t == INFINITY:
            return self.reach(INFINITY)
        behind = t - rule.lateness
        return self.reach(max(behind - behind % rule.step, START))

    def reach(self, c: int) -> list[Stable]:
        """Nothing before c changes any more."""
        if c <= self.stable:
            return []
        self.stable = c
        return [Stable(c)]

    def admit(self, touched: int, first: int = START) -> None:
        """Refuses what touches a time before the own stable, or before `first`.

        Raises:
            ElementError: it comes too late.
        """
        c = max(self.stable, first)
        if touched < c:
            raise ElementError(Reason.LATE, f"touches time {touched}, but {c} is stable")
