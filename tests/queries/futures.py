"""Search for legal futures of a stream: how tight an operator's stable point is."""

from collections.abc import Callable, Hashable, Iterator, Sequence

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.tdb import TDB
from tests.queries.streams import Feed


def next_elements(tdb: TDB, payloads: Sequence[Hashable], reach: int) -> Iterator[Element]:
    """Legal elements after a prefix: inserts and adjusts a little behind its stable."""
    point = max(tdb.stable, 0)
    for vs in range(point, point + reach):
        for payload in payloads:
            for length in (1, reach):
                yield Insert(payload, vs, vs + length)
    for payload, vs, ve in sorted(set(tdb), key=repr):
        if ve >= point:
            if vs >= point:
                yield Adjust(payload, vs, ve, vs)
            for end in range(max(point, vs + 1), point + reach):
                if end != ve:
                    yield Adjust(payload, vs, ve, end)


def sync(element: Element) -> int:
    if isinstance(element, Insert):
        return element.vs
    if isinstance(element, Adjust):
        return min(element.vold, element.ve)
    return element.vc


def share_tight(
    make: Callable[[], Operator],
    streams: Sequence[Sequence[Feed]],
    payloads: Sequence[Hashable],
    reach: int = 6,
    *,
    below: bool = False,
) -> float:
    """For which share of states, each behind a stable, some legal future of one element, and
    then stable(INFINITY), makes a change exactly at the announced stable point. With `below`, of
    those whose stable point is below the input's: more than that no output announces."""
    tight = states = 0
    for feeds in streams:
        operator, tdb = make(), TDB()
        for _, element in feeds:
            tdb.apply(element)
            operator.process(element)
            point = operator.stable
            capped = below and point == tdb.stable
            if type(element) is not Stable or capped or not START < point < INFINITY:
                continue
            states += 1
            saved = operator.snapshot()
            for future in next_elements(tdb, payloads, reach):
                other = make()
                other.restore(saved)
                emitted = [*other.process(future), *other.process(Stable(INFINITY))]
                changed = [sync(each) for each in emitted if type(each) is not Stable]
                assert all(at >= point for at in changed), (future, emitted, point)
                if point in changed:
                    tight += 1
                    break
    return tight / states
