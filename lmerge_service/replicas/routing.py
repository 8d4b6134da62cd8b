"""Which output partition an event of a source belongs to: by the columns that keep together what
belongs together.

Theory
    A plan that groups, joins or compares by columns does so within one network, so events that
    agree in them go to one (`queries.properties.partition_columns`). The route is that of the
    service's elements: Kafka's hash of the canonical JSON of the column's value, of several the
    array of theirs. So sources that are joined meet, and replicas with equally many partitions
    have the same ones.

    >>> flights = Schema.of({"origin": str, "delay": int})
    >>> Route(flights, ["origin"], 2).key_of(("JFK", 5))
    b'"JFK"'

Cost
    A look-up per event; a hash, some 5 µs, where the value has not occurred lately.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from lmerge_service.elements import Adjust, Element, Insert
from lmerge_service.formats.routing import murmur2
from lmerge_service.queries.rows import Row, Schema

__all__ = ("Route",)

_KEPT: Final = 1 << 16


class Route:
    """From the rows of one source to `partitions` partitions."""

    def __init__(self, schema: Schema, columns: Sequence[str], partitions: int) -> None:
        self.partitions = partitions
        self._value: Any = itemgetter(*map(schema.position, columns)) if columns else None
        self._alone = [schema.only([name]) for name in columns]
        self._begin = [len(each.payload((None,))) - len(b"null}") for each in self._alone]
        self._known: dict[Any, int] = {}

    def key_of(self, row: Row) -> bytes:
        """The text that is hashed."""
        values = self._value(row)
        items = values if len(self._alone) > 1 else (values,)
        texts = [
            alone.payload((item,))[begin:-1]
            for alone, begin, item in zip(self._alone, self._begin, items, strict=True)
        ]
        return texts[0] if len(texts) == 1 else b"[%b]" % b",".join(texts)

    def partition_of(self, row: Row) -> int:
        """Where a row belongs."""
        if self.partitions == 1:
            return 0
        value = self._value(row)
        to = self._known.get(value)
        return self._find(value, row) if to is None else to

    def split(self, elements: Sequence[Element]) -> list[list[Element]]:
        """Inserts and adjusts by partition, each in order."""
        if self.partitions == 1:
            return [[*elements]]
        found: list[list[Element]] = [[] for _ in range(self.partitions)]
        known, value_of = self._known, self._value
        for element in elements:
            assert isinstance(element, Insert | Adjust)
            value = value_of(element.payload)
            to = known.get(value)
            if to is None:
                to = self._find(value, element.payload)
            found[to].append(element)
        return found

    def _find(self, value: Any, row: Row) -> int:
        if len(self._known) >= _KEPT:
            self._known.clear()
        to = (murmur2(self.key_of(row)) & 0x7FFFFFFF) % self.partitions
        self._known[value] = to
        return to
