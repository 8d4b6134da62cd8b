"""Counts of what an operator's output has carried."""

from dataclasses import dataclass

__all__ = ("Stats",)


@dataclass(slots=True)
class Stats:
    """What the output has carried, and which input led it."""

    inserts: int = 0
    adjusts: int = 0
    stables: int = 0
    removals: int = 0
    """Adjusts that removed an event; counted in `adjusts` as well."""
    leader: str | None = None
    """The input whose stable moved the output last."""
    switches: int = 0
    """How often the leader changed."""
    breaches_dropped: int = 0
    """Breaches that were counted but not kept, because the kept ones were not fetched."""
