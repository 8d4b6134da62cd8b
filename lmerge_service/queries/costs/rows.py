"""Costs of what takes one event at a time: sources, selections, lifetimes, unions, `align`."""

from math import gcd

from lmerge_service.elements import INFINITY
from lmerge_service.queries import logical
from lmerge_service.queries.costs.characteristics import Characteristics, operations
from lmerge_service.queries.costs.formulas import Stream, selected, united, windowed
from lmerge_service.queries.costs.steps import Flow, Step

__all__ = ("aligned", "checked", "flat_mapped", "lifetimes", "projected", "selection", "union")


def checked(flow: Flow) -> Step:
    """`Elements`: what enters is checked, and events that may change are known."""
    stream = flow.stream
    held = (stream.length + flow.behind) * stream.rate
    return Step(flow, {"check": flow.elements}, held, "element")


def selection(node: logical.Select, flow: Flow, known: Characteristics) -> Step:
    """Which part passes."""
    part = known.selectivity(node)
    stream = selected(flow.stream, part)
    work = {"row": flow.elements, "operation": flow.elements * operations(node.where)}
    return Step(flow.scaled(part, stream), work)


def projected(node: logical.Project, flow: Flow) -> Step:
    """Other columns, of which those that are computed take longer."""
    parts = sum(operations(tree) for _, tree in node.columns)
    work = {"row": flow.elements, "create": flow.elements, "operation": flow.elements * parts}
    return Step(flow, work)


def flat_mapped(node: logical.FlatMap, flow: Flow, known: Characteristics) -> Step:
    """So many rows of one."""
    many = known.fan_out(node)
    return Step(flow.scaled(many, selected(flow.stream, many)), {"row": flow.elements})


def lifetimes(node: logical.Lifetime, flow: Flow) -> Step:
    """Other lifetimes; how far that moves the stable point is in `operators.lifetimes`."""
    (first, second), stream = (*node.arguments, 0, 0)[:2], flow.stream
    gap, length, granule = stream
    waits = 0.0
    match node.function:
        case "window":
            stream = windowed(stream, first)
        case "extend":
            stream = windowed(stream, length + first)
        case "shorten":
            stream, waits = windowed(stream, max(length - first, 1)), first
        case "at_most":
            stream = windowed(stream, min(length, first))
        case "hop":
            stream, waits = Stream(gap, second, first), first
        case "quantise":
            stream, waits = Stream(gap, length + first - 1, first), first
        case "starts" | "ends" | "last":
            stream = windowed(stream, 1)
        case "inserts" | "deletes":
            stream = windowed(stream, INFINITY)
    if node.function in ("window", "extend", "at_most"):
        stream = stream._replace(granule=gcd(int(granule), int(stream.length)))
    lag = flow.lag + (waits if node.function != "shift" else -first)
    elements, moves = flow.elements, flow.moves
    if node.function in ("window", "hop", "starts", "inserts"):
        elements, moves = elements - moves, 0.0
    elif node.function in ("ends", "deletes", "last"):  # what moves an end moves these events
        elements, moves = elements + moves, 0.0
    out = Flow(stream, elements, flow.calls, moves, flow.early, lag, flow.behind + waits)
    return Step(out, {"row": flow.elements, "lifetime": flow.elements})


def union(flows: list[Flow]) -> Step:
    """The events of all."""
    elements = sum(each.elements for each in flows)
    out = Flow(
        united([each.stream for each in flows]),
        elements,
        sum(each.calls for each in flows),
        sum(each.moves for each in flows),
        sum(each.early for each in flows),
        max(each.lag for each in flows),
        max(each.behind for each in flows),
    )
    return Step(out, {"row": elements})


def aligned(blocking: int, flow: Flow, longest: int) -> Step:
    """Held until so far behind, at the most until final: revisions by then are none. The stable
    point waits for the longest event, or where that has no bound for one of the mean length."""
    stream, event = flow.stream, flow.stream.rate
    waits = min(float(blocking), stream.length)
    lag = flow.lag + min(blocking, longest if longest < INFINITY else stream.length)
    early = min(1.0, blocking / max(stream.length, 1.0))
    elements = event + max(flow.elements - event, 0.0) * (1 - early)
    held = event * (waits + (flow.behind if blocking == INFINITY else 0)) + 1
    out = flow.scaled(elements / flow.elements if flow.elements else 1.0, stream)
    out = out._replace(lag=lag, behind=flow.behind + waits)
    return Step(out, {"align": flow.elements, "row": elements}, held, "align")
