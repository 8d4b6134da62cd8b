"""What two operators are given, one beside the other: streams that obey, break rules, and lie."""

from random import Random

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable

PAYLOADS = (b'"a"', b'"b"', b'"c"')
NAMES = ("x", "y", "z", "w")


class Script:
    """Draws what happens next, of little variety, so that elements meet."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._horizon = rng.choice((8, 14, 30))

    def elements(self) -> list[Element]:
        return [self._element() for _ in range(self.rng.choice((1, 2, 5, 9)))]

    def joining(self) -> int:
        return self.rng.choice((START, START, self.rng.randrange(self._horizon)))

    def _element(self) -> Element:
        rng = self.rng
        draw, payload, vs = rng.random(), rng.choice(PAYLOADS), rng.randrange(self._horizon)
        ends = [INFINITY, *(vs + rng.randrange(8) for _ in range(9))]
        if draw < 0.45:
            return Insert(payload, vs, rng.choice(ends))
        if draw < 0.8:
            return Adjust(payload, vs, rng.choice(ends), rng.choice([vs, *ends]))
        return Stable(INFINITY if rng.random() < 0.05 else rng.randrange(self._horizon))
