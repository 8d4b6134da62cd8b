"""Union: the multiset sum of its inputs.

Meaning
    Each event of each input, as often as the inputs have it together.
State
    Only the stable point of each input.
Stable
    The least of the inputs'. An input that is silent holds it: idle partitions must send stables.
Retention
    Nothing.  need(T) = T.
Cost
    O(1) per element.

    >>> from lmerge_service.elements import Stable
    >>> both = Union(2)
    >>> both.process(Insert("a", 1, 5)), both.process(Insert("a", 1, 5), port=1)
    ([Insert(payload='a', vs=1, ve=5)], [Insert(payload='a', vs=1, ve=5)])
    >>> both.process(Stable(4)), both.process(Stable(3), port=1)
    ([], [Stable(vc=3)])
"""

from collections.abc import Sequence
from typing import Any

from lmerge_service.elements import Adjust, Insert
from lmerge_service.queries.operators.protocol import Changes, Operator, Skip

__all__ = ("Union",)


class Union(Operator):
    """The union of `ports` inputs."""

    __slots__ = ("ports",)

    def __init__(self, ports: int = 2) -> None:
        self.ports = ports
        super().__init__()

    def __len__(self) -> int:
        return 0

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        return [skip] * self.ports

    def emits_inserts_only(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        changes.append(element)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        changes.append(element)

    def _advance(self, changes: Changes) -> int:
        return min(self.stables)

    def _state(self) -> None:
        return None

    def _load(self, state: Any) -> None:
        pass
