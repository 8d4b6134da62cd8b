"""Characteristics of recorded input, and figures of all nodes that plans of a query have.

Theory
    Each node is computed once from the final events of those that feed it, whichever plans it is
    part of, as one batch without revisions: how many events come of how many, how many groups they
    have, and, where the node calls functions of the user's, how long an element takes by a clock.
    That time is the whole time of its operator, waits included where the clock counts them.

    Functions may be dear for some rows only. So the sample is also divided into parts, by the
    application's time, and figures are taken of each.

    >>> from lmerge_service.elements import Insert
    >>> from lmerge_service.queries.expressions import col
    >>> from lmerge_service.queries.plan import facts
    >>> flights = facts("flights", time="time", fields={"delay": int})
    >>> late = flights.where(col.delay > 15)
    >>> steps = [Step("", "flights", [Insert((at % 40,), at, at + 1)]) for at in range(0, 400, 2)]
    >>> found = measured([late.plan], steps, clock=lambda: 0)
    >>> found.sources["flights"], found.of(late.plan).selectivity
    (Stream(gap=1.99, length=1.0, granule=2), 0.6)

Cost
    One pass of each node over the sample, and another for the parts; all events of all nodes are
    held meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd, inf
from operator import itemgetter
from typing import Any, Final, cast

import msgspec

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Step
from lmerge_service.queries.costs.characteristics import (
    Characteristics,
    Figures,
    calls_user_code,
)
from lmerge_service.queries.costs.formulas import Stream, aggregated, unbroken
from lmerge_service.queries.logical import Node
from lmerge_service.queries.physical import physical
from lmerge_service.queries.rewriting.rules import with_children
from lmerge_service.queries.rows import Row
from lmerge_service.tdb import TDB

__all__ = ("measured", "measured_parts")

_PARTS: Final = 20
Events = list[Insert[Row]]
"""In order of vs."""
_Clock = Callable[[], int]


def measured(
    plans: Iterable[Node], steps: Iterable[Step], clock: _Clock, batch: int = 100
) -> Characteristics:
    """What a sample shows of plans of one query; `batch` is how many events they will take in at
    once, `clock` gives nanoseconds.

    Raises:
        ModuleError: a function or module of the user's raises.
    """
    return _characteristics(list(plans), _final(steps), clock, batch)


def measured_parts(
    plans: Iterable[Node], steps: Iterable[Step], clock: _Clock, batch: int = 100
) -> list[Characteristics]:
    """The same of each part of the sample; none where no plan calls functions of the user's: then
    no part is dear for one plan and cheap for another.

    Raises:
        ModuleError: as `measured`.
    """
    wanted = list(plans)
    if not any(calls_user_code(node) for plan in wanted for node in logical.nodes(plan)):
        return []
    events = _final(steps)
    starts = sorted(each.vs for several in events.values() for each in several)
    if len(starts) < _PARTS:
        return []
    edges = [starts[len(starts) * part // _PARTS] for part in range(_PARTS)]
    parts = []
    for begin, end in zip(edges, [*edges[1:], INFINITY], strict=True):
        if begin < end:
            within = {
                name: [each for each in several if begin <= each.vs < end]
                for name, several in events.items()
            }
            parts.append(_characteristics(wanted, within, clock, batch))
    return parts


def _final(steps: Iterable[Step]) -> dict[str, Events]:
    """The events of each source as they are in the end."""
    tdbs: dict[str, TDB] = {}
    for _, source, elements in steps:
        tdb = tdbs.setdefault(source, TDB())
        for element in elements:
            tdb.apply(element)
    return {name: _in_order(tdb) for name, tdb in tdbs.items()}


def _in_order(tdb: TDB) -> Events:
    events = [Insert(cast(Row, payload), vs, ve) for payload, vs, ve in tdb]
    events.sort(key=lambda each: each.vs)
    return events


def _characteristics(
    plans: Sequence[Node], events: Mapping[str, Events], clock: _Clock, batch: int
) -> Characteristics:
    outcomes: dict[Node, Events] = {}
    figures: dict[Node, Figures] = {}
    span = _span(events.values())
    for plan in plans:
        for node in logical.nodes(plan):
            if node in outcomes:
                continue
            if isinstance(node, logical.Source | logical.Elements):
                outcomes[node] = events.get(node.name, [])
                continue
            inputs = [outcomes[child] for child in logical.children(node)]
            outcomes[node], nanoseconds = _outcome(node, inputs, clock)
            figures[node] = _figures(node, inputs, outcomes[node], span)
            if calls_user_code(node):
                figures[node] = replace(figures[node], nanoseconds=nanoseconds)
    names = {name for plan in plans for name in logical.sources(plan)}
    streams = {name: _stream(events.get(name, []), span) for name in names}
    return Characteristics(streams, figures, batch)


def _span(several: Iterable[Events]) -> tuple[int, int]:
    """From the first start to the last."""
    starts = [each[at].vs for each in several if each for at in (0, -1)]
    return (min(starts), max(starts)) if starts else (0, 0)


def _stream(events: Events, span: tuple[int, int]) -> Stream:
    """Characteristics of a source over the sample's time; what never ends counts until its end."""
    if not events:
        return Stream(inf, 1.0)
    first, last = span
    lengths = [
        (each.ve if each.ve < INFINITY else max(last, each.vs + 1)) - each.vs for each in events
    ]
    granule = gcd(*(each.vs - first for each in events)) or 1
    gap = max(last - first, 1) / len(events)
    return Stream(gap, sum(lengths) / len(lengths), granule)


def _outcome(node: Node, inputs: Sequence[Events], clock: _Clock) -> tuple[Events, float]:
    """The final events of a node, and how long an element took."""
    stands = [_stand_in(node, child, f"{at}") for at, child in enumerate(logical.children(node))]
    network = physical(with_children(node, stands)).begin(clock)
    emitted: list[Any] = []
    for at, events in enumerate(inputs):
        emitted += network.process_batch(f"{at}", [*events, Stable(INFINITY)])
    tdb = TDB()
    for element in emitted:
        tdb.apply(element)
    flow, taken = network.flows[-1], sum(map(len, inputs))
    return _in_order(tdb), flow.nanoseconds / max(taken, 1)


def _stand_in(node: Node, child: Node, name: str) -> Node:
    """A source for what feeds a node, with the same bound of lifetimes where that matters."""
    source = logical.Elements(name, logical.schema_of(child))
    longest = logical.longest(child)
    if longest < INFINITY and isinstance(getattr(node, "results", None), logical.Apply):
        return logical.Lifetime(source, "at_most", (longest,))
    return source


# What is to be known of each kind of node


def _figures(
    node: Node, inputs: Sequence[Events], outcome: Events, span: tuple[int, int]
) -> Figures:
    match node:
        case logical.Select() | logical.FlatMap():
            part = len(outcome) / len(inputs[0]) if inputs[0] else None
            return Figures(selectivity=part)
        case logical.Join():
            return _of_join(node, inputs, span)
        case logical.SemiJoin(right=right, on=on) | logical.Clip(right=right, on=on):
            keys = _groups(right, [other for _, other in on], inputs[1])
            return Figures(groups=float(keys))
        case logical.MultisetOp():
            payloads = {each.payload for several in inputs for each in several}
            if node.function != "distinct":
                return Figures(groups=float(len(payloads)))
            pieces = unbroken(_stream(inputs[0], span), max(len(payloads), 1))
            return Figures(_part(outcome, pieces, span), groups=float(len(payloads)))
        case logical.Aggregate(of, by, cut=False):
            groups = _groups(of, by, inputs[0]) if by else 1
            pieces = aggregated(_stream(inputs[0], span), max(groups, 1))
            return Figures(_part(outcome, pieces, span), groups=float(groups))
        case (
            logical.Aggregate(of, by)
            | logical.Windows(of, by)
            | logical.SnapshotWindows(of, by)
            | logical.CountWindows(of, by)
            | logical.LastRows(of, by)
            | logical.GroupApply(of, by)
        ) if by:
            return Figures(groups=float(_groups(of, by, inputs[0])))
    return Figures()


def _groups(of: Node, names: Sequence[str], events: Events) -> int:
    return len(set(map(_columns(of, names), _payloads(events))))


def _part(outcome: Events, expected: Stream, span: tuple[int, int]) -> float | None:
    """How many events there are of those that a formula expects."""
    number = expected.rate * (span[1] - span[0])
    return len(outcome) / number if number >= 1 else None


def _of_join(node: logical.Join, inputs: Sequence[Events], span: tuple[int, int]) -> Figures:
    left, right = inputs
    mine = Counter(map(_columns(node.left, [one for one, _ in node.on]), _payloads(left)))
    theirs = Counter(map(_columns(node.right, [other for _, other in node.on]), _payloads(right)))
    if not left or not right:
        return Figures(groups=float(len(theirs)))
    equal = sum(number * theirs[key] for key, number in mine.items()) / len(left) / len(right)
    part = equal
    if node.where is not None:
        inner = msgspec.structs.replace(node, outer="")
        pairs, _ = _outcome(inner, inputs, lambda: 0)
        one, two = _stream(left, span), _stream(right, span)
        overlap = (one.length + two.length) * one.rate * two.rate * max(span[1] - span[0], 1)
        part = min(len(pairs) / overlap, 1.0)
    return Figures(selectivity=part, key_selectivity=equal, groups=float(len(theirs)))


def _payloads(events: Events) -> Iterable[Row]:
    return (each.payload for each in events)


def _columns(node: Node, names: Sequence[str]) -> Callable[[Row], Hashable]:
    schema = logical.schema_of(node)
    key: Callable[[Row], Hashable] = itemgetter(*(schema.position(name) for name in names))
    return key
