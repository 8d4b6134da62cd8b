"""A replica that is a `lmerge query` run, as the dashboard shows it: its plan, a line for each
node, and how much passes the operators that compute it.

Theory
    A node is computed by one operator or a chain of some; a node that feeds several has several
    lines, with the same numbers. What goes into a chain goes into its first, and what it emits its
    last. Facts have no operator: what comes in is their input's records. Operators that belong to
    no node (those of a switch of plans) have lines of their own at the end.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lmerge_service.dashboard.rates import Rates

__all__ = ("NodeRow", "QueryView", "is_query", "query_of")

_FACTS: Final = re.compile(r"facts (\S+) \(")
"""In a line of a plan: the name of the source."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A line of the plan, with its operators, all partitions together."""

    line: str
    operators: str
    """Their names, in the order in which elements pass; empty: none."""
    held: int | None = None
    """Entries of state."""
    taken: int | None = None
    emitted: int | None = None
    in_per_second: float | None = None
    out_per_second: float | None = None
    share: float | None = None
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
    nodes: Sequence[NodeRow]
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
        nodes=list(_nodes(status, rates)),
        held_bytes=held.get("bytes"),
        away=away,
    )


def _counts(status: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for number, each in enumerate(status.get("operators", ())):
        yield f"{number} taken", int(each.get("taken", 0))
        yield f"{number} emitted", int(each.get("emitted", 0))
        yield f"{number} time", int(each.get("nanoseconds", 0))
    for each in status.get("inputs", ()):
        yield f"input {each.get('name')}", int(each.get("records", 0))


def _nodes(status: Mapping[str, Any], rates: Rates) -> Iterator[NodeRow]:
    operators = status.get("operators", ())
    spent = sum(rates.of(f"{at} time") or 0.0 for at in range(len(operators)))
    by_node: dict[Any, list[int]] = {}
    for at, each in enumerate(operators):
        by_node.setdefault(each.get("node"), []).append(at)
    lines = [str(each) for each in status.get("tree", ())]
    nodes = [*status.get("tree_nodes", ()), *(None for _ in lines)]
    for line, node in zip(lines, nodes, strict=False):
        chain = by_node.get(node, ()) if node is not None else ()
        if chain:
            yield _computed(line, operators, chain, rates, spent)
        else:
            yield _read(line, status.get("inputs", ()), rates)
    shown = {node for node in nodes if node is not None}
    for node, chain in by_node.items():
        if node not in shown:
            for at in chain:
                yield _computed("", operators, (at,), rates, spent)


def _computed(
    line: str,
    operators: Sequence[Mapping[str, Any]],
    chain: Sequence[int],
    rates: Rates,
    spent: float,
) -> NodeRow:
    """A line with its operators, by their places."""
    first, last = chain[0], chain[-1]
    times = [rates.of(f"{at} time") for at in chain]
    known = [time for time in times if time is not None]
    return NodeRow(
        line=line,
        operators=" → ".join(str(operators[at].get("operator")) for at in chain),
        held=sum(operators[at].get("held") or 0 for at in chain),
        taken=operators[first].get("taken"),
        emitted=operators[last].get("emitted"),
        in_per_second=rates.of(f"{first} taken"),
        out_per_second=rates.of(f"{last} emitted"),
        share=sum(known) / spent if len(known) == len(times) and spent > 0 else None,
    )


def _read(line: str, inputs: Sequence[Mapping[str, Any]], rates: Rates) -> NodeRow:
    """A line without operators: of facts with what is read of them."""
    found = _FACTS.search(line)
    read = [each for each in inputs if found and each.get("name") == found[1]]
    if not read:
        return NodeRow(line, "")
    return NodeRow(
        line, "", emitted=read[0].get("records"),
        out_per_second=rates.of(f"input {read[0].get('name')}"),
    )  # fmt: skip
