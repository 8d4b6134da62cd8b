"""The groups with the greatest values of an aggregate, as an aggregate itself.

Theory
    The top carriers by their delay in all are not the top rows of anything: rows are added up per
    carrier first, and carriers are ranked by that. A state holds one state of the inner aggregate
    per combination of columns; results rank their values. So it runs wherever aggregates do, in
    one window or snapshot at a time.

    >>> from lmerge_service.queries.aggregates import Sum
    >>> top = TopGroups(2, lambda row: row[:1], Sum(lambda row: row[1]), scored=True)
    >>> state = top.empty()
    >>> for row in (("AA", 5), ("UA", 7), ("DL", 1), ("AA", 4)):
    ...     state = top.add(state, top.entry(row, 0))
    >>> top.results(state)
    (('AA', 9, 1), ('UA', 7, 2))

Cost
    That of the inner aggregate per row; ranking takes O(n log n) for n combinations.
"""

from collections.abc import Callable
from typing import Any

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.queries.aggregates import Aggregate, Results
from lmerge_service.queries.order import payload_order

__all__ = ("TopGroups",)

State = dict[Any, tuple[int, Any]]
"""Per combination of columns how many rows it has, and the inner aggregate's state."""


class TopGroups(Aggregate):
    """The `k` combinations of columns for which `inner` is greatest, null being the least; of equal
    ones those least in `payload_order`. A tuple of results has `columns(payload)`, the value if
    `scored`, and the rank, from 1, if `ranked`; `width` is how many items columns returns."""

    __slots__ = ("_columns", "_inner", "_k", "_ranked", "_scored", "mergeable", "width")

    single = False

    def __init__(
        self,
        k: int,
        columns: Callable[[Any], tuple[Any, ...]],
        inner: Aggregate,
        *,
        width: int = 1,
        scored: bool = False,
        ranked: bool = True,
    ) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"the top {k} groups are none")
        if inner.width != 1 or not inner.single:
            raise ValueError("groups are ranked by one value")
        self._k = k
        self._columns = columns
        self._inner = inner
        self._scored = scored
        self._ranked = ranked
        self.width = width + scored + ranked
        self.mergeable = inner.mergeable

    @property
    def overflowed(self) -> int:
        return self._inner.overflowed

    def entry(self, payload: Any, vs: int) -> Any:
        return (self._columns(payload), self._inner.entry(payload, vs))

    def empty(self) -> State:
        return {}

    def copy(self, state: State) -> State:
        return {columns: (n, self._inner.copy(one)) for columns, (n, one) in state.items()}

    def add(self, state: State, entry: Any, n: int = 1) -> State:
        columns, inner = entry
        count, one = state.get(columns) or (0, self._inner.empty())
        state[columns] = (count + n, self._inner.add(one, inner, n))
        return state

    def remove(self, state: State, entry: Any, n: int = 1) -> State:
        columns, inner = entry
        count, one = state.get(columns, (0, None))
        if count < n:
            raise ValueError(f"the state has no {n} of {columns}")
        one = self._inner.remove(one, inner, n)
        if count == n:
            del state[columns]
        else:
            state[columns] = (count - n, one)
        return state

    def merge(self, one: State, two: State) -> State:
        for columns, (n, other) in two.items():
            if columns in one:
                count, mine = one[columns]
                one[columns] = (count + n, self._inner.merge(mine, other))
            else:
                one[columns] = (n, self._inner.copy(other))
        return one

    def results(self, state: State) -> Results:
        scores = [(columns, self._inner.results(one)[0][0]) for columns, (_, one) in state.items()]
        scores.sort(key=lambda each: payload_order(each[0]))
        scores.sort(key=lambda each: payload_order(each[1]), reverse=True)  # keeps that order
        rows = [(*columns, score) if self._scored else columns for columns, score in scores]
        if self._ranked:
            return tuple([(*row, rank) for rank, row in enumerate(rows[: self._k], 1)])
        return tuple(rows[: self._k])

    def saved(self, state: State) -> Any:
        ordered = sorted(state, key=payload_order)
        return [
            [portable(each), state[each][0], self._inner.saved(state[each][1])] for each in ordered
        ]

    def loaded(self, saved: Any) -> State:
        return {hashable(each): (n, self._inner.loaded(one)) for each, n, one in saved}

    def saved_entry(self, entry: Any) -> Any:
        return [portable(entry[0]), self._inner.saved_entry(entry[1])]

    def loaded_entry(self, saved: Any) -> Any:
        return (hashable(saved[0]), self._inner.loaded_entry(saved[1]))
