"""Plans in words: a line for each node, a tree, and a Mermaid flowchart.

>>> from lmerge_service.queries.expressions import col
>>> from lmerge_service.queries.plan import count, facts, tumbling
>>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
>>> late = flights.where(col.delay > 15).windows(tumbling(60)).by("origin")
>>> hourly = late.aggregate(n=count()).join(flights.select("origin"), on="origin")
>>> print(*tree(hourly.plan), sep="\\n")
join on origin
├─ windows tumbling(60) by origin: n=count()
│  └─ where col.delay > 15
│     └─ facts flights (origin: str, delay: int)
└─ select origin
   └─ facts flights (origin: str, delay: int)
>>> print(*mermaid(flights.where(col.delay > 15).plan), sep="\\n")
flowchart BT
  n0["facts flights (origin: str, delay: int)"]
  n1["where col.delay #gt; 15"]
  n0 --> n1
"""

from collections.abc import Iterator
from typing import Any

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Aggregation, Apply, Grid, Node, Top
from lmerge_service.queries.trees import Name, Tree

__all__ = ("described", "document", "mermaid", "tree", "tree_nodes")


def tree(plan: Node) -> Iterator[str]:
    """The nodes of a plan, each below the one that it feeds."""
    yield described(plan)
    children = _shown(plan)
    for at, child in enumerate(children):
        last = at == len(children) - 1
        for number, line in enumerate(tree(child)):
            head = ("└─ " if last else "├─ ") if not number else ("   " if last else "│  ")
            yield head + line


def tree_nodes(plan: Node) -> list[int | None]:
    """For each line of `tree` its node, by its place in `logical.nodes`; None for those of a plan
    that is applied to groups. A node that feeds several has several lines."""
    numbers = {node: number for number, node in enumerate(logical.nodes(plan))}

    def below(node: Node) -> Iterator[int | None]:
        yield numbers.get(node)
        for child in _shown(node):
            yield from below(child)

    return list(below(plan))


def mermaid(plan: Node) -> Iterator[str]:
    """A flowchart of a plan, sources below; each node once."""
    yield "flowchart BT"
    names: dict[Node, str] = {}
    for node in _all(plan):
        names[node] = f"n{len(names)}"
        label = described(node)
        for mark, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
            label = label.replace(mark, code)
        yield f'  {names[node]}["{label}"]'
        for child in _shown(node):
            yield f"  {names[child]} --> {names[node]}"


def document(plan: Node) -> dict[str, Any]:
    """The tree for programs."""
    return {
        "node": described(plan),
        "columns": {c.name: c.kind.value for c in logical.schema_of(plan)},
        "of": [document(child) for child in _shown(plan)],
    }


def _all(plan: Node) -> Iterator[Node]:
    """Every node once, each behind those that feed it, and the plans of groups."""
    seen: set[Node] = set()

    def below(node: Node) -> Iterator[Node]:
        if node not in seen:
            for child in _shown(node):
                yield from below(child)
            seen.add(node)
            yield node

    return below(plan)


def _shown(node: Node) -> tuple[Node, ...]:
    """What feeds a node, and the plan that it applies to groups."""
    if isinstance(node, logical.GroupApply):
        return (node.of, node.plan)
    return logical.children(node)


def described(node: Node) -> str:
    """A node in one line, without what feeds it."""
    match node:
        case logical.Source(name=name, fields=fields):
            return f"facts {name} {fields}"
        case logical.Elements(name=name, fields=fields):
            return f"elements {name} {fields}"
        case logical.Group():
            return "the group"
        case logical.Select(where=where):
            return f"where {where}"
        case logical.Project(columns=columns):
            return f"select {', '.join(_column(name, tree) for name, tree in columns)}"
        case logical.FlatMap(function=function):
            return f"flat_map {function}"
        case logical.Lifetime(function=function, arguments=arguments):
            return f"{function}({', '.join(map(str, arguments))})"
        case logical.Union():
            return "union"
        case logical.Join(on=on, where=where, outer=outer):
            return f"{f'{outer} ' if outer else ''}join {_on(on, where)}"
        case logical.MultisetOp(function=function):
            return function
        case logical.SemiJoin(on=on, where=where, anti=anti):
            return f"{'anti' if anti else 'semi'}_join {_on(on, where)}"
        case logical.Clip(on=on):
            return f"clip {_on(on, None)}"
        case logical.Aggregate(by=by, results=results, cut=cut, gap=gap):
            flags = f"{', cut' if cut else ''}{', gap' if gap else ''}"
            return f"aggregate{_by(by)}{flags}: {_results(results)}"
        case logical.Windows(by=by, grid=grid, results=results):
            return f"windows {_grid(grid)}{_by(by)}: {_results(results)}"
        case logical.SnapshotWindows(by=by, results=results):
            return f"windows snapshots(){_by(by)}: {_results(results)}"
        case logical.CountWindows(by=by, count=count, results=results, ends=ends):
            windows = f"counting({count}{', ends=True' if ends else ''})"
            return f"windows {windows}{_by(by)}: {_results(results)}"
        case logical.LastRows(by=by, count=count):
            return f"last_rows({count}){_by(by)}"
        case logical.GroupApply(by=by):
            return f"apply{_by(by)}"


def _column(name: str, tree: Tree) -> str:
    return name if tree == Name(name) else f"{name}={tree}"


def _on(on: tuple[tuple[str, str], ...], where: Tree | None) -> str:
    names = ", ".join(one if one == other else f"{one}={other}" for one, other in on)
    return f"on {names}" + ("" if where is None else f" where {where}")


def _by(by: tuple[str, ...]) -> str:
    return f" by {', '.join(by)}" if by else ""


def _grid(grid: Grid) -> str:
    origin = f", origin={grid.origin}" if grid.origin else ""
    if grid.size == grid.every:
        return f"tumbling({grid.size}{origin})"
    return f"hopping({grid.size}, every={grid.every}{origin})"


def _results(results: logical.Results) -> str:
    match results:
        case Top(k=k, columns=columns, by=score):
            by = _call(score) if isinstance(score, Aggregation) else score
            return f"top {k} {', '.join(columns)} by {by}"
        case Apply(module=module, of=of):
            return f"{module}({of})"
    return ", ".join(f"{name}={_call(each)}" for name, each in results)


def _call(aggregation: Aggregation) -> str:
    of = "" if aggregation.of is None else str(aggregation.of)
    return f"{aggregation.function}({of}{', ' + aggregation.part if aggregation.part else ''})"
