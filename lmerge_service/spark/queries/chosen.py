"""Simple choices of rows, defined once and carried out twice: as SQL, and without Spark.

>>> departed = Chosen(facts=("departed",), columns=("origin", "delay"))
>>> departed.sql
"SELECT at, origin, delay FROM facts WHERE fact IN ('departed')"
>>> departed.of({"fact": "departed", "time": 7, "origin": "JFK"})
{'origin': 'JFK'}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("Chosen",)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some columns of the facts of some kinds."""

    facts: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def sql(self) -> str:
        kinds = ", ".join(f"'{each}'" for each in self.facts)
        return f"SELECT at, {', '.join(self.columns)} FROM facts WHERE fact IN ({kinds})"  # noqa: S608 (the query's own words)

    def of(self, fact: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of a fact; None: it is not chosen."""
        if fact.get("fact") not in self.facts:
            return None
        return {name: fact[name] for name in self.columns if fact.get(name) is not None}
