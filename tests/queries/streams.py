"""Random legal streams for operators: one generator for all.

Small domains (times 0 to 14, two or three payloads, a dozen elements) find almost everything.
"""

from collections.abc import Hashable, Sequence
from random import Random

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB

Feed = tuple[int, Element]
"""An element and the port that it enters by."""


def legal_stream(
    rng: Random,
    *,
    payloads: Sequence[Hashable] = ("a", "b", "c"),
    length: int = 12,
    horizon: int = 14,
    endless: bool = True,
    duplicates: bool = True,
    adjusts: bool = True,
    ordered: bool = False,
    points: bool = False,
    close: bool = True,
) -> list[Element]:
    """A legal stream: inserts; adjusts that shrink, grow, remove and touch ve = c; stables of any
    cadence; at the end, with `close`, stable(INFINITY).

    `endless` allows ends at INFINITY, `duplicates` equal (payload, vs), `ordered` makes vs never
    fall, `points` makes every event [vs, vs + 1).
    """
    stream: list[Element] = []
    tdb = TDB()
    front = 0

    def emit(element: Element) -> None:
        tdb.apply(element)
        stream.append(element)

    for _ in range(rng.randrange(length + 1)):
        point = max(tdb.stable, 0)
        draw = rng.random()
        movable = [e for e in tdb if e.ve >= point] if adjusts and not points else []
        if draw < 0.2:
            emit(Stable(min(point + rng.choice((0, 1, 1, 2, 3, 5)), horizon + 3)))
        elif draw < 0.5 and movable:
            payload, vs, ve = rng.choice(sorted(movable, key=repr))
            ends = [t for t in range(max(point, vs), horizon + 3) if t != ve]
            if endless and ve != INFINITY:
                ends.append(INFINITY)
            if vs >= point and rng.random() < 0.3:
                ends = [vs]
            if ends:
                emit(Adjust(payload, vs, ve, rng.choice(ends)))
        else:
            least = max(point, front) if ordered else point
            vs = least + rng.randrange(max(horizon - least, 1))
            if ordered:
                vs = least + rng.choice((0, 0, 1, 1, 2, 4))
                front = vs
            payload = rng.choice(payloads)
            if not duplicates and any(e.payload == payload and e.vs == vs for e in tdb):
                continue
            ve = INFINITY if endless and rng.random() < 0.1 else vs + rng.choice((1, 1, 2, 3, 5, 8))
            emit(Insert(payload, vs, vs + 1 if points else ve))
    if close:
        emit(Stable(INFINITY))
    return stream


def interleaved(rng: Random, *streams: Sequence[Element]) -> list[Feed]:
    """The elements of several streams, each in its own order, in any order of streams."""
    left = [list(stream) for stream in streams]
    feeds: list[Feed] = []
    while any(left):
        port = rng.choice([p for p, stream in enumerate(left) if stream])
        feeds.append((port, left[port].pop(0)))
    return feeds


def without_revisions(stream: Sequence[Element]) -> list[Element]:
    """The stream of the final events: the same TDB by inserts alone, in order of vs."""
    final = TDB()
    for element in stream:
        final.apply(element)
    inserts = sorted((Insert(*event) for event in final), key=lambda e: (e.vs, repr(e.payload)))
    return [*inserts, Stable(INFINITY)]
