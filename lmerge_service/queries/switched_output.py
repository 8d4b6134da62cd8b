"""The output of a query whose plan has been switched: it goes on, legally, as the new plan has it.

Theory
    Two plans of one query mean the same TDB. Let T be the output's stable point. Both agree before
    T; of the events with ve >= T the output holds what the old plan has emitted, and the new one,
    fed while nobody listened, has emitted what may be different in three ways:

        half frozen, vs < T   The start is final, but a plan whose starts are not exact (snapshot
                              aggregates, distinct, semi-joins) has another one, where older input
                              was missing. The new event is an *alias* of one that the output holds.
        later, vs >= T        Another end is adjusted, a missing event inserted.
        held, not computed    The old plan emits earlier than the new one. The event waits: the new
                              plan will emit it too, or by its stable show that there is none.

        the output   ins(p, 2, 9)  ins(q, 7, 12)  stable(6)        T = 6
        new plan     ins(p, 4, 8)                                  older input was missing
        emitted      adj(p, 2, 9→8)                                q waits
        new plan     ins(q, 7, 11)  adj(p, 4, 8→7)
        emitted      adj(p, 2, 8→7)  adj(q, 7, 12→11)

    At T - 1 both have as many events of a payload, so there is an alias for each, if not at once.
    Of several an event takes the one that it is itself; then one of the same start, if so every
    event finds one, else one of the same end, or start; and of those left the latest end takes the
    earliest start, as nested events have it. What waits unfrozen is in a merge (`core`) of one
    input, case R4, which corrects it at the latest by the stable that half freezes it.

    The new plan is fed from less input than the old one had, and may emit by another level, so its
    stable can be below T. Such stables are withheld, and what it emits of events that end before T
    is on the output already.

Invariants
    W1  What is emitted is a legal sequel to what was.
    W2  Where no payload is twice at one instant, the TDB in the end is the query's; elsewhere
        snapshots are: which of several equal events an alias is of is ambiguous.
    W3  What contradicts the output is not emitted, and counted: there is nothing of it while the
        plans mean the same, once the new plan's stable point has reached T.
    W4  Held are only aliases whose starts differ, events across T that wait, and keys of which the
        output has more events than were computed: nothing, as soon as these are final.

Cost
    At the switch O(live events). From then on a look-up per element; an alias O(log n).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from lmerge_service.core import Case, LMerge, Policy, lmerge, restore
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.netting import Data, net_change

__all__ = ("SwitchedOutput",)

_PLAN: Final = "plan"
"""The input of the merge."""

Held = dict[Insert[Any], int]
"""Events, and how often each."""


class SwitchedOutput:
    """What stands between the new plan and the output.

    >>> held = LiveEvents([("p", 2, 9), ("q", 7, 12)], stable=6)
    >>> output, emitted = SwitchedOutput.begun(held, LiveEvents([("p", 4, 8)], stable=6))
    >>> emitted
    [Adjust(payload='p', vs=2, vold=9, ve=8)]
    >>> output.process_batch([Adjust("p", 4, 8, 7), Insert("q", 7, 11)])
    [Adjust(payload='p', vs=2, vold=8, ve=7), Adjust(payload='q', vs=7, vold=12, ve=11)]
    >>> output.process_batch([Stable(20)]), output.is_over
    ([Stable(vc=20)], True)
    """

    def __init__(self, since: int, skip: int = START) -> None:
        self.since = since
        """T of the module's text."""
        self._skip = skip
        self._stable = since
        self._across = _Across(since, skip)
        self._merge: LMerge | None = None

    @classmethod
    def begun(
        cls, held: LiveEvents, computed: LiveEvents, skip: int = START
    ) -> tuple["SwitchedOutput", list[Data]]:
        """`held` is what the output holds, with its stable point, `computed` what the new plan has
        emitted so far. Either may lack events with a final ve below `skip`. Also returns what makes
        the output, in the fewest elements, the new plan's, but for events that wait."""
        output = cls(held.stable, skip)
        old, new = held.counted(), computed.counted()
        changes: list[Data] = []
        if old != new:
            output._compare(_less(old, new), _less(new, old), old, new, changes)
        return output, net_change(changes)

    def __len__(self) -> int:
        """How many entries of state are held."""
        return len(self._across) + (len(self._merge) if self._merge is not None else 0)

    @property
    def is_over(self) -> bool:
        """Whether the new plan's elements can go to the output as they are, once its stable point
        has reached T."""
        return not len(self)

    @property
    def contradictions(self) -> int:
        """How many events of the new plan contradict the output (W3)."""
        return self._across.contradictions

    def process_batch(self, elements: Iterable[Element]) -> list[Element]:
        """Takes what the new plan emits; returns what the output emits."""
        since, merge = self.since, self._merge
        stable: Stable | None = None
        across: list[Data] = []
        waiting: list[Element] = []
        changes: list[Data] = []
        for element in elements:
            if type(element) is Stable:
                stable = element
            elif element.vs < since:  # type: ignore[union-attr]
                across.append(element)  # type: ignore[arg-type]
            elif merge is not None and merge.output_ends(element.payload, element.vs):  # type: ignore[union-attr]
                waiting.append(element)
            else:
                changes.append(element)  # type: ignore[arg-type]
        if across:
            self._across.apply(across, changes)
        if stable is not None:
            if stable.vc >= since:
                self._across.pass_stable(stable.vc)
            stable = stable if stable.vc > self._stable else None
        if merge is not None:
            if stable is not None:
                waiting.append(stable)
            emitted = merge.process_batch(_PLAN, waiting)
            changes += [each for each in emitted if type(each) is not Stable]  # type: ignore[misc]
        netted: list[Element] = [*net_change(changes)]
        if stable is not None:
            self._stable = stable.vc
            netted.append(stable)
        return netted

    def _compare(self, gone: Held, come: Held, old: Held, new: Held, changes: list[Data]) -> None:
        """Has the output be as computed; `gone` is what it has more, `come` what it has less."""
        since = self.since
        self._across.hold(event for event in _each(gone) if event.vs < since)
        self._across.apply([event for event in _each(come) if event.vs < since], changes)
        counts: defaultdict[tuple[Hashable, int], int] = defaultdict(int)
        for sign, events in ((1, gone), (-1, come)):
            for event, times in events.items():
                if event.vs >= since:
                    counts[event.payload, event.vs] += sign * times
        waiting = {key for key, more in counts.items() if more > 0}
        if waiting:
            self._wait(waiting, old, new, changes)
        changes += [
            Adjust(event.payload, event.vs, event.ve, event.vs)
            for event in _each(gone)
            if event.vs >= since and (event.payload, event.vs) not in waiting
        ]
        changes += [
            event
            for event in _each(come)
            if event.vs >= since and (event.payload, event.vs) not in waiting
        ]

    def _wait(
        self, keys: set[tuple[Hashable, int]], old: Held, new: Held, changes: list[Data]
    ) -> None:
        """Has the output's events of these keys wait for what the plan will emit of them."""
        self._merge = lmerge(Case.R4, Policy(adjust="eager"))
        begun = [event for event in _each(old) if (event.payload, event.vs) in keys]
        self._merge.replay_output(begun)
        if self.since > START:
            self._merge.replay_output([Stable(self.since)])
        self._merge.attach(_PLAN, joining_at=self.since)
        known = [event for event in _each(new) if (event.payload, event.vs) in keys]
        changes += self._merge.process_batch(_PLAN, known)  # type: ignore[arg-type]

    def state(self) -> Any:
        """What msgpack can carry of it.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        merge = None if self._merge is None else self._merge.snapshot()
        return [self.since, self._skip, self._stable, self._across.state(), merge]

    @classmethod
    def loaded(cls, state: Any) -> "SwitchedOutput":
        """What `state` was made of.

        Raises:
            StateError: the bytes are damaged.
        """
        since, skip, stable, across, merge = state
        output = cls(since, skip)
        output._stable = stable
        output._across.load(across)
        output._merge = None if merge is None else restore(merge)
        return output

    def check(self) -> None:
        """Asserts the invariants, and that nothing has contradicted the output."""
        self._across.check()
        assert not self.contradictions, "W3: the plan contradicts the output"
        if self._merge is not None:
            self._merge.check()
            assert not self._merge.breaches(), "W3: the plan contradicts what waits"


_Lifetime: TypeAlias = tuple[int, int]
_Places: TypeAlias = list[tuple[_Lifetime, _Lifetime | None]]
_START: Final = itemgetter(0)
_END: Final = itemgetter(1)


class _Alias(NamedTuple):
    """An event of the new plan that has another start on the output."""

    ve: int
    start: int


class _Across:
    """The events across T: aliases, and what the output holds and the new plan has not emitted."""

    def __init__(self, since: int, skip: int) -> None:
        self._since = since
        self._skip = skip
        self._is_whole = False
        """Whether the new plan's stable point has reached T."""
        self.contradictions = 0
        self._waiting: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        """By payload: (start, end) of the output's events that wait."""
        self._aliases: dict[tuple[Hashable, int], list[_Alias]] = {}
        """By payload and the new plan's start."""
        self._surplus: dict[Hashable, list[_Lifetime]] = {}
        """By payload: events of the new plan, across T, for which there is no place."""
        self._expiry: Expiry[tuple[Hashable, int]] = Expiry()
        """The keys of aliases, by their first ends."""

    def __len__(self) -> int:
        return len(self._aliases) + len(self._waiting) + len(self._surplus)

    def hold(self, events: Iterable[Insert[Any]]) -> None:
        """Takes events of the output that the new plan has not, or not as they are."""
        for event in events:
            self._waiting[event.payload].append((event.vs, event.ve))

    def apply(self, data: Iterable[Data], changes: list[Data]) -> None:
        """Takes net changes by the new plan of events with vs < T; appends those of the output."""
        since = self._since
        begun: defaultdict[Hashable, list[_Lifetime]] = defaultdict(list)
        for each in data:
            has = each.ve >= since and each.ve > each.vs
            if type(each) is Adjust and each.vold >= since:
                self._revise(each, has, changes)
                if each.payload in self._surplus and not has:
                    begun[each.payload] += ()
            elif has:
                begun[each.payload].append((each.vs, each.ve))
        # What the batch has set free may be what it continues: hence afterwards.
        for payload, events in begun.items():
            self._continue(payload, [*events, *self._surplus.pop(payload, ())], changes)

    def _revise(self, change: Adjust[Any], stays: bool, changes: list[Data]) -> None:
        payload, vs, vold, ve = change.payload, change.vs, change.vold, change.ve
        start, surplus = vs, self._surplus.get(payload, [])
        aliases = self._aliases.get((payload, vs), [])
        at = next((n for n, alias in enumerate(aliases) if alias.ve == vold), None)
        if at is not None:
            start = aliases.pop(at).start
            if not aliases:
                del self._aliases[payload, vs]
                self._expiry.cancel((payload, vs))
        elif (vs, vold) in surplus:
            surplus.remove((vs, vold))
            if stays:
                surplus.append((vs, ve))
            elif not surplus:
                del self._surplus[payload]
            return
        if not stays:
            self._waiting[payload].append((start, vold))
            return
        changes.append(Adjust(payload, start, vold, ve))
        if start != vs:
            self._alias(payload, vs, _Alias(ve, start))

    def _continue(self, payload: Hashable, events: list[_Lifetime], changes: list[Data]) -> None:
        """New events, each in the place of one that waits."""
        waiting = self._waiting.pop(payload, ())
        if len(waiting) == len(events) == 1:  # nothing to choose, as for most keys of many
            self._adopt(payload, waiting[0], events[0], changes)
            return
        come = Counter(events)
        for place, event in _places(Counter(waiting), come):
            if event is None:
                self._waiting[payload].append(place)
            else:
                self._adopt(payload, place, event, changes)
        if come:
            self._surplus[payload] = list(come.elements())

    def _adopt(
        self, payload: Hashable, place: _Lifetime, event: _Lifetime, changes: list[Data]
    ) -> None:
        """Has an event of the new plan continue one that waits."""
        start, end = place
        vs, ve = event
        changes.append(Adjust(payload, start, end, ve))
        if start != vs:
            self._alias(payload, vs, _Alias(ve, start))

    def _alias(self, payload: Hashable, vs: int, alias: _Alias) -> None:
        self._aliases.setdefault((payload, vs), []).append(alias)
        self._expiry.schedule((payload, vs), alias.ve)

    def pass_stable(self, point: int) -> None:
        """The new plan's stable point, T or later: what it has across T is what the query has."""
        skip, surplus = self._skip, self._surplus
        if not self._is_whole:
            unmatched = [*self._waiting.values(), *surplus.values()]
            self.contradictions += sum(ve >= skip for events in unmatched for _, ve in events)
            self._waiting.clear()
            self._is_whole = True
        if surplus:
            kept = {p: [each for each in of if each[1] >= point] for p, of in surplus.items()}
            self._surplus = {payload: of for payload, of in kept.items() if of}
        if point == INFINITY:
            self._surplus.clear()
            self._aliases.clear()
            self._expiry.clear()
        for key in self._expiry.before(point):
            left = [alias for alias in self._aliases[key] if alias.ve >= point]
            if left:
                self._aliases[key] = left
                self._expiry.schedule(key, min(alias.ve for alias in left))
            else:
                del self._aliases[key]

    def state(self) -> Any:
        waiting = [[portable(payload), places] for payload, places in self._waiting.items()]
        aliases = [[portable(payload), vs, of] for (payload, vs), of in self._aliases.items()]
        surplus = [[portable(payload), events] for payload, events in self._surplus.items()]
        return [waiting, aliases, surplus, self._is_whole, self.contradictions]

    def load(self, state: Any) -> None:
        waiting, aliases, surplus, self._is_whole, self.contradictions = state
        for payload, events in surplus:
            self._surplus[hashable(payload)] = [(vs, ve) for vs, ve in events]
        for payload, places in waiting:
            self._waiting[hashable(payload)] = [(start, end) for start, end in places]
        for payload, vs, of in aliases:
            for ve, start in of:
                self._alias(hashable(payload), vs, _Alias(ve, start))

    def check(self) -> None:
        self._expiry.check()
        for key, aliases in self._aliases.items():
            assert aliases, f"W4: {key} has no alias"
            assert key[1] < self._since, f"W4: {key} is not across T"
            assert all(alias.start != key[1] for alias in aliases), f"W4: {key} needs no alias"
            least = min(alias.ve for alias in aliases)
            assert self._expiry.due(key) <= least, f"W4: {key} is forgotten too late"
        for payload in self._waiting.keys() | self._surplus.keys():
            found = (self._waiting.get(payload), self._surplus.get(payload))
            assert [] not in found, f"W4: nothing is held of {payload!r}"
            assert None in found, f"W4: {payload!r} waits, and there is what continues it"


def _places(held: Counter[_Lifetime], come: Counter[_Lifetime]) -> _Places:
    """The (start, end) of each event that is held, and of the one that continues it, None if none
    does; takes these out of `come`."""
    both = held & come
    held, rest = held - both, come - both
    found: _Places = [(event, event) for event in both.elements()]
    starts = Counter(vs for vs, _ in rest.elements())
    by = [_START, _END] if starts <= Counter(vs for vs, _ in held.elements()) else [_END, _START]
    for of in by:
        found += _alike(held, rest, of)
    places = sorted(held.elements())
    events = sorted(rest.elements(), key=lambda event: (-event[1], event[0]))
    found += zip_longest(places, events[: len(places)])
    come.clear()
    come.update(events[len(places) :])
    return found


def _alike(
    held: Counter[_Lifetime], come: Counter[_Lifetime], of: Callable[[_Lifetime], int]
) -> _Places:
    """What is alike in start, or in end; takes it out of both."""
    by: defaultdict[int, list[_Lifetime]] = defaultdict(list)
    for place in sorted(held.elements(), reverse=True):
        by[of(place)].append(place)
    found: _Places = []
    for event in sorted(come.elements()):
        if places := by.get(of(event)):
            found.append((places.pop(), event))
    held.subtract(place for place, _ in found)
    come.subtract(event for _, event in found if event is not None)
    return found


def _less(many: Held, few: Held) -> Held:
    """What one has more often than the other, and how much more."""
    return {event: more for event, times in many.items() if (more := times - few.get(event, 0)) > 0}


def _each(events: Held) -> Iterable[Insert[Any]]:
    return (event for event, times in events.items() for _ in range(times))
