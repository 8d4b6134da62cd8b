"""What a query and a plan are, and what an operator must provide: values, which need no Spark.

Theory
    A query is SQL over the facts, which chooses rows and columns, and a *shape*, which makes events
    of them. A plan is how: what is emitted when, in which pieces, by which steps. All plans of a
    query mean the same TDB; tests check that they do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lmerge_service.elements import INFINITY, Element
from lmerge_service.spark.queries.chosen import Chosen
from lmerge_service.tdb import TDB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("Batch", "FactsSource", "Fold", "Operator", "Query", "QueryPlan", "Row", "Shape")

Row: TypeAlias = Mapping[str, Any]
"""The columns of a row as JSON has them; those that are null are not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """How a query is carried out."""

    summary: str
    """In one line, for people."""
    early: bool
    """Results are emitted at once and revised; else when they are final, and never revised."""
    batch: int
    """Rows of facts that a micro-batch takes at the most."""
    tasks: int = 2
    """In how many tasks the operators of the output's partitions run."""
    grid: int = 1
    """Stables are multiples of this: how often the plan emits one."""


class Operator(Protocol):
    """Makes the events of one output partition; pure, as the merge's operators are."""

    skipped: int
    """How many results, or contributions to one, were left out for feedback's sake."""

    def take(self, time: int, row: Row, point: int) -> None:
        """A row that counts; nothing about events with a final ve below `point` matters."""

    def advance(self, watermark: int, point: int) -> list[Element]:
        """The output once every row below `watermark` is known, a stable last."""

    def save(self) -> Any:
        """Plain values from which `load` makes the same operator."""

    def load(self, saved: Any) -> None:
        """Replaces the state by what `save` returned."""

    def __len__(self) -> int:
        """How much is kept."""


class Shape(Protocol):
    """What events are made of the rows."""

    @property
    def memory(self) -> int:
        """An event [vs, ve) depends on facts from vs on only, and ve <= vs + memory."""

    def begin(self, plan: QueryPlan) -> Operator:
        """An operator of this plan without any rows."""

    def resume(self, plan: QueryPlan, output: TDB) -> Operator | None:
        """The operator that has this output, for the facts from its stable on; None: its state
        cannot be restored from that."""


class Fold(Protocol):
    """What is made of the rows of one group and window; in whatever order they come.

    What is held is plain: numbers, strings, lists and dicts with strings for keys.
    """

    def empty(self) -> Any:
        """What is held of no rows."""

    def add(self, held: Any, row: Row) -> Any:
        """With one row more; may change what it is given."""

    def join(self, one: Any, two: Any) -> Any:
        """Of two parts; must not change what it is given."""

    def results(self, held: Any) -> list[dict[str, Any]]:
        """The payloads, but for the fields of the group; no two alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsSource:
    """What the records of a topic of facts are."""

    schema: str
    """The fields of their JSON, as Spark's DDL has them: "time long, origin string"."""
    time: str = "time"
    """An SQL expression for a row's time (long)."""
    ends: str = "false"
    """One that is true for a record behind which nothing comes in its partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A continuous query over facts."""

    name: str
    summary: str
    rows: "Chosen | str | Callable[[DataFrame], DataFrame]"
    """SQL over the view `facts`, or the same as a function: rows that keep the column `at`. No
    aggregates: those are the shape's. What is `Chosen` needs no Spark."""
    key: tuple[str, ...]
    """Columns of the rows and fields of the payloads: what belongs together is in one partition."""
    shape: Shape
    plans: Mapping[str, QueryPlan]
    source: FactsSource


@dataclass(frozen=True, slots=True)
class Batch:
    """What a micro-batch came to, all partitions together."""

    number: int
    facts: int
    refused: int
    """Records that are no facts, or have no time."""
    late: int
    skipped: int
    """Contributions and results that were left out for feedback's sake."""
    records: int
    """Written."""
    watermark: int
    """Of the partition that is the least far; INFINITY: the facts have ended."""
    point: int
    kept: int
    seconds: float

    @property
    def ended(self) -> bool:
        return self.watermark == INFINITY
