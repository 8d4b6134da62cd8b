"""A checkpoint: what a stream meant up to some time, as the beginning of another replica's topic.

Theory
    A stream that was recorded up to stable(t) tells every event that ends at t or later, and what
    is before t is final. So a replica that begins with these events, and goes on with what the
    query says after them, is correct from t on (V-B), and need not wait until every event that
    it has not seen beginning has ended:

        recorded    ins(p, 1, 5)  ins(q, 2, 9)  stable(7)  ins(r, 8, 12)
        beginning   ins(q, 2, 9)  ins(r, 8, 12)  stable(7)          correct from 7 on
"""

from collections.abc import Iterable, Iterator

from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, IllegalStreamError
from lmerge_service.tdb import TDB

__all__ = ("beginning", "checkpoint")


def checkpoint(name: str, elements: Iterable[tuple[int, Element]]) -> TDB:
    """What a recorded stream, of which `name` is told, holds at its last stable; lines are given
    with the elements.

    Raises:
        IllegalStreamError: it is no stream, with the line.
        ConfigurationError: nothing in it is final, or all is.
    """
    tdb = TDB()
    for line, element in elements:
        try:
            tdb.apply(element)
        except IllegalStreamError as error:
            raise IllegalStreamError(f"{name}:{line}: {error}") from None
    if tdb.stable == START:
        raise ConfigurationError(f"{name} has no stable: there is no time from which it is correct")
    if tdb.stable == INFINITY:
        raise ConfigurationError(f"{name} has ended: there is nothing to go on with")
    return tdb


def beginning(tdb: TDB) -> Iterator[Element]:
    """The elements with which a replica begins that is correct from the stable point on.

    >>> list(beginning(TDB([("p", 1, 5), ("r", 8, 12), ("q", 2, 9)], stable=7)))
    [Insert(payload='q', vs=2, ve=9), Insert(payload='r', vs=8, ve=12), Stable(vc=7)]
    """
    for payload, vs, ve in sorted(tdb, key=lambda each: each.vs):
        if ve >= tdb.stable:
            yield Insert(payload, vs, ve)
    yield Stable(tdb.stable)
