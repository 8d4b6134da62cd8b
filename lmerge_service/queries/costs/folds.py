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
from lmerge_service.queries.costs.steps import Flow, Step, merged_work
from lmerge_service.queries.physical import Emit, WindowPlan

__all__ = ("aggregate", "count_windows", "last_rows", "windows")

_IN_ORDER = frozenset(("min", "max", "first", "last", "median", "percentile", "distinct_count"))
"""Aggregates that keep the values, not only a number."""
_BUCKET: Final = 4_096
"""So many facts are forgotten at once where windows are replayed."""


def _values(results: logical.Results) -> tuple[float, float]:
    """How many values a row has that are numbers, and that are of all values, kept in order."""
    match results:
        case logical.Apply():
            return 0.0, 0.0
        case logical.Top(k=k):
            return 0.0, 1.0 + k
    functions = [each.function for _, each in results]
    kept = sum(each in _IN_ORDER for each in functions)
    return float(len(functions) - kept), float(kept)


def _of_pieces(results: logical.Results, steps: float) -> dict[str, float]:
    """The work of an aggregate's values, at so many endpoints and pieces of time."""
    numbers, kept = _values(results)
    return {"value": numbers * steps, "ordered": kept * steps}


def _of_windows(results: logical.Results, sums: float, entries: float) -> dict[str, float]:
    """The work of so many steps of each sum of windows, or of each value that is kept."""
    numbers, kept = _values(results)
    return {"sum": numbers * sums, "kept": kept * entries}


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
    if _values(node.results)[1]:  # an extreme shows one end of an event, not both
        shown = max(swept - batch.each, min(ahead, swept))
    redrawn = batch.calls * batch.touched * (min(ahead, swept) + shown) * rows
    elements, moves = _emitted(emit, out, redrawn, batch)
    early = max(elements - flow.elements, 0.0) if emit == "on_update" else 0.0
    waits = 0.0
    if emit in ("on_watermark", "on_close"):
        waits = max(stream.length, out.length)
    looked = batch.calls * batch.touched * swept
    work = {
        "boundary": 2 * flow.elements,
        "cell": looked,
        "group": batch.calls * batch.touched,
        "pass": batch.calls,
        **_of_pieces(node.results, looked + flow.elements),
    }
    if emit != "on_update":
        work["wait"] = out.rate
    if node.by or emit != "on_update":  # else each row changes once
        work["net"] = elements
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
        work, held, kind = _replayed(node, flow, batch, groups, 2 if eager else 1)
    elif plan == "expand":
        work, held, kind = _expanded(node, flow, touched)
    else:
        step = _grid if plan == "grid" else _panes
        work, held, kind = step(node, flow, batch, groups, computed)
    work["pass"] = batch.calls
    if eager:
        work["net"] = elements
    opened = _begun(node.grid, groups, stream.rate) + flow.behind / grid.every * in_window
    if plan == "replay":
        opened = (grid.size + flow.behind) * stream.rate + _BUCKET / 2
    waits = grid.size
    if plan == "expand":  # its stable point is a window behind, and so is what it feeds
        opened += overlapping * in_window
        waits *= 1 if eager else 2
    if plan == "panes":
        in_pane = groups_among(groups, _pane(grid) * stream.rate)
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
    node: logical.Windows, flow: Flow, batch: _Batch, groups: float, computed: float
) -> _Parts:
    entered = flow.elements * _overlapping(node, flow)
    if logical.longest(node.of) > 1:
        work = {"fold": flow.elements, "lasting": entered, "result": computed}
        return merged_work(work, _of_windows(node.results, entered, entered)), 1.0, "window"
    # Facts of one group and pane are added at once.
    folds = _folds(batch, _pane(node.grid))
    added = folds * node.grid.size / node.grid.every
    work = {"fold": flow.elements, "window": added, "result": computed}
    sums = _of_windows(node.results, flow.elements + added + computed, entered + computed)
    return merged_work(work, sums), 1.0, "window"


def _panes(
    node: logical.Windows, flow: Flow, batch: _Batch, groups: float, computed: float
) -> _Parts:
    grid, pane, rate = node.grid, _pane(node.grid), flow.stream.rate
    looked = computed * grid.size / pane
    in_window = groups_among(groups, grid.size * rate)
    merged = looked * groups_among(groups, pane * rate) / in_window if in_window else 0.0
    facts = computed * grid.size * rate / in_window if in_window else 0.0
    work = {
        "fold": flow.elements,
        "mark": _folds(batch, pane) * _overlapping(node, flow),
        "merge": merged,
        "result": computed,
    }
    sums = _of_windows(node.results, flow.elements + merged + computed, flow.elements + facts)
    return merged_work(work, sums), 1.0, "window"


def _expanded(node: logical.Windows, flow: Flow, touched: float) -> _Parts:
    """Each window of a group is one of the aggregate above."""
    many = flow.elements * _overlapping(node, flow)
    work = {"expand": many, "boundary": 2 * many, "cell": touched, "group": touched}
    sums = _of_pieces(node.results, many + touched)
    return merged_work(work, sums), 3.0, "cell"  # two boundaries and a row


def _replayed(
    node: logical.Windows, flow: Flow, batch: _Batch, groups: float, times: int
) -> _Parts:
    """All windows that are open, each from all of its facts."""
    grid, rate, runs = node.grid, flow.stream.rate, batch.calls * times
    span, pane, overlapping = batch.span + grid.size, _pane(grid), _overlapping(node, flow)
    facts = span * rate * runs
    added = span / pane * groups_among(groups, pane * rate) * runs * overlapping
    results = span / grid.every * groups_among(groups, grid.size * rate) * runs
    work = {"archive": flow.elements, "fold": facts, "window": added, "result": results}
    sums = _of_windows(node.results, facts + added + results, facts * overlapping + results)
    return merged_work(work, sums), 1.0, "fact"


def _overlapping(node: logical.Windows, flow: Flow) -> float:
    """Windows that an event is in."""
    return (node.grid.size + flow.stream.length - 1) / node.grid.every


def _pane(grid: logical.Grid) -> int:
    return gcd(grid.size, grid.every)


def _folds(batch: _Batch, pane: float) -> float:
    """What is added at once: the elements of one group that a batch has within a pane."""
    return batch.calls * batch.touched * min(batch.each, batch.span / pane + 1)


def last_rows(node: logical.LastRows, flow: Flow, known: Characteristics) -> Step:
    """Each row, and its end once it is known, but for what one batch has both of."""
    groups = known.groups(node) if node.by else 1.0
    out, batch = in_last_rows(flow.stream, node.count, groups), _Batch(flow, groups)
    ended_later = min(flow.elements, batch.calls * batch.touched * node.count)
    elements = flow.elements + ended_later
    work = {"last": flow.elements, "moved": ended_later, "net": elements}
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
