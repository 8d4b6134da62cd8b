"""LMR4 in its simplest form: no index, every key looked at at every stable. Never optimised.

What an operator must emit is decided here from the bare rules of docs/semantics.md, so that the
real one, with its heaps and counts, can be held to it."""

from collections import Counter

from lmerge_service.elements import START, Adjust, Element, Insert, Stable

Key = tuple[object, int]


class Oracle:
    def __init__(self, joining: dict[str, int]):
        self.joining = joining  # name -> joining_at, in the order of attaching
        self.stable = dict.fromkeys(joining, START)
        self.last = START  # the output's stable point
        self.ends: dict[str, dict[Key, Counter[int]]] = {name: {} for name in joining}
        self.out: dict[Key, Counter[int]] = {}  # what is final stays in it

    def process(self, name: str, e: Element) -> list[Element]:
        if isinstance(e, Stable):
            self.stable[name] = max(self.stable[name], e.vc)
            return self._lead()
        key = (e.payload, e.vs)
        held = self.ends[name].setdefault(key, Counter())
        out = self.out.setdefault(key, Counter())
        if isinstance(e, Insert):
            if e.vs >= self.stable[name]:
                held[e.ve] += 1
                if e.vs >= self.last and held.total() > out.total():
                    out[e.ve] += 1
                    return [e]
        elif min(e.vold, e.ve) >= self.stable[name] and held[e.vold]:
            held[e.vold] -= 1
            held[e.ve] += e.ve > e.vs
        return []

    def _lead(self) -> list[Element]:
        emitted: list[Element] = []
        while True:
            joined = [n for n, t in self.joining.items() if t <= self.last]
            leader = max(joined, key=lambda n: self.stable[n], default=None)
            if leader is None or self.stable[leader] <= self.last:
                return emitted
            t = self.stable[leader]
            for key in [key for key in self.out if key[1] < t]:
                emitted += self._agree(key, leader, t)
            self.last = t
            emitted.append(Stable(t))

    def _live(self, name: str, key: Key) -> Counter[int]:
        ends = self.ends[name].get(key, Counter())
        return Counter({ve: n for ve, n in ends.items() if ve >= self.last and n > 0})

    def _agree(self, key: Key, leader: str, t: int) -> list[Element]:
        payload, vs = key
        out = Counter({ve: n for ve, n in self.out[key].items() if ve >= self.last and n > 0})
        follow: Counter[int] | None = self._live(leader, key)
        if vs < self.last and self._live(leader, key).total() != out.total():
            joined = [n for n, at in self.joining.items() if at <= self.last]
            same = [n for n in joined if self._live(n, key).total() == out.total()]
            best = max(same, key=lambda n: self.stable[n], default=None)
            follow = None if best is None else self._live(best, key)
        if follow is None:
            return []
        emitted: list[Element] = []
        surplus = sorted((out - follow).elements())
        missing = sorted((follow - out).elements())
        while len(surplus) > len(missing):
            emitted.append(Adjust(payload, vs, surplus.pop(0), vs))
        while len(missing) > len(surplus):
            emitted.append(Insert(payload, vs, missing.pop(0)))
        for vold, ve in zip(surplus, missing, strict=True):
            if min(vold, ve) < t:
                emitted.append(Adjust(payload, vs, vold, ve))
        for e in emitted:
            assert not isinstance(e, Stable)
            self.out[key][e.vold if isinstance(e, Adjust) else e.ve] -= isinstance(e, Adjust)
            self.out[key][e.ve] += e.ve > e.vs
        return emitted
