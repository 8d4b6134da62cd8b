r"""Physical plans cut into stages: what of a plan runs where on Spark. Values, which need no Spark.

Theory
    A network needs what belongs together in one place. The columns that keep it together
    (`partition_columns`) divide the facts among *buckets*, each with a network of its own. Where no
    columns do so for a whole plan, it is cut: what is below the cut is a *stage*, and its output is
    the input of the next, divided by other columns.

        flights ─▶ by origin ─▶ windows per origin ┊─▶ by hour ─▶ top per hour
                                       stage 0     ┊       stage 1

    From below upwards each node joins the stage of those that feed it, if there are columns for
    both; else these are cut off, unless that would be a stage without state. A node for which
    there are no columns even so, as an aggregate of all, runs in one bucket, and so does all that
    is above it.

    In a stage, what is selected and projected of a source before anything else is its *prefix*. It
    needs no state, so it runs in the JVM, before rows are divided; it ends below the first function
    of the user's. A source whose records depend on those before them, of elements or of facts
    without duplicates, has none: an *intake* per partition decides what they are first.

Invariants
    C1  The stages, one upon the other, are the plan: the same operators with the same choices.
    C2  A stage stands behind those that feed it; the last one's output is the plan's.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.physical import Choice, PhysicalPlan
from lmerge_service.queries.sql_text import is_sql

__all__ = ("Branch", "ColumnsOf", "Stage", "Upstream", "stages")

ColumnsOf: TypeAlias = Callable[[Node], Mapping[str, tuple[str, ...]] | None]
"""The columns of each source by which a plan may be divided; None: there are none."""


class Branch(msgspec.Struct, frozen=True):
    """A source with its prefix: one input of a stage's network."""

    name: str
    source: logical.Source
    prefix: tuple[Node, ...]
    """Selects and projects, in the order in which they apply."""


class Upstream(msgspec.Struct, frozen=True):
    """The output of an earlier stage as the input of one."""

    name: str
    stage: int


class Stage(msgspec.Struct, frozen=True):
    """A part of a plan that runs as one stateful operator."""

    plan: PhysicalPlan
    """What its networks are; its sources are the names of branches and upstreams."""
    branches: tuple[Branch, ...]
    upstreams: tuple[Upstream, ...]
    intakes: tuple[logical.Source | logical.Elements, ...]
    """The sources that it gets from intakes, by their names."""
    columns: tuple[tuple[str, tuple[str, ...]], ...]
    """By source and by upstream, the columns that divide it; none: all is in one bucket."""

    @property
    def sources(self) -> dict[str, logical.Source]:
        """Those that have prefixes."""
        return {each.source.name: each.source for each in self.branches}

    @property
    def heeds_feedback(self) -> bool:
        """Whether it may leave out what is final elsewhere: an upstream that stands in its plan for
        facts may revise what it has emitted, and facts are taken for final."""
        upstreams = {each.name for each in self.upstreams}
        leaves = logical.sources(self.plan.plan).values()
        return not any(
            isinstance(each, logical.Source) and each.name in upstreams for each in leaves
        )

    @property
    def schema(self) -> Any:
        """The columns of its output."""
        return logical.schema_of(self.plan.plan)


def stages(plan: PhysicalPlan, columns_of: ColumnsOf, *, divided: bool = True) -> tuple[Stage, ...]:
    """The stages of a plan, the last one behind those that feed it; one, if the plan is not to be
    `divided`."""
    cutting = _Cutting(plan, columns_of)
    cutting.finish(cutting.place(plan.plan) if divided else plan.plan)
    return tuple(cutting.stages)


_SOURCES: Final = (logical.Source, logical.Elements)
_STATELESS: Final = (*_SOURCES, logical.Select, logical.Project, logical.FlatMap)
_IN_PLACE: Final = (*_STATELESS, logical.Lifetime)
"""What would be a stage to no purpose."""


class _Cutting:
    def __init__(self, plan: PhysicalPlan, columns_of: ColumnsOf) -> None:
        self.stages: list[Stage] = []
        self._plan = plan
        self._columns_of = columns_of
        self._placed: dict[Node, Node] = {}
        self._outputs: dict[Node, Node] = {}
        """By the node that is the top of a stage, what stands for it in others."""
        self._choices = dict(plan.choices)

    def place(self, node: Node) -> Node:
        """The node as it is in its stage: over what is left of those that feed it."""
        if node not in self._placed:
            self._placed[node] = placed = self._over(node, map(self.place, logical.children(node)))
            if node in self._choices:
                self._choices[placed] = self._choices[node]
        return self._placed[node]

    def _over(self, node: Node, below: Any) -> Node:
        kept = [*below]
        whole = _replaced(node, kept)
        if self._columns_of(whole) is not None:
            return whole
        cut = [each if self._runs_alone(each) else self._cut(each) for each in kept]
        return _replaced(node, cut)

    def _runs_alone(self, node: Node) -> bool:
        """Whether it runs in one bucket, and all above it too."""
        return self._columns_of(node) is None

    def _cut(self, node: Node) -> Node:
        """What stands for a node whose stage ends with it."""
        if all(isinstance(each, _IN_PLACE) for each in logical.nodes(node)):
            return node
        if node not in self._outputs:
            number = self.finish(node)
            self._outputs[node] = _upstream(f"stage {number}", node)
        return self._outputs[node]

    def finish(self, top: Node) -> int:
        """Makes a stage that ends with a node; its number."""
        of_stages = {node: number for number, node in enumerate(self._outputs.values())}
        columns = self._columns_of(top) or {}
        inner = _Branches(self._choices)
        plan = inner.plan_of(top, frozenset(of_stages))
        leaves = [each for each in logical.nodes(top) if isinstance(each, _SOURCES)]
        names = {each.name for each in leaves}
        self.stages.append(
            Stage(
                plan=PhysicalPlan(
                    plan,
                    self._plan.emit,
                    tuple(
                        (node, inner.choices[node])
                        for node in logical.nodes(plan)
                        if node in inner.choices
                    ),
                ),
                branches=tuple(inner.branches),
                upstreams=tuple(
                    Upstream(node.name, number)
                    for node, number in of_stages.items()
                    if isinstance(node, _SOURCES) and node.name in names
                ),
                intakes=tuple(
                    each for each in leaves if _has_intake(each) and each not in of_stages
                ),
                columns=tuple((name, tuple(columns.get(name, ()))) for name in sorted(names)),
            )
        )
        return len(self.stages) - 1


class _Branches:
    """Takes the prefixes of sources out of the plan of a stage."""

    def __init__(self, choices: Mapping[Node, Choice]) -> None:
        self.branches: list[Branch] = []
        self.choices: dict[Node, Choice] = {}
        self._given = choices
        self._inputs: dict[Node, Node] = {}

    def plan_of(self, node: Node, upstreams: frozenset[Node]) -> Node:
        """The plan over its branches."""
        if node not in self._inputs:
            self._inputs[node] = found = self._plan_of(node, upstreams)
            if node in self._given:
                self.choices[found] = self._given[node]
        return self._inputs[node]

    def _plan_of(self, node: Node, upstreams: frozenset[Node]) -> Node:
        if node in upstreams:
            return node
        if (prefix := self._prefix(node, upstreams)) is not None:
            source, *steps = prefix
            assert isinstance(source, logical.Source)
            name = f"{source.name} {len(self.branches)}"
            self.branches.append(Branch(name, source, tuple(steps)))
            return _input(name, node)
        return _replaced(node, [self.plan_of(each, upstreams) for each in logical.children(node)])

    def _prefix(self, node: Node, upstreams: frozenset[Node]) -> list[Node] | None:
        """The source below a node, and the way from there to it; None: it is no prefix."""
        match node:
            case logical.Source() if node not in upstreams and not _has_intake(node):
                return [node]
            case logical.Select(of, where):
                trees = [where]
            case logical.Project(of, columns):
                trees = [tree for _, tree in columns]
            case _:
                return None
        waits = of in self._given and self._given[of].align is not None
        if waits or not all(map(is_sql, trees)):
            return None
        below = self._prefix(of, upstreams)
        return None if below is None else [*below, node]


def _has_intake(source: logical.Source | logical.Elements) -> bool:
    return isinstance(source, logical.Elements) or bool(source.key)


def _upstream(name: str, node: Node) -> Node:
    """What stands in a later stage for the output of a node."""
    if logical.longest(node) == 1:
        return _input(name, node)
    return logical.Elements(name, logical.schema_of(node))


def _input(name: str, node: Node) -> Node:
    """A source of a network that takes what is the output of a node: checked before, so nothing is
    checked of it; of length 1 if it is facts."""
    until = None if logical.longest(node) == 1 else ""
    return logical.Source(name, logical.schema_of(node), time="", until=until)


def _replaced(node: Node, children: list[Node]) -> Node:
    """The node over other nodes."""
    if not children:
        return node
    match node:
        case logical.Union() | logical.MultisetOp():
            return msgspec.structs.replace(node, of=tuple(children))
        case logical.Join() | logical.SemiJoin() | logical.Clip():
            left, right = children
            return msgspec.structs.replace(node, left=left, right=right)
    return msgspec.structs.replace(node, of=children[0])
