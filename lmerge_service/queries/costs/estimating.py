"""What a physical plan costs, node by node: rates, state, revisions, progress, time and memory.

Theory
    From the sources upwards each node makes of the flows that it takes in another one (`steps`).
    Its work by what a unit takes on this machine (`units`) is its time; its entries of state by
    what one takes is its memory. Nothing runs.

    >>> from lmerge_service.queries.physical import physical
    >>> from lmerge_service.queries.plan import count, facts, hopping
    >>> flights = facts("flights", time="time", fields={"origin": str})
    >>> moving = flights.windows(hopping(3_600, every=1_200)).by("origin").aggregate(n=count())
    >>> known = Characteristics({"flights": Stream(60, 1)})
    >>> for emit in ("on_update", "on_close"):
    ...     found = estimate(physical(moving, emit=emit), known)
    ...     print(f"{found.revisions:.1f} an event, {found.held:.0f} held, {found.lag:.0f} behind")
    2.1 an event, 26 held, 3600 behind
    1.0 an event, 26 held, 3600 behind

Cost
    Microseconds a node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from lmerge_service.queries import logical
from lmerge_service.queries.costs import folds, pairs, rows
from lmerge_service.queries.costs.characteristics import Characteristics, calls_user_code
from lmerge_service.queries.costs.formulas import Stream, groups_among
from lmerge_service.queries.costs.steps import Flow, Step, merged_work
from lmerge_service.queries.costs.units import UnitCosts
from lmerge_service.queries.logical import Node
from lmerge_service.queries.physical import Choice, Emit, PhysicalPlan

__all__ = ("NodeEstimate", "PlanEstimate", "estimate")

_AS_THE_PLAN: Final = Choice()


@dataclass(frozen=True, slots=True)
class NodeEstimate:
    """A node of a plan; rates are for a unit of the application's time."""

    node: Node
    flow: Flow
    """What it emits."""
    held: float
    """Entries of state."""
    work: Mapping[str, float]
    nanoseconds: float | None
    """Of processing, in a unit of time; None without unit costs, or if functions of the user's are
    called and no sample shows how long they take."""
    bytes: float | None
    """Of state; None without unit costs."""


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """A plan; the last node is its output."""

    plan: PhysicalPlan
    taken: float
    """Events of all sources in a unit of time."""
    nodes: tuple[NodeEstimate, ...]

    @property
    def elements(self) -> float:
        """Inserts and adjusts out, in a unit of time."""
        return self.nodes[-1].flow.elements

    @property
    def revisions(self) -> float:
        """Elements for each event of the result."""
        return self.nodes[-1].flow.revisions

    @property
    def lag(self) -> float:
        """How far the output's stable point is behind the sources', at the most."""
        return self.nodes[-1].flow.lag

    @property
    def held(self) -> float:
        """Entries of state."""
        return sum(each.held for each in self.nodes)

    @property
    def bytes(self) -> float | None:
        """Of state."""
        found = [each.bytes for each in self.nodes]
        return None if None in found else sum(each for each in found if each is not None)

    @property
    def nanoseconds(self) -> float | None:
        """Of processing, for an event of the sources."""
        found = [each.nanoseconds for each in self.nodes]
        if None in found:
            return None
        return sum(each for each in found if each is not None) / self.taken if self.taken else 0.0

    @property
    def unknown(self) -> Node | None:
        """A node that calls functions of which no sample shows how long they take."""
        found = (each.node for each in self.nodes if each.nanoseconds is None)
        return next((node for node in found if calls_user_code(node)), None)


def estimate(
    plan: PhysicalPlan, known: Characteristics, units: UnitCosts | None = None
) -> PlanEstimate:
    """What a plan costs where its streams are as they are known.

    Raises:
        KeyError: nothing is known of one of its sources.
    """
    walk = _Walk(plan, known, _source_flows(plan.plan, known), units)
    nodes = walk.run()
    taken = sum(known.sources[name].rate for name in logical.sources(plan.plan))
    return PlanEstimate(plan, taken, nodes)


def _source_flows(plan: Node, known: Characteristics) -> dict[Node, Flow]:
    """The sources, in batches: neighbouring events of one source are taken in at once."""
    found = logical.sources(plan)
    total = sum(known.sources[name].rate for name in found)
    flows: dict[Node, Flow] = {}
    for name, node in found.items():
        stream = known.sources[name]
        share = stream.rate / total if total else 1.0
        # The first of a batch, and each behind one of another source.
        calls = stream.rate * (1 / known.batch + (1 - 1 / known.batch) * (1 - share))
        late = float(node.lateness) if isinstance(node, logical.Source) else 0.0
        # By the time that another source speaks, this one has been silent for a gap on average.
        silent = stream.gap * (1 - share) if stream.gap < inf else 0.0
        flows[node] = Flow(stream, stream.rate, calls, behind=late + silent)
    return flows


class _Walk:
    """The nodes of a plan, each behind those that feed it."""

    def __init__(
        self,
        plan: PhysicalPlan,
        known: Characteristics,
        sources: Mapping[Node, Flow],
        units: UnitCosts | None,
    ) -> None:
        self._plan, self._known, self._units = plan, known, units
        self._flows = dict(sources)
        self._choices = dict(plan.choices)

    def run(self) -> tuple[NodeEstimate, ...]:
        """All of them."""
        found = []
        for node in logical.nodes(self._plan.plan):
            choice = self._choices.get(node, _AS_THE_PLAN)
            steps = [self._step(node, choice, choice.emit or self._plan.emit)]
            if choice.align is not None:
                steps.append(rows.aligned(choice.align, steps[0].flow, logical.longest(node)))
            found.append(self._estimate(node, steps))
            self._flows[node] = steps[-1].flow
        return tuple(found)

    def _estimate(self, node: Node, steps: list[Step]) -> NodeEstimate:
        calls = sum(self._flows[child].calls for child in logical.children(node))
        given = [{"turn" if each.kind else "call": calls} for each in steps]
        work = merged_work(*(each.work for each in steps), *given)
        held: dict[str, float] = {}
        for each in steps:
            if each.kind:
                held[each.kind] = held.get(each.kind, 0.0) + each.held
        units = self._units
        return NodeEstimate(
            node,
            steps[-1].flow,
            sum(held.values()),
            work,
            None if units is None else self._time(node, work, units),
            None if units is None else units.memory(held),
        )

    def _time(self, node: Node, work: Mapping[str, float], units: UnitCosts) -> float | None:
        if not calls_user_code(node):
            return units.time(work)
        measured = self._known.of(node).nanoseconds
        if measured is None:
            return None
        taken = sum(self._flows[child].elements for child in logical.children(node))
        return measured * taken

    def _step(self, node: Node, choice: Choice, emit: Emit) -> Step:
        known = self._known
        flows = [self._flows[child] for child in logical.children(node)]
        match node:
            case logical.Elements():
                return rows.checked(self._flows[node])
            case logical.Source() | logical.Group():
                return Step(self._flows[node], {})
            case logical.Select():
                return rows.selection(node, flows[0], known)
            case logical.Project():
                return rows.projected(node, flows[0])
            case logical.FlatMap():
                return rows.flat_mapped(node, flows[0], known)
            case logical.Lifetime():
                return rows.lifetimes(node, flows[0])
            case logical.Union():
                return rows.union(flows)
            case logical.Join():
                return pairs.join(node, flows[0], flows[1], known)
            case logical.SemiJoin():
                return pairs.semi_join(node, flows[0], flows[1], known)
            case logical.Clip():
                return pairs.clip(node, flows[0], flows[1], known)
            case logical.MultisetOp():
                return pairs.multiset(node, flows, known)
            case logical.Aggregate() | logical.SnapshotWindows():
                return folds.aggregate(node, flows[0], emit, known)
            case logical.Windows():
                return folds.windows(node, flows[0], emit, choice.windows, known)
            case logical.LastRows():
                return folds.last_rows(node, flows[0], known)
            case logical.CountWindows():
                return folds.count_windows(node, flows[0], known)
            case logical.GroupApply():
                return self._of_groups(node, flows[0], emit)

    def _of_groups(self, node: logical.GroupApply, flow: Flow, emit: Emit) -> Step:
        """A plan of each group: that of one, as many times."""
        groups = self._known.groups(node)
        touched = groups_among(groups, flow.batch) * flow.calls
        stream = Stream(flow.stream.gap * groups, flow.stream.length, flow.stream.granule)
        one = flow.scaled(1 / groups, stream)._replace(calls=touched / groups)
        leaves = [each for each in logical.nodes(node.plan) if isinstance(each, logical.Group)]
        inner = PhysicalPlan(node.plan, emit)
        found = _Walk(inner, self._known, dict.fromkeys(leaves, one), None).run()
        top = found[-1].flow
        out = top._replace(
            stream=top.stream._replace(gap=top.stream.gap / groups),
            elements=top.elements * groups,
            moves=top.moves * groups,
            early=top.early * groups,
            calls=flow.calls,
        )
        work = merged_work(*(each.work for each in found))
        held = groups * sum(each.held for each in found)
        return Step(out, {unit: n * groups for unit, n in work.items()}, held, "cell")
