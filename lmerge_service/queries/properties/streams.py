"""What a physical plan promises of its output, and the case of LMerge that several allow.

Theory
    Keys are the logical plan's (`properties.keys`); whether there is order, and whether there are
    adjusts, depends on the levels at which operators emit and on what is held back (`align`). Each
    node is one operator of the algebra of `core.properties`; that has the rules. Replicas of a
    query may be of different plans: their case is that of what all promise.

    >>> from lmerge_service.queries.physical import physical
    >>> from lmerge_service.queries.plan import count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> hours = flights.windows(tumbling(60))
    >>> total, grouped = hours.aggregate(n=count()), hours.by("origin").aggregate(n=count())
    >>> [str(case([physical(query, emit="on_close")])) for query in (total, grouped)]
    ['R0', 'R2']
    >>> late, early = physical(grouped, emit="on_close"), physical(grouped)
    >>> print(case([late, early]), case([physical(flights)]))
    R3 R4

Invariants
    P1  No plan claims what a prefix of its output lacks, whatever legal streams come in (S2).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lmerge_service.core.case import Case
from lmerge_service.core.properties import StreamProperties, weakest
from lmerge_service.elements import INFINITY
from lmerge_service.queries import logical
from lmerge_service.queries.logical import Apply, Node, Top
from lmerge_service.queries.physical import Choice, PhysicalPlan
from lmerge_service.queries.properties.keys import keys

__all__ = ("case", "stream_properties", "why")

_FACTS = StreamProperties(revises=False)
_ANYTHING = StreamProperties()


def case(plans: Iterable[PhysicalPlan]) -> Case:
    """The strongest case that the outputs of all plans obey together.

    Raises:
        ValueError: there are no plans.
    """
    return weakest(map(stream_properties, plans))


def why(plans: Sequence[PhysicalPlan]) -> str:
    """What keeps the case of plans from being a stronger one, with the numbers of plans, from 1."""
    found = [stream_properties(plan) for plan in plans]
    missing = (
        ("no key", [each.key for each in found]),
        ("revisions", [not each.revises for each in found]),
        ("no order", [each.ordered for each in found]),
        ("starts that are equal", [each.strictly_ordered for each in found]),
    )
    at = {Case.R4: missing[:1], Case.R3: missing[1:3], Case.R2: missing[3:], Case.R1: missing[3:]}
    lacks = [
        f"{what} in plan {', '.join(str(n) for n, has in enumerate(holds, 1) if not has)}"
        for what, holds in at.get(case(plans), ())
        if not all(holds)
    ]
    return "; ".join(lacks) or "strict order, no revisions"


def stream_properties(plan: PhysicalPlan) -> StreamProperties:
    """What is promised of the output of a plan."""
    return _Inference(plan).of(plan.plan)


class _Inference:
    """Infers the properties of the nodes of one physical plan."""

    def __init__(self, plan: PhysicalPlan, group: StreamProperties = _ANYTHING) -> None:
        self._plan = plan
        self._choices = dict(plan.choices)
        self._group = group
        self._found: dict[Node, StreamProperties] = {}

    def of(self, node: Node) -> StreamProperties:
        """Those of a node's output, held back as it is chosen."""
        if node not in self._found:
            self._found[node] = self._aligned(node)
        return self._found[node]

    def _aligned(self, node: Node) -> StreamProperties:
        choice = self._choices.get(node, Choice())
        found = self._of_node(node, choice.emit or self._plan.emit)
        if keys(node).start is not None and not found.key:
            found = replace(found, key=True)
        if choice.align is None:
            return found
        if choice.align == INFINITY:
            return found.cleanse()
        # ties of a batch are put in order, those of two batches are not
        return replace(found, deterministic_ties=found.strictly_ordered)

    def _of_node(self, node: Node, emit: str) -> StreamProperties:
        below = [self.of(child) for child in logical.children(node)]
        match node:
            case logical.Source():
                return _FACTS
            case logical.Group():
                return self._group
            case logical.Select():
                return below[0].filter()
            case logical.Project():
                return below[0].project()
            case logical.FlatMap():
                return StreamProperties(ordered=below[0].ordered, revises=below[0].revises)
            case logical.Lifetime():
                return _of_lifetime(node, below[0])
            case logical.Union():
                return StreamProperties(revises=any(each.revises for each in below))
            case logical.Join(outer=""):
                return below[0].join(below[1])
            case logical.Windows(by=by, results=results):
                return _of_windows(by, results, emit, below[0])
            case logical.Aggregate():
                return _of_aggregate(node, emit, below[0])
            case logical.SnapshotWindows() | logical.CountWindows():
                return StreamProperties(revises=emit != "on_close")
            case logical.GroupApply(plan=plan):
                inner = _Inference(PhysicalPlan(plan, self._plan.emit), below[0])
                return StreamProperties(revises=inner.of(plan).revises)
        return _ANYTHING


def _of_lifetime(node: logical.Lifetime, below: StreamProperties) -> StreamProperties:
    if logical.lifetime_of(node).keeps_starts:
        return below.alter_lifetime()
    if node.function in ("hop", "quantise"):
        # ties of a batch come in its order, and what becomes a tie may be of two batches
        return replace(below.alter_lifetime("rounded"), deterministic_ties=False)
    return below.alter_lifetime("any")


def _of_windows(
    by: tuple[str, ...], results: logical.Results, emit: str, below: StreamProperties
) -> StreamProperties:
    """Of a grid: emitted when they are final, windows leave in order."""
    if isinstance(results, Apply):  # which may wait for ends, each window by itself
        return StreamProperties(revises=emit != "on_close")
    if emit == "on_close":
        below = below.cleanse()
    early = emit not in ("on_close", "on_watermark")
    if not isinstance(results, Top):
        return below.grouped_aggregate(early=early) if by else below.windowed_aggregate(early=early)
    ranked = below.top_k(with_rank=results.rank is not None, early=early)
    return replace(ranked, deterministic_ties=ranked.deterministic_ties and not by)


def _of_aggregate(node: logical.Aggregate, emit: str, below: StreamProperties) -> StreamProperties:
    """Of snapshots: those of one group follow one another, those of several end in any order."""
    final = below.ordered and not below.revises
    if emit == "on_close" or (emit == "on_watermark" and node.cut and final):
        alone = not node.by and not isinstance(node.results, Top)
        return StreamProperties(strictly_ordered=alone, revises=False)
    return _ANYTHING
