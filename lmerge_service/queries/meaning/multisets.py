"""The functions of multiplicities, over whole temporal databases: canonical layers."""

from collections.abc import Callable

from lmerge_service.tdb import TDB

__all__ = ("HEIGHTS", "combined")

HEIGHTS: dict[str, Callable[..., int]] = {
    "coalesce": lambda f: f,
    "distinct": lambda f: min(f, 1),
    "union_max": max,
    "except_all": lambda f, g: max(0, f - g),
    "except": lambda f, g: int(f > 0 and g == 0),
    "intersect_all": min,
    "intersect": lambda f, g: int(f > 0 and g > 0),
}
"""How often a payload is valid at an instant, by how often it is in each input."""


def combined(combine: str, *tdbs: TDB) -> TDB:
    """Per payload the maximal intervals of {t : g(t) >= k} for k = 1, 2, …, g(t) being what
    `combine` makes of the numbers of its events that are valid at t."""
    found = []
    for payload in {event.payload for tdb in tdbs for event in tdb}:
        sides = [[(vs, ve) for p, vs, ve in tdb if p == payload] for tdb in tdbs]
        times = sorted({t for side in sides for span in side for t in span})
        heights = [
            HEIGHTS[combine](*(sum(vs <= t < ve for vs, ve in side) for side in sides))
            for t in times
        ]
        for k in range(1, max(heights) + 1):
            begun = None
            for t, height in zip(times, heights, strict=True):
                if height >= k and begun is None:
                    begun = t
                elif height < k and begun is not None:
                    found.append((payload, begun, t))
                    begun = None
    return TDB(found)
