"""What can be made of the rows of a window: aggregates, the top k, a join of two kinds of row.

Each is the same whatever the order of the rows (`plans.Fold`), so that plans agree. Sums are of
whole numbers for that reason: fractions depend on the order in which they are added.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.spark.queries.plans import Row

__all__ = ("Aggregates", "Enriched", "Top")

_Kind = Literal["count", "sum", "min", "max"]


def _whole(row: Row, name: str) -> int | None:
    value = row.get(name)
    if value is not None and type(value) is not int:
        raise ElementError(
            "not_whole", f"a sum is of whole numbers, but {name} is {value!r}: cast it, or scale it"
        )
    return value


@dataclass(frozen=True, slots=True)
class Aggregates:
    """`count`, `sum`, `min` or `max` of columns, by the names of the payload's fields; of nulls as
    in SQL, where `count` without a column counts rows.

    Raises:
        ConfigurationError: it is another aggregate, or one that lacks its column.
    """

    of: Mapping[str, tuple[_Kind, str | None]]

    def __post_init__(self) -> None:
        for field, (kind, name) in self.of.items():
            if kind not in get_args(_Kind):
                known = ", ".join(get_args(_Kind))
                raise ConfigurationError(f"{field}: there is no aggregate {kind!r}, but {known}")
            if name is None and kind != "count":
                raise ConfigurationError(f"{field}: {kind} needs a column")

    def empty(self) -> list[Any]:
        return [0 if kind == "count" else None for kind, _ in self.of.values()]

    def add(self, held: list[Any], row: Row) -> list[Any]:
        """With one row more, in a new list: a value per field.

        Raises:
            ElementError: what is to be summed is no whole number.
        """
        one: list[Any] = []
        for kind, name in self.of.values():
            if kind == "count":
                one.append(int(name is None or row.get(name) is not None))
            else:
                assert name is not None
                one.append(_whole(row, name) if kind == "sum" else row.get(name))
        return self.join(held, one)

    def join(self, one: list[Any], two: list[Any]) -> list[Any]:
        kinds = [kind for kind, _ in self.of.values()]
        return [_joined(*each) for each in zip(kinds, one, two, strict=True)]

    def results(self, held: list[Any]) -> list[dict[str, Any]]:
        return [dict(zip(self.of, held, strict=True))]


def _joined(kind: str, one: Any, two: Any) -> Any:
    if one is None or two is None:
        return two if one is None else one
    if kind in ("count", "sum"):
        return one + two
    return min(one, two) if kind == "min" else max(one, two)


@dataclass(frozen=True, slots=True)
class Top:
    """The `k` values of `of` with the largest positive sums of `by`; of equal ones the lesser one
    first."""

    k: int
    of: str
    by: str

    def empty(self) -> dict[str, int]:
        return {}

    def add(self, held: dict[str, int], row: Row) -> dict[str, int]:
        """With one row more, in `held` itself: sums by value.

        Raises:
            ElementError: `by` is no whole number.
        """
        name, amount = row.get(self.of), _whole(row, self.by)
        if name is not None and amount is not None:
            held[name] = held.get(name, 0) + amount
        return held

    def join(self, one: dict[str, int], two: dict[str, int]) -> dict[str, int]:
        both = dict(one)
        for name, amount in two.items():
            both[name] = both.get(name, 0) + amount
        return both

    def results(self, held: dict[str, int]) -> list[dict[str, Any]]:
        ranked = sorted((-amount, name) for name, amount in held.items() if amount > 0)
        return [
            {self.of: name, self.by: -amount, "rank": rank}
            for rank, (amount, name) in enumerate(ranked[: self.k], 1)
        ]


@dataclass(frozen=True, slots=True)
class Enriched:
    """A left outer join within a window: rows that have `identity` with one row that has not.

    Each row on the left gives a payload of its columns `left` and of `right`, null where there is
    no other side (yet). Of several rows of one identity, or several on the right, the one whose
    text is the least counts, so that repeats do no harm.
    """

    identity: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]

    def empty(self) -> list[Any]:
        return [None, {}]

    def add(self, held: list[Any], row: Row) -> list[Any]:
        key = [row.get(name) for name in self.identity]
        if None in key:
            held[0] = _lesser(held[0], [row.get(name) for name in self.right])
        else:
            text, left = msgspec.json.encode(key).decode(), [row.get(name) for name in self.left]
            held[1][text] = _lesser(held[1].get(text), left)
        return held

    def join(self, one: list[Any], two: list[Any]) -> list[Any]:
        rows = dict(one[1])
        for key, left in two[1].items():
            rows[key] = _lesser(rows.get(key), left)
        right = two[0] if one[0] is None else one[0] if two[0] is None else _lesser(one[0], two[0])
        return [right, rows]

    def results(self, held: list[Any]) -> list[dict[str, Any]]:
        measured = dict(zip(self.right, held[0] or [None] * len(self.right), strict=True))
        return [
            dict(zip(self.identity, msgspec.json.decode(key), strict=True))
            | dict(zip(self.left, left, strict=True))
            | measured
            for key, left in sorted(held[1].items())
        ]


def _lesser(one: list[Any] | None, two: list[Any]) -> list[Any]:
    return two if one is None else min(one, two, key=msgspec.json.encode)
