"""Mutants that no test can kill, with the reason why what they change cannot be observed."""

__all__ = ("EQUIVALENT",)

EQUIVALENT: dict[str, str] = {}
