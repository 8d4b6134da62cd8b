"""A query whose result has equal events (case R4): its facts, in the order of their times, and what
it means over them.

Each event of the logical stream becomes two facts, that it has begun and that it has ended. The
query makes one event of both, and leaves of it only a gate and a grid of times. So its result is a
bag: several events are equal, and a record that is there twice cannot be distinguished from one
that is to be there. `lives` computes the same from the stream, in three lines and without the
algebra.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import facts
from lmerge_service.workloads.lifetime import Life

__all__ = ("FACTS", "LATENESS", "facts_of", "lives", "present")

FACTS: Final = "facts"
LATENESS: Final = 200
"""Milliseconds."""
_GATES: Final = 3
_GRID: Final = 200
_LONGEST: Final = 60_000

_known = facts(
    FACTS,
    time="time",
    ends=col.fact == "end",
    lateness=LATENESS,
    fields={"fact": str, "event": int, "gate": int},
)

present = (
    _known.where(col.fact == "begun")
    .extend(_LONGEST)
    .clip(_known.where(col.fact == "ended"), on="event")
    .select("gate")
    .quantise(_GRID)
)


def facts_of(stream: Iterable[Life]) -> Iterator[dict[str, Any]]:
    """The facts about the events of a stream, in the order of their times; never further ahead of
    what is taken than one event."""
    ends = list[tuple[int, int]]()
    for number, life in enumerate(stream):
        while ends and ends[0][0] <= life.vs:
            yield _ended(*heapq.heappop(ends))
        yield {"fact": "begun", "time": life.vs, "event": number, "gate": _gate(life)}
        heapq.heappush(ends, (life.ve, number))
    while ends:
        yield _ended(*heapq.heappop(ends))


def _ended(time: int, number: int) -> dict[str, Any]:
    return {"fact": "ended", "time": time, "event": number, "gate": None}


def lives(stream: Iterable[Life]) -> Iterator[Life]:
    """What the query means.

    >>> list(lives([Life(b'{"data":"c","key":7}', 1_250, (2_250,))]))
    [Life(payload=b'{"gate":1}', vs=1200, ends=(2400,))]
    """
    for life in stream:
        begin, end = life.vs // _GRID * _GRID, -(-life.ve // _GRID) * _GRID
        yield Life(b'{"gate":%d}' % _gate(life), begin, (end,))


def _gate(life: Life) -> int:
    assert isinstance(life.payload, bytes)
    key: int = msgspec.json.decode(life.payload)["key"]
    return key % _GATES
