"""Modules with the mistakes that users make."""

from lmerge_service.queries.modules import uda


@uda("1")
class Forgetful:
    """A sum that takes one too few away of 13: wrong until its window is empty."""

    def empty(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        return state + value

    def remove(self, state: int, value: int) -> int:
        return state - value + (value == 13)

    def compute(self, state: int) -> int:
        return state


@uda("1")
def inverse(values: list[int]) -> float:
    """Raises where a value is 0."""
    return sum(1 / value for value in values)
