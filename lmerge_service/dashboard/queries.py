"""A replica that is a `lmerge query` run, as the dashboard shows it: its plan, and how much passes
each operator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmerge_service.dashboard.rates import Rates

__all__ = ("OperatorRow", "QueryView", "is_query", "query_of")


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator, all partitions together."""

    operator: str
    held: int | None
    taken: int | None
    emitted: int | None
    per_second: float | None
    """Elements into it."""
    share: float | None
    """Of the time spent in all operators lately."""


@dataclass(frozen=True, slots=True)
class QueryView:
    """A query at one moment."""

    address: str
    query: str
    plan: str
    to: str
    """The topic that it publishes: of a replica of a merge."""
    state: str
    reasons: Sequence[str]
    tree: Sequence[str]
    """The plan, a line for each node."""
    inputs: Sequence[Mapping[str, Any]]
    operators: Sequence[OperatorRow]
    held_bytes: int | None
    away: str | None = None

    def gone(self, why: str | None) -> "QueryView":
        """As it was last known, while it does not answer."""
        return replace(self, state="away", away=why)


def is_query(status: Mapping[str, Any]) -> bool:
    """Whether a document of `/status` is a query's."""
    return "query" in status and "operators" in status


def query_of(
    address: str, status: Mapping[str, Any], away: str | None, rates: Rates, at: float
) -> QueryView:
    """The view of a query's `/status`; `rates` are its own, brought up to `at` seconds."""
    rates.take(at, dict(_counts(status)))
    held = status.get("held") or {}
    return QueryView(
        address=address,
        query=str(status.get("query")),
        plan=str(status.get("plan")),
        to=str(status.get("to")),
        state=str(status.get("state")),
        reasons=[str(each) for each in status.get("reasons", ())],
        tree=[str(each) for each in status.get("tree", ())],
        inputs=status.get("inputs", ()),
        operators=list(_operators(status, rates)),
        held_bytes=held.get("bytes"),
        away=away,
    )


def _counts(status: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for number, each in enumerate(status.get("operators", ())):
        yield f"{number} taken", int(each.get("taken", 0))
        yield f"{number} time", int(each.get("nanoseconds", 0))


def _operators(status: Mapping[str, Any], rates: Rates) -> Iterator[OperatorRow]:
    operators = status.get("operators", ())
    spent = [rates.of(f"{number} time") for number in range(len(operators))]
    total = sum(each for each in spent if each is not None)
    for number, each in enumerate(operators):
        time = spent[number]
        yield OperatorRow(
            operator=str(each.get("operator")),
            held=each.get("held"),
            taken=each.get("taken"),
            emitted=each.get("emitted"),
            per_second=rates.of(f"{number} taken"),
            share=time / total if time is not None and total > 0 else None,
        )
