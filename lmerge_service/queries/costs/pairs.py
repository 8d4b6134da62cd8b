"""Costs of what compares two inputs, or events of one with each other."""

from math import inf

from lmerge_service.queries import logical
from lmerge_service.queries.costs.characteristics import Characteristics
from lmerge_service.queries.costs.formulas import (
    Stream,
    clipped,
    covered,
    distinct,
    groups_among,
    joined,
    joined_state,
    unbroken,
    united,
)
from lmerge_service.queries.costs.set_operators import Sides, result
from lmerge_service.queries.costs.steps import Flow, Step, merged_work

__all__ = ("clip", "join", "multiset", "semi_join")


def join(node: logical.Join, left: Flow, right: Flow, known: Characteristics) -> Step:
    """Pairs; of an outer join also the times without a partner."""
    inner = _inner(node, left, right, known)
    if not node.outer:
        return inner
    steps = [inner]
    if node.outer in ("left", "full"):
        steps.append(_fragments(left, right, known.groups(node), anti=True))
    if node.outer in ("right", "full"):
        steps.append(_fragments(right, left, known.groups(node), anti=True))
    flows = [each.flow for each in steps]
    elements = sum(each.elements for each in flows)
    moves = sum(each.moves for each in flows)
    stream = united([each.stream for each in flows])
    out = inner.flow._replace(stream=stream, elements=elements, moves=moves)
    held = sum(each.held for each in steps)
    return Step(out, merged_work(*(each.work for each in steps)), held, "join")


def _inner(node: logical.Join, left: Flow, right: Flow, known: Characteristics) -> Step:
    part = known.selectivity(node)
    equal = max(known.key_selectivity(node), part)
    one, two = left.stream, right.stream
    stream = joined(one, two, part)
    # Each pair once, and again whenever one of the two is revised.
    again = (left.elements - one.rate) * two.alive + (right.elements - two.rate) * one.alive
    elements = stream.rate + max(again, 0.0) * part
    looked = (left.elements * two.alive + right.elements * one.alive) * equal
    work = {
        "hash": left.elements + right.elements,
        "probe": looked,
        "pair": elements,
        "net": elements,
    }
    mine, theirs = joined_state(one, two)
    held = max(mine, one.alive + right.behind * one.rate)
    held += max(theirs, two.alive + left.behind * two.rate)
    moved = (left.moves + right.moves) / max(left.elements + right.elements, 1e-12)
    moves = (elements - stream.rate) * min(moved, 1.0)
    return Step(_both(left, right, stream, elements, moves), work, held, "join")


def semi_join(node: logical.SemiJoin, left: Flow, right: Flow, known: Characteristics) -> Step:
    """Parts of left events with a partner, or without."""
    return _fragments(left, right, known.groups(node), anti=node.anti)


def _fragments(left: Flow, right: Flow, keys: float, *, anti: bool) -> Step:
    one, two = left.stream, right.stream
    part = covered(two, keys)
    begins = unbroken(two, keys).rate / keys  # of times with a partner, of one key
    there = 1 - part if anti else part
    each = max(there + begins * one.length, 1e-9)
    stream = Stream(one.gap / each, max(one.length * there / each, 1.0), one.granule)
    moved = min(right.elements, right.calls * groups_among(keys, right.batch)) * one.alive / keys
    elements = left.elements * each + moved
    work = {"support": left.elements + right.elements, "fragment": elements, "net": elements}
    held = _held(left, right)
    moves = max(elements - stream.rate, 0.0)
    return Step(_both(left, right, stream, elements, moves), work, held, "support")


def clip(node: logical.Clip, left: Flow, right: Flow, known: Characteristics) -> Step:
    """Left events until the next right one."""
    keys = known.groups(node)
    stream = clipped(left.stream, right.stream, keys)
    cut = 1 - stream.length / left.stream.length if left.stream.length else 0.0
    elements = left.elements + min(right.elements, left.stream.rate * cut)
    work = {"clip": left.elements + right.elements, "net": elements}
    held = (stream.length + right.behind) * stream.rate + right.behind * right.stream.rate
    moves = elements - left.elements + left.moves
    return Step(_both(left, right, stream, elements, moves), work, held, "clip")


def multiset(node: logical.MultisetOp, flows: list[Flow], known: Characteristics) -> Step:
    """How often each payload is there: the thesis' formula for duplicates, also where it has
    none."""
    values = known.groups(node)
    if len(flows) == 1:
        part = known.of(node).selectivity if node.function == "distinct" else None
        return _unary(flows[0], values, part, once=node.function == "distinct")
    return _binary(node.function, flows[0], flows[1], values)


def _unary(flow: Flow, values: float, part: float | None, *, once: bool) -> Step:
    touched = flow.calls * groups_among(values, flow.batch)
    if once:
        stream = unbroken(flow.stream, values)
        if part:  # values are not alike: the frequent ones have fewer events, which are longer
            stream = stream._replace(gap=stream.gap / part, length=stream.length / part)
        elements = min(
            touched, flow.elements / flow.stream.rate * distinct(flow.stream, values).rate
        )
    else:
        stream, elements = flow.stream, flow.elements
    elements = max(elements, stream.rate)
    work = {"layer": flow.elements, "settle": touched, "net": elements}
    if not once:
        work["sweep"] = touched * (flow.stream.alive + 2 * flow.batch) / values
    held = (flow.stream.length + flow.behind) * flow.stream.rate
    moves = max(elements - stream.rate, 0.0)
    out = flow._replace(stream=stream, elements=elements, moves=moves)
    return Step(out, work, held, "layer")


def _binary(function: str, left: Flow, right: Flow, values: float) -> Step:
    one, two = left.stream, right.stream
    of_payload = Sides(one.rate / values, one.length, two.rate / values, two.length)
    rate, alive, changes = result(function, of_payload)
    touched = sum(each.calls * groups_among(values, each.batch) for each in (left, right))
    taken = left.elements + right.elements
    # Each revision changes as much as an event; what a batch changes of a payload is netted.
    elements = changes * values * taken / max(one.rate + two.rate, 1e-12)
    elements *= min(touched / taken, 1.0) if taken else 0.0
    stream = Stream(
        1 / (rate * values) if rate else inf, alive / rate if rate else 1.0, one.granule
    )
    # Where it is asked only whether there are any events, each side is looked at from the start of
    # what is to enter to the end of all that are there, and to its own end.
    passed = 4 * taken
    if function.endswith(("_all", "_max")):
        passed = touched * (one.alive + two.alive) / values + 2 * elements
    work = {"layer": taken, "settle": touched, "sweep": passed, "net": elements}
    moves = max(elements - stream.rate, 0.0)
    out = _both(left, right, stream, max(elements, stream.rate), moves)
    return Step(out, work, _held(left, right), "layer")


def _held(left: Flow, right: Flow) -> float:
    """Events of both sides that may still meet one of the other."""
    behind = max(left.behind, right.behind)
    return sum((each.stream.length + behind) * each.stream.rate for each in (left, right))


def _both(left: Flow, right: Flow, stream: Stream, elements: float, moves: float) -> Flow:
    first, last = sorted((left, right), key=lambda each: each.behind)
    calls = first.calls + last.calls
    if first.calls and last.behind > first.behind + 1 / first.calls:
        # The stable point rises with the one that is behind only.
        calls = min(calls, last.calls + elements)
    lag, behind = max(left.lag, right.lag), max(left.behind, right.behind)
    return Flow(stream, elements, calls, moves, 0.0, lag, behind)
