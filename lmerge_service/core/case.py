"""The restriction that inputs obey (paper III-C); it chooses the algorithm."""

from enum import StrEnum

__all__ = ("Case",)


class Case(StrEnum):
    """R0 is the strongest restriction, R4 none at all; see docs/semantics.md, "Cases"."""

    R0 = "R0"
    """Inserts and stables only, vs strictly increasing."""
    R1 = "R1"
    """Inserts and stables only, vs non-decreasing, equal vs in the same order everywhere."""
    R2 = "R2"
    """Inserts and stables only, vs non-decreasing, (vs, payload) a key."""
    R3 = "R3"
    """Any order, revisions allowed, (vs, payload) a key."""
    R4 = "R4"
    """Any order, revisions allowed, a multiset."""
