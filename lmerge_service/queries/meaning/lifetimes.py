"""Functions of lifetimes, over whole temporal databases.

`granule`, `slide`, `split` and `cut` have no operator: the thesis has them, and tests compare.
"""

from collections.abc import Callable

from lmerge_service.elements import INFINITY
from lmerge_service.tdb import TDB

__all__ = (
    "at_most",
    "cut",
    "deletes",
    "ends",
    "extend",
    "granule",
    "hop",
    "inserts",
    "last",
    "quantise",
    "shift",
    "shorten",
    "slide",
    "split",
    "starts",
    "window",
)


def window(tdb: TDB, width: int) -> TDB:
    """[vs, vs + width): what began within the last `width`."""
    return _altered(tdb, lambda vs, ve: (vs, vs + width))


def shift(tdb: TDB, by: int) -> TDB:
    """[vs + by, ve + by)."""
    return _altered(tdb, lambda vs, ve: (vs + by, _plus(ve, by)))


def extend(tdb: TDB, by: int) -> TDB:
    """[vs, ve + by)."""
    return _altered(tdb, lambda vs, ve: (vs, _plus(ve, by)))


def shorten(tdb: TDB, by: int) -> TDB:
    """[vs, ve - by)."""
    return _altered(tdb, lambda vs, ve: (vs, _plus(ve, -by)))


def at_most(tdb: TDB, length: int) -> TDB:
    """[vs, min(ve, vs + length))."""
    return _altered(tdb, lambda vs, ve: (vs, min(ve, vs + length)))


def hop(tdb: TDB, every: int, width: int) -> TDB:
    """[⌊vs/every⌋·every, the same + width)."""
    return _altered(tdb, lambda vs, ve: (vs // every * every, vs // every * every + width))


def quantise(tdb: TDB, grid: int) -> TDB:
    """[⌊vs/grid⌋·grid, ⌈ve/grid⌉·grid): all of the grid that it touches."""
    return _altered(tdb, lambda vs, ve: (vs // grid * grid, _up(ve, grid)))


def granule(tdb: TDB, grid: int) -> TDB:
    """[⌈vs/grid⌉·grid, ⌈ve/grid⌉·grid): what a snapshot at the points of the grid shows."""
    return _altered(tdb, lambda vs, ve: (_up(vs, grid), _up(ve, grid)))


def slide(tdb: TDB, width: int, every: int) -> TDB:
    """A moving window whose snapshot changes at the last instant of each `every` only."""
    return _altered(
        tdb,
        lambda vs, ve: (_up(vs + 1, every) - 1, (vs + width + every) // every * every - 1),
    )


def inserts(tdb: TDB) -> TDB:
    """[vs, INFINITY)."""
    return _altered(tdb, lambda vs, ve: (vs, INFINITY))


def starts(tdb: TDB) -> TDB:
    """[vs, vs + 1)."""
    return _altered(tdb, lambda vs, ve: (vs, vs + 1))


def ends(tdb: TDB) -> TDB:
    """[ve, ve + 1)."""
    return _altered(tdb, lambda vs, ve: (ve, _plus(ve, 1)))


def deletes(tdb: TDB) -> TDB:
    """[ve, INFINITY)."""
    return _altered(tdb, lambda vs, ve: (ve, INFINITY))


def last(tdb: TDB) -> TDB:
    """[ve - 1, ve)."""
    return _altered(tdb, lambda vs, ve: (_plus(ve, -1), ve))


def split(tdb: TDB, length: int) -> TDB:
    """Pieces of at most `length`, from each event's own start; ends must be finite."""
    return TDB(
        (p, t, min(t + length, ve)) for p, vs, ve in tdb for t in range(vs, ve, length)
    )  # fmt: skip


def cut(tdb: TDB, grid: int) -> TDB:
    """Pieces cut at the points of a grid, wherever an event starts; ends must be finite."""
    return TDB(
        (p, max(t, vs), min(t + grid, ve))
        for p, vs, ve in tdb
        for t in range(vs // grid * grid, ve, grid)
    )


def _altered(tdb: TDB, image: Callable[[int, int], tuple[int, int]]) -> TDB:
    images = ((p, *image(vs, ve)) for p, vs, ve in tdb)
    return TDB((p, a, b) for p, a, b in images if a < b)


def _plus(t: int, by: int) -> int:
    return t if t == INFINITY else t + by


def _up(t: int, grid: int) -> int:
    return t if t == INFINITY else -(-t // grid) * grid
