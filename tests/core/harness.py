"""A merge that is watched: every promise of the operator is checked after every element."""

from collections.abc import Sequence

from lmerge_service.core import LMerge, lmerge
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, compatibility


class Watched:
    """Feeds an operator and holds it to its promises; inputs are known by name.

    `consistent=False` is for inputs that lie: then only promise 2 (the output is a legal stream)
    and the invariants are asserted.
    """

    def __init__(
        self, names: Sequence[str], *, consistent: bool = True, merge: LMerge | None = None
    ):
        self.merge = merge or lmerge()
        self.consistent = consistent
        self.inputs: dict[str, TDB] = {}
        self.output = TDB()
        self.emitted: list[Element] = []
        self.received: list[Element] = []
        for name in names:
            self.attach(name)

    def attach(self, name: str, joining_at: int = START) -> None:
        self.merge.attach(name, joining_at)
        self.inputs[name] = TDB()
        self.merge.check()

    def detach(self, name: str) -> None:
        self._take(self.merge.detach(name))
        del self.inputs[name]
        self.merge.check()

    def process(self, name: str, element: Element) -> list[Element]:
        self.received.append(element)
        if self.consistent:
            self.inputs[name].apply(element)
        out = self.merge.process(name, element)
        before = TDB(self.output, self.output.stable)
        self._take(out)
        self.merge.check()
        if self.consistent:
            self._is_compatible()
            self._is_economical(before, out)
            self._is_not_chatty()
            assert not self.merge.breaches(), "consistent inputs are not to blame"
        return out

    def _take(self, out: Sequence[Element]) -> None:
        for element in out:
            self.output.apply(element)  # promise 2: raises when the output contradicts itself
            if type(element) is Stable:
                assert element.vc == self.output.stable
        self.emitted += out
        assert self.merge.max_stable == self.output.stable

    def _is_compatible(self) -> None:
        """Promise 1: C1 to C3, by the judge that knows nothing of the algorithm."""
        broken = compatibility(list(self.inputs.values()), self.output)
        assert not broken, broken

    def _is_economical(self, before: TDB, out: Sequence[Element]) -> None:
        """Each adjust was forced: without it the output would not be compatible any more."""
        for skipped in out:
            if type(skipped) is not Adjust:
                continue
            without = TDB(before, before.stable)
            for element in out:
                if element is not skipped:
                    without.apply(element)
            assert compatibility(list(self.inputs.values()), without), f"{skipped} was not forced"

    def _is_not_chatty(self) -> None:
        """Promise 3."""
        received, emitted = _count(self.received), _count(self.emitted)
        assert emitted[Insert] <= received[Insert]
        assert emitted[Adjust] <= received[Insert] + received[Adjust]
        assert emitted[Stable] <= received[Stable]


def _count(elements: Sequence[Element]) -> dict[type, int]:
    return {kind: sum(type(e) is kind for e in elements) for kind in (Insert, Adjust, Stable)}
