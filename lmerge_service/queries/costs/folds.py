"""Costs of aggregates, windows and last rows."""

from math import exp, gcd, inf
from typing import Final

from lmerge_service.queries import logical
from lmerge_service.queries.costs.characteristics import Characteristics
from lmerge_service.queries.costs.formulas import (
    Stream,
    aggregated,
    cells,
    groups_among,
    in_grid,
    in_last_rows,
    last_rows_state,
    panes_state,
    windows_state,
)
from lmerge_service.queries.costs.steps import Flow, Step
from lmerge_service.queries.physical import Emit, WindowPlan

__all__ = ("aggregate", "count_windows", "last_rows", "windows")

_IN_ORDER = frozenset(("min", "max", "first", "last", "median", "percentile", "distinct_count"))
"""Aggregates that keep the values, not only a number."""
_BUCKET: Final = 4_096
"""So many facts are forgotten at once where windows are replayed."""


def _values(results: logical.Results) -> dict[str, float]:
    """What computing a row takes: values that are numbers, and those that keep all values."""
    match results:
        case logical.Apply():
            return {}
        case logical.Top(k=k):
            return {"ordered": 1.0 + k}
    functions = [each.function for _, each in results]
    kept = sum(each in _IN_ORDER for each in functions)
    return {"value": float(len(functions) - kept), "ordered": float(kept)}


def _rows(results: logical.Results) -> float:
    """How many rows a group or window has."""
    return float(results.k) if isinstance(results, logical.Top) else 1.0


class _Batch:
    """A batch of a flow, by groups."""

    def __init__(self, flow: Flow, groups: float) -> None:
        self.calls, self.size = flow.calls, flow.batch
        self.touched = groups_among(groups, flow.batch)
        """Groups in a batch."""
        self.each = flow.batch / self.touched if self.touched else 0.0
        """Elements of each of these."""
        self.span = 1 / flow.calls if flow.calls else 0.0
        """How long a batch is."""


def aggregate(
    node: logical.Aggregate | logical.SnapshotWindows,
    flow: Flow,
    emit: Emit,
    known: Characteristics,
) -> Step:
    """Rows between the endpoints of each group's events. A batch redraws, in each group that it
    touches, all that lies ahead."""
    groups, stream = (known.groups(node) if node.by else 1.0), flow.stream
    batch, rows = _Batch(flow, groups), _rows(node.results)
    out = aggregated(stream, groups)
    rows *= _differing(node, known)
    out = out._replace(gap=out.gap / rows, length=out.length / min(rows, 1.0))
    there = groups_among(groups, stream.alive)
    meet = groups * stream.gap < stream.length
    ahead = (cells(stream, groups) if meet else stream.alive) / groups
    most = (batch.span + stream.length) / stream.granule + 1
    # The first event of a group that is empty makes one piece, each other one two more.
    swept = min(ahead + 2 * batch.each - exp(-stream.alive / groups), most)
    shown = swept
    if _values(node.results).get("ordered"):  # an extreme shows one end of an event, not both
        shown = max(swept - batch.each, min(ahead, swept))
    redrawn = batch.calls * batch.touched * (min(ahead, swept) + shown) * rows
    elements, moves = _emitted(emit, out, redrawn, batch)
    early = max(elements - flow.elements, 0.0) if emit == "on_update" else 0.0
    waits = 0.0
    if emit in ("on_watermark", "on_close"):
        waits = max(stream.length, out.length)
    looked = batch.calls * batch.touched * swept
    values = {unit: n * looked for unit, n in _values(node.results).items()}
    work = {
        "boundary": 2 * flow.elements,
        "cell": looked,
        "net": elements,
        "group": batch.calls * batch.touched,
        **values,
    }
    held = 2 * ahead * groups + there + 2 * out.rate * flow.behind
    after = _after(flow, out, elements, moves, waits)._replace(early=early)
    return Step(after, work, held, "cell")


def _differing(node: logical.Aggregate | logical.SnapshotWindows, known: Characteristics) -> float:
    """Which part of neighbouring rows differ: those of extremes often do not, nor where as many
    events come as go, and are one row."""
    found = known.of(node).selectivity
    return 1.0 if found is None else found


def _emitted(emit: Emit, out: Stream, redrawn: float, batch: _Batch) -> tuple[float, float]:
    """Elements that the rows take, by level, and how many of them move an end."""
    # In each group the row that is there when a batch comes keeps its start.
    there = min(out.rate, batch.calls * batch.touched)
    match emit:
        case "on_update":
            return max(redrawn, out.rate), min(there, max(redrawn - out.rate, 0.0))
        case "ordered":
            return out.rate + there, there
    return out.rate, 0.0


def windows(
    node: logical.Windows, flow: Flow, emit: Emit, plan: WindowPlan, known: Characteristics
) -> Step:
    """Rows of windows, of each group that has events in one."""
    groups, grid, stream = (known.groups(node) if node.by else 1.0), node.grid, flow.stream
    in_window = groups_among(groups, (grid.size + stream.length - 1) * stream.rate)
    rows = _rows(node.results)
    out = in_grid(grid.size, grid.every, in_window * rows)
    entering = max(flow.elements - flow.early, min(stream.rate, flow.elements))
    batch = _Batch(flow._replace(elements=entering), groups)
    longest = grid.size + stream.length - 1
    overlapping = longest / grid.every
    # Of the windows that a batch reaches, each has an even part of its elements.
    reached = (batch.span + longest) / grid.every
    share = longest / (batch.span + longest)
    touched = batch.calls * reached * groups_among(groups, batch.size * share)
    eager = emit in ("on_update", "ordered")
    elements = max(out.rate, (2 * touched * rows - out.rate)) if eager else out.rate
    computed = touched if eager else out.rate
    if plan == "replay":
        work, held, kind = _replayed(node, flow, batch, reached * in_window, 2 if eager else 1)
    else:
        step = {"grid": _grid, "panes": _panes, "expand": _expanded}[plan]
        work, held, kind = step(node, flow, batch, computed, overlapping)
    for unit, number in _values(node.results).items():
        work[unit] = work.get(unit, 0.0) + number * (computed + flow.elements)
    work["net"] = elements
    opened = _begun(node.grid, groups, stream.rate) + flow.behind / grid.every * in_window
    if plan == "replay":
        opened = (grid.size + flow.behind) * stream.rate + _BUCKET / 2
    waits = grid.size
    if plan == "expand":  # its stable point is a window behind, and so is what it feeds
        opened += overlapping * in_window
        waits *= 1 if eager else 2
    if plan == "panes":
        in_pane = groups_among(groups, gcd(grid.size, grid.every) * stream.rate)
        opened += panes_state(grid.size, grid.every, in_pane)
    return Step(_after(flow, out, elements, 0.0, waits), work, held * opened, kind)


def _begun(grid: logical.Grid, groups: float, rate: float) -> float:
    """Windows of groups that are open: of the table's, those that have an event by now, since on
    average they are half over."""
    opened = windows_state(grid.size, grid.every, 1)
    times = [(at + 0.5) * grid.size / opened for at in range(int(opened))]
    return sum(groups_among(groups, time * rate) for time in times)


_Parts = tuple[dict[str, float], float, str]
"""The work; entries for each window that is open; what they are."""


def _grid(
    node: logical.Windows, flow: Flow, batch: _Batch, computed: float, overlapping: float
) -> _Parts:
    if logical.longest(node.of) == 1:  # facts of one group and pane are added at once
        panes = batch.span / gcd(node.grid.size, node.grid.every) + 1
        folds = batch.calls * batch.touched * min(batch.each, panes)
    else:
        folds = flow.elements
    work = {"fold": flow.elements, "window": folds * overlapping, "result": computed}
    return work, 1.0, "window"


def _panes(
    node: logical.Windows, flow: Flow, batch: _Batch, computed: float, overlapping: float
) -> _Parts:
    pane = gcd(node.grid.size, node.grid.every)
    folds = batch.calls * batch.touched * min(batch.each, batch.span / pane + 1)
    merged = computed * node.grid.size / pane
    work = {
        "fold": flow.elements,
        "mark": folds * overlapping,
        "merge": merged,
        "result": computed,
    }
    return work, 1.0, "window"


def _expanded(
    node: logical.Windows, flow: Flow, batch: _Batch, computed: float, overlapping: float
) -> _Parts:
    many = flow.elements * overlapping
    touched = batch.calls * batch.touched * min(batch.each, batch.span / node.grid.every + 1)
    touched *= overlapping
    work = {"expand": many, "boundary": 2 * many, "cell": touched, "group": touched}
    return work, 3.0, "cell"  # two boundaries and a row


def _replayed(
    node: logical.Windows, flow: Flow, batch: _Batch, windows: float, times: int
) -> _Parts:
    """All windows that a batch touches, each from all of its facts."""
    facts = (batch.span + node.grid.size) * flow.stream.rate * batch.calls * times
    results = windows * batch.calls * times
    work = {"archive": flow.elements, "fold": facts, "window": results, "result": results}
    return work, 1.0, "fact"


def last_rows(node: logical.LastRows, flow: Flow, known: Characteristics) -> Step:
    """Each row, and its end once it is known, but for what one batch has both of."""
    groups = known.groups(node) if node.by else 1.0
    out, batch = in_last_rows(flow.stream, node.count, groups), _Batch(flow, groups)
    ended_later = min(flow.elements, batch.calls * batch.touched * node.count)
    elements = flow.elements + ended_later
    work = {"last": flow.elements, "net": elements}
    held = last_rows_state(node.count, groups) + flow.behind * flow.stream.rate
    return Step(_after(flow, out, elements, ended_later, 0.0), work, held, "last")


def count_windows(node: logical.CountWindows, flow: Flow, known: Characteristics) -> Step:
    """A row of each start, of the last `count`; what the module takes, a sample shows."""
    groups = known.groups(node) if node.by else 1.0
    out = in_last_rows(flow.stream, node.count, groups)
    elements = 2 * flow.elements
    held = last_rows_state(node.count, groups)
    after = _after(flow, out, elements, 0.0, out.length)
    return Step(after, {"net": elements}, held, "last")


def _after(flow: Flow, out: Stream, elements: float, moves: float, waits: float) -> Flow:
    if out.gap == inf:
        elements = moves = 0.0
    lag, behind = flow.lag + waits, flow.behind + waits
    return Flow(out, elements, flow.calls, moves, 0.0, lag, behind)
