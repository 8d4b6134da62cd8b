"""The difference of two results: what is emitted where one takes the place of the other.

>>> for element in difference({("a", 0, 5): 1, ("b", 0, 5): 1}, {("b", 0, 7): 1, ("c", 0, 5): 1}):
...     print(element)
Adjust(payload='a', vs=0, vold=5, ve=0)
Adjust(payload='b', vs=0, vold=5, ve=7)
Insert(payload='c', vs=0, ve=5)
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

from lmerge_service.elements import Adjust, Insert
from lmerge_service.queries.netting import Data, net_change

__all__ = ("Events", "difference")

Events: TypeAlias = Mapping[tuple[Any, int, int], int]
"""How often each event (payload, vs, ve) is there."""


def difference(old: Events, new: Events) -> list[Data]:
    """The elements that turn one multiset of events into another: what is in both is left out."""
    changes: list[Data] = []
    for (payload, vs, ve), times in (Counter(old) - Counter(new)).items():
        changes += [Adjust(payload, vs, ve, vs)] * times
    for (payload, vs, ve), times in (Counter(new) - Counter(old)).items():
        changes += [Insert(payload, vs, ve)] * times
    return net_change(changes)
