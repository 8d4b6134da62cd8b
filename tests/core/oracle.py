"""LMR3 in its simplest form: no index, every event looked at at every stable. Never optimised.

What an operator must emit is decided here from the bare rules of docs/semantics.md, so that the
real one, with its heaps and counts, can be held to it."""

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable


class Oracle:
    def __init__(self, joining: dict[str, int]):
        self.joining = joining  # name -> joining_at, in the order of attaching
        self.stable = dict.fromkeys(joining, START)
        self.last = START  # the output's stable point
        self.ends: dict[tuple[object, int], dict[str, int]] = {}
        self.out: dict[tuple[object, int], int] = {}

    def process(self, name: str, e: Element) -> list[Element]:
        if isinstance(e, Stable):
            self.stable[name] = max(self.stable[name], e.vc)
            return self._lead()
        key = (e.payload, e.vs)
        if isinstance(e, Insert):
            if e.vs < self.stable[name] or (e.vs < self.last and key not in self.out):
                return []
            self.ends.setdefault(key, {})[name] = e.ve
            if key in self.out:
                return []
            self.out[key] = e.ve
            return [e]
        known = key in self.out or e.vs >= self.last
        if min(e.vold, e.ve) >= self.stable[name] and known and not self._is_over(key, name):
            self.ends.setdefault(key, {})[name] = e.ve
            if e.ve == e.vs:
                del self.ends[key][name]
        return []

    def _is_over(self, key: tuple[object, int], name: str) -> bool:
        """The input's own stable has made final that the event has ended, or is not there."""
        held, vs = self.ends.get(key, {}).get(name), key[1]
        if held is not None:
            return held < self.stable[name]
        return vs < self.stable[name] and not (key in self.out and vs < self.last)

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

    def _agree(self, key: tuple[object, int], leader: str, t: int) -> list[Element]:
        payload, vs = key
        ends, out = self.ends.get(key, {}), self.out[key]
        follow = ends.get(leader, vs if vs >= self.last else None)
        if follow is None or (follow < self.last and follow != vs):
            legal = [n for n, t in self.joining.items() if ends.get(n, START) >= max(self.last, t)]
            rank = {n: (self.joining[n] <= self.last, self.stable[n]) for n in legal}
            follow = ends[max(legal, key=rank.__getitem__)] if legal else out
        forced = follow < t or out < t or t == INFINITY
        self.out[key] = now = follow if forced else out
        if now < t or t == INFINITY:
            del self.out[key]
        return [Adjust(payload, vs, out, now)] if now != out else []
