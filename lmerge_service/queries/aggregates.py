"""Aggregates: functions of a multiset of rows, kept up to date as rows come and go.

Theory
    An operator holds a *state* per snapshot or window. What an aggregate needs of a row is taken
    out once, its *entry*; entries are added to states and removed from them. A state depends on
    the multiset of rows alone, whatever the order and the history: sums of floats are exact, as one
    integer in units of 2**-1074 (the least float), and are rounded when they are read.

    >>> mean = Average(lambda row: row, real=True)
    >>> state = mean.empty()
    >>> for value in (1e100, 1.0, -1e100, 2.0): state = mean.add(state, mean.entry(value, 0))
    >>> mean.results(state), mean.results(mean.remove(state, mean.entry(1.0, 0)))
    (((0.75,),), ((0.6666666666666666,),))

    States of a *linear* aggregate form a group: to remove from an empty state is allowed, and a
    change of many rows is itself a state that is merged into others. Counts and sums are linear.
    Others hold the multiset itself, in order.

Nulls are as in SQL: count of a column, sum, average, min, max, distinct count and percentile skip
them, and but for counts are null if nothing is left. A result beyond int64, or beyond the floats,
is null and counted in `overflowed`.

Invariants
    G1  Equal multisets of rows have equal states, up to `saved`; `results` depends on nothing else.
    G2  `results(state)` has one tuple of `width` values if the aggregate is `single`; otherwise no
        two are the same, unless `alike` is set.
    G3  `loaded(saved(state))` equals `state` and shares nothing with it; msgpack carries what
        `saved` returns.

Cost
    O(1) per entry for linear aggregates. The others take O(log n), besides moving memory in a
    sorted list, and `copy` is O(n).
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import chain, product
from math import ceil
from typing import Any, ClassVar, Final, TypeAlias

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START
from lmerge_service.queries.order import payload_order

__all__ = (
    "Aggregate",
    "Average",
    "Column",
    "Composite",
    "Count",
    "CountOf",
    "DistinctCount",
    "First",
    "Last",
    "Max",
    "Median",
    "Min",
    "Percentile",
    "Sum",
    "TopK",
)

_SCALE: Final = 1074
"""The least positive float is 2**-1074; all others are multiples of it."""
_ONE: Final = 1 << _SCALE

Column: TypeAlias = Callable[[Any], Any]
"""What an aggregate reads of a payload: a pure function."""

Results: TypeAlias = tuple[tuple[Any, ...], ...]


class Aggregate(ABC):
    """The base of all aggregates. It has no state of its own but a counter of overflows.

    A state is handed over: `add`, `remove` and `merge` return the one to go on with, and the one
    given (the first one) may be changed or not, so that it is not to be used any more. Whoever
    wants to keep it takes a `copy` before.
    """

    __slots__ = ("_overflowed",)

    invertible: ClassVar[bool] = True
    """`remove` undoes `add`."""
    mergeable: bool = True
    """`merge` gives the state of both multisets."""
    linear: bool = False
    """States may be negative, so that a change of many rows is a state; it implies both others."""
    single: bool = True
    """Each state has exactly one tuple of results."""
    alike: bool = False
    """Tuples of results of one state may be alike."""
    sees_start: bool = False
    """Results depend on when events began, not on their payloads alone."""
    width: int = 1
    """How many values a tuple of results has."""

    def __init__(self) -> None:
        self._overflowed = 0

    @property
    def overflowed(self) -> int:
        """How many results were null because they were too large."""
        return self._overflowed

    @abstractmethod
    def entry(self, payload: Any, vs: int) -> Any:
        """What matters of an event that begins at `vs`; its end does not matter. Hashable."""

    @abstractmethod
    def empty(self) -> Any:
        """The state of no rows."""

    def copy(self, state: Any) -> Any:
        """A state that shares nothing with this one that `add` or `remove` would change."""
        return state

    @abstractmethod
    def add(self, state: Any, entry: Any, n: int = 1) -> Any:
        """The state with `n` more of the entry."""

    @abstractmethod
    def remove(self, state: Any, entry: Any, n: int = 1) -> Any:
        """The state with `n` fewer of the entry.

        Raises:
            ValueError: it has not so many; the state is as it was.
        """

    @abstractmethod
    def merge(self, one: Any, two: Any) -> Any:
        """The state of both multisets together; `two` stays as it is."""

    @abstractmethod
    def results(self, state: Any) -> Results:
        """The tuples of values that the state stands for. Of an empty state too: 0 or null."""

    def saved(self, state: Any) -> Any:
        """The state, of what msgpack can carry."""
        return state

    def loaded(self, saved: Any) -> Any:
        """The state that was saved."""
        return saved

    def saved_entry(self, entry: Any) -> Any:
        """An entry, of what msgpack can carry."""
        return entry

    def loaded_entry(self, saved: Any) -> Any:
        """The entry that was saved."""
        return saved


class Count(Aggregate):
    """The number of rows."""

    __slots__ = ()

    linear = True

    def entry(self, payload: Any, vs: int) -> int:
        return 1

    def empty(self) -> int:
        return 0

    def add(self, state: int, entry: int, n: int = 1) -> int:
        return state + entry * n

    def remove(self, state: int, entry: int, n: int = 1) -> int:
        return state - entry * n

    def merge(self, one: int, two: int) -> int:
        return one + two

    def results(self, state: int) -> Results:
        return ((state,),)


class CountOf(Count):
    """The number of rows whose `column` is not null."""

    __slots__ = ("_column",)

    def __init__(self, column: Column) -> None:
        super().__init__()
        self._column = column

    def entry(self, payload: Any, vs: int) -> int:
        return 0 if self._column(payload) is None else 1


_Total: TypeAlias = tuple[int, int]
"""The number of values that are not null, and their sum."""


class Sum(Aggregate):
    """The sum of a column of ints, or with `real` of floats; exact whatever the order."""

    __slots__ = ("_column", "_real")

    linear = True

    def __init__(self, column: Column, *, real: bool = False) -> None:
        super().__init__()
        self._column = column
        self._real = real

    def entry(self, payload: Any, vs: int) -> int | None:
        """The value, in units of 2**-1074 if it is real.

        Raises:
            TypeError: the column is no number, or no whole number though not declared `real`.
        """
        value = self._column(payload)
        if value is None:
            return None
        if self._real:
            return _scaled(value)
        if type(value) is int:
            return value
        raise TypeError(f"a sum of whole numbers can't take {value!r}: declare it real")

    def empty(self) -> _Total:
        return (0, 0)

    def add(self, state: _Total, entry: int | None, n: int = 1) -> _Total:
        if entry is None:
            return state
        return (state[0] + n, state[1] + (entry if n == 1 else entry * n))

    def remove(self, state: _Total, entry: int | None, n: int = 1) -> _Total:
        return self.add(state, entry, -n)

    def merge(self, one: _Total, two: _Total) -> _Total:
        return (one[0] + two[0], one[1] + two[1])

    def results(self, state: _Total) -> Results:
        number, total = state
        if not number:
            return ((None,),)
        if not self._real:
            if START <= total <= INFINITY:
                return ((total,),)
        else:
            try:
                return ((total / _ONE,),)
            except OverflowError:
                pass
        self._overflowed += 1
        return ((None,),)

    def saved(self, state: _Total) -> Any:
        return (state[0], _saved_int(state[1]))

    def loaded(self, saved: Any) -> _Total:
        number, total = saved
        return (number, _loaded_int(total))

    def saved_entry(self, entry: int | None) -> Any:
        return None if entry is None else _saved_int(entry)

    def loaded_entry(self, saved: Any) -> int | None:
        return None if saved is None else _loaded_int(saved)


class Average(Sum):
    """The mean of a column of ints, or with `real` of floats: the exact sum, divided and rounded
    once."""

    __slots__ = ()

    def results(self, state: _Total) -> Results:
        number, total = state
        if not number:
            return ((None,),)
        return ((total / (number * _ONE if self._real else number),),)


class _Ordered(Aggregate):
    """An aggregate whose state is the multiset of its entries as a sorted list; None is skipped.

    A subclass makes entries that compare like what they are of, from the `key` that is saved.
    """

    __slots__ = ("_column",)

    def __init__(self, column: Column) -> None:
        super().__init__()
        self._column = column

    def entry(self, payload: Any, vs: int) -> Any:
        value = self._column(payload)
        return None if value is None else self._entry(value)

    def _entry(self, key: Any) -> Any:
        return (payload_order(key), key)

    def empty(self) -> list[Any]:
        return []

    def copy(self, state: list[Any]) -> list[Any]:
        return state.copy()

    def add(self, state: list[Any], entry: Any, n: int = 1) -> list[Any]:
        if entry is not None:
            at = bisect_right(state, entry)
            state[at:at] = [entry] * n
        return state

    def remove(self, state: list[Any], entry: Any, n: int = 1) -> list[Any]:
        if entry is not None:
            at = bisect_left(state, entry)
            if state[at : at + n] != [entry] * n:
                raise ValueError(f"the state has no {n} of {entry}")
            del state[at : at + n]
        return state

    def merge(self, one: list[Any], two: list[Any]) -> list[Any]:
        return sorted([*one, *two])

    def saved(self, state: list[Any]) -> Any:
        return [portable(entry[-1]) for entry in state]

    def loaded(self, saved: Any) -> list[Any]:
        return [self._entry(hashable(key)) for key in saved]

    def saved_entry(self, entry: Any) -> Any:
        return None if entry is None else [portable(entry[-1])]

    def loaded_entry(self, saved: Any) -> Any:
        return None if saved is None else self._entry(hashable(saved[0]))


class Min(_Ordered):
    """The least value of a column, in the order of `payload_order`."""

    __slots__ = ()

    def results(self, state: list[Any]) -> Results:
        return ((state[0][1] if state else None,),)


class Max(_Ordered):
    """The greatest value of a column, in the order of `payload_order`."""

    __slots__ = ()

    def results(self, state: list[Any]) -> Results:
        return ((state[-1][1] if state else None,),)


class Percentile(_Ordered):
    """The value below which a part of a column's values lies.

    `part` is between 0 and 1, exactly the decimal that is written (0.9 is 9/10). The value is that
    at the position part * (n - 1) of the ordered values, counted from 0; between two it is
    interpolated, exactly and rounded to a float once. With `discrete` it is the least value that at
    least part * n values do not exceed, of whatever kind.
    """

    __slots__ = ("_discrete", "_part")

    def __init__(
        self, column: Column, part: float | Fraction | str, *, discrete: bool = False
    ) -> None:
        super().__init__(column)
        self._part = part if isinstance(part, Fraction) else Fraction(str(part))
        self._discrete = discrete
        if not 0 <= self._part <= 1:
            raise ValueError(f"a percentile's part is between 0 and 1, not {part}")

    def results(self, state: list[Any]) -> Results:
        if not state:
            return ((None,),)
        if self._discrete:
            return ((state[max(ceil(self._part * len(state)) - 1, 0)][1],),)
        at = self._part * (len(state) - 1)
        low = int(at)
        value = Fraction(state[low][1])
        if at != low:
            value += (Fraction(state[low + 1][1]) - value) * (at - low)
        return ((float(value),),)


class Median(Percentile):
    """The middle value of a column of numbers, or the mean of the middle two, as a float."""

    __slots__ = ()

    def __init__(self, column: Column) -> None:
        super().__init__(column, Fraction(1, 2))


class First(_Ordered):
    """The column's value, or null, in the row that began first; of several the one least in
    `payload_order`."""

    __slots__ = ()

    sees_start = True
    _at: ClassVar[int] = 0

    def entry(self, payload: Any, vs: int) -> Any:
        return self._entry((vs, payload))

    def _entry(self, key: Any) -> Any:
        vs, payload = key
        return (vs, payload_order(payload), self._column(payload), key)

    def results(self, state: list[Any]) -> Results:
        return ((state[self._at][2] if state else None,),)


class Last(First):
    """The column's value, or null, in the row that began last; of several the one greatest in
    `payload_order`."""

    __slots__ = ()

    _at = -1


class TopK(_Ordered):
    """The `k` rows with the greatest scores, a null score being the least; among equal scores those
    least in `payload_order`.

    A tuple of results is `row(payload)`, and its rank, from 1, unless `ranked` is false: then rows
    may be alike. `row` returns a tuple of `width` values; without it, it is the payload, which must
    be such a tuple if `width` is not 1.
    """

    __slots__ = ("_k", "_ranked", "_row", "alike", "width")

    single = False

    def __init__(
        self,
        k: int,
        score: Column,
        row: Callable[[Any], tuple[Any, ...]] | None = None,
        *,
        width: int = 1,
        ranked: bool = True,
    ) -> None:
        super().__init__(score)
        if k < 1:
            raise ValueError(f"the top {k} rows are none")
        self._k = k
        self._row = row or (_alone if width == 1 else _itself)
        self._ranked = ranked
        self.alike = not ranked
        self.width = width + ranked

    def entry(self, payload: Any, vs: int) -> Any:
        return self._entry((self._column(payload), self._row(payload)))

    def _entry(self, key: Any) -> Any:
        score, row = key
        return (payload_order(score), payload_order(row), row, key)

    def results(self, state: list[Any]) -> Results:
        rows: list[tuple[Any, ...]] = []
        end = len(state)
        while end and len(rows) < self._k:
            start = bisect_left(state, (state[end - 1][0],), 0, end)  # all of one score
            rows += [entry[2] for entry in state[start : min(end, start + self._k - len(rows))]]
            end = start
        if self._ranked:
            return tuple([(*row, rank) for rank, row in enumerate(rows, 1)])
        return tuple(rows)


class DistinctCount(Aggregate):
    """The number of different values of a column, null not among them."""

    __slots__ = ("_column",)

    def __init__(self, column: Column) -> None:
        super().__init__()
        self._column = column

    def entry(self, payload: Any, vs: int) -> Any:
        return self._column(payload)

    def empty(self) -> dict[Any, int]:
        return {}

    def copy(self, state: dict[Any, int]) -> dict[Any, int]:
        return state.copy()

    def add(self, state: dict[Any, int], entry: Any, n: int = 1) -> dict[Any, int]:
        if entry is not None:
            state[entry] = state.get(entry, 0) + n
        return state

    def remove(self, state: dict[Any, int], entry: Any, n: int = 1) -> dict[Any, int]:
        if entry is not None:
            left = state.get(entry, 0) - n
            if left < 0:
                raise ValueError(f"the state has no {n} of {entry!r}")
            state[entry] = left
            if not left:
                del state[entry]
        return state

    def merge(self, one: dict[Any, int], two: dict[Any, int]) -> dict[Any, int]:
        for value, n in two.items():
            one[value] = one.get(value, 0) + n
        return one

    def results(self, state: dict[Any, int]) -> Results:
        return ((len(state),),)

    def saved(self, state: dict[Any, int]) -> Any:
        return [[portable(value), state[value]] for value in sorted(state, key=payload_order)]

    def loaded(self, saved: Any) -> dict[Any, int]:
        return {hashable(value): n for value, n in saved}

    def saved_entry(self, entry: Any) -> Any:
        return portable(entry)

    def loaded_entry(self, saved: Any) -> Any:
        return hashable(saved)


class Composite(Aggregate):
    """Several aggregates, by name, of the same rows: a tuple of results has the values of all, in
    the order given. Of an aggregate with several tuples each is combined with all others."""

    __slots__ = (
        *("_adds", "_entries", "_merges", "_results", "alike", "linear", "mergeable", "names"),
        *("parts", "sees_start", "single", "width"),
    )

    def __init__(self, parts: Mapping[str, Aggregate]) -> None:
        super().__init__()
        self.names = tuple(parts)
        self.parts = tuple(parts.values())
        self.linear = all(part.linear for part in self.parts)
        self.mergeable = all(part.mergeable for part in self.parts)
        self.single = all(part.single for part in self.parts)
        self.alike = any(part.alike for part in self.parts)
        self.sees_start = any(part.sees_start for part in self.parts)
        self.width = sum(part.width for part in self.parts)
        self._entries = [part.entry for part in self.parts]
        self._adds = [part.add for part in self.parts]
        self._merges = [part.merge for part in self.parts]
        self._results = [part.results for part in self.parts]

    @property
    def overflowed(self) -> int:
        return sum(part.overflowed for part in self.parts)

    def entry(self, payload: Any, vs: int) -> tuple[Any, ...]:
        return tuple([entry(payload, vs) for entry in self._entries])

    def empty(self) -> tuple[Any, ...]:
        return tuple([part.empty() for part in self.parts])

    def copy(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([part.copy(each) for part, each in zip(self.parts, state, strict=True)])

    def add(self, state: tuple[Any, ...], entry: tuple[Any, ...], n: int = 1) -> tuple[Any, ...]:
        parts = zip(self._adds, state, entry, strict=True)
        return tuple([add(each, value, n) for add, each, value in parts])

    def remove(self, state: tuple[Any, ...], entry: tuple[Any, ...], n: int = 1) -> tuple[Any, ...]:
        parts = zip(self.parts, state, entry, strict=True)
        return tuple([part.remove(each, value, n) for part, each, value in parts])

    def merge(self, one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = zip(self._merges, one, two, strict=True)
        return tuple([merge(each, other) for merge, each, other in parts])

    def results(self, state: tuple[Any, ...]) -> Results:
        each = [results(one) for results, one in zip(self._results, state, strict=True)]
        if self.single:
            return (tuple([value for (values,) in each for value in values]),)
        return tuple([tuple(chain.from_iterable(values)) for values in product(*each)])

    def saved(self, state: tuple[Any, ...]) -> Any:
        return [part.saved(each) for part, each in zip(self.parts, state, strict=True)]

    def loaded(self, saved: Any) -> tuple[Any, ...]:
        return tuple([part.loaded(each) for part, each in zip(self.parts, saved, strict=True)])

    def saved_entry(self, entry: tuple[Any, ...]) -> Any:
        return [part.saved_entry(each) for part, each in zip(self.parts, entry, strict=True)]

    def loaded_entry(self, saved: Any) -> tuple[Any, ...]:
        parts = zip(self.parts, saved, strict=True)
        return tuple([part.loaded_entry(each) for part, each in parts])


def _scaled(value: Any) -> int:
    """A number in units of 2**-1074."""
    numerator, denominator = value.as_integer_ratio()
    return int(numerator << (_SCALE + 1 - denominator.bit_length()))


def _saved_int(value: int) -> bytes:
    """An int of any size, which msgpack refuses, in as few bytes as hold it."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _loaded_int(saved: bytes) -> int:
    return int.from_bytes(saved, "big", signed=True)


def _alone(payload: Any) -> tuple[Any, ...]:
    return (payload,)


def _itself(payload: Any) -> tuple[Any, ...]:
    return tuple(payload)
