"""Who merges what: the tasks of a merge shared out among its workers, as a pure function.

Theory
    A task that moves to a member that does not follow it stands still for a whole recovery; one
    that stays, or goes to a warm standby, does not. So each task has a *home*, where balance wants
    it, and a *holder*, who merges it now. A home that is cold is *promised* the task: it follows
    it as a standby, and gets it at the first sharing at which it is warm.

    `a` owns four tasks, `b` joins and follows nothing. Two are promised to it; `a` goes on.

    >>> a, b = Member("a", generation=1, active={0, 1, 2, 3}), Member("b")
    >>> before = share({"a": a, "b": b}, 4)
    >>> before["a"].active, before["b"].promised, before["b"].standby
    ([0, 1, 2, 3], [0, 1], [0, 1, 2, 3])

    Once it is warm, it gets them, and `a`, which has their state, stands by.

    >>> b = Member("b", standby={0, 1, 2, 3}, promised={0, 1}, warm={0: 5, 1: 0})
    >>> after = share({"a": a, "b": b}, 4)
    >>> after["a"].active, after["b"].active, after["a"].standby
    ([2, 3], [0, 1], [0, 1])

    Homes are among the members that are not standby_only, as long as there is one. They are found
    by sticking (a task's owner is its home), then by warmth (a task without owner goes to a warm
    member, else to one that follows it, else to the least loaded), then by moving tasks from the
    most to the least loaded until they differ by one at the most, first those whose owner is gone,
    and of these or of the others those for which the receiver is warm.

    A holder is the home if it owns the task or is warm for it, else the owner if it is there, else
    any warm member, standby_only or not; if nobody is warm, the home recovers it.

Invariants
    S1  Every task has one holder. Its standbys are other members: as many as are asked for (or
        there are), and beside them the one that it is promised to. If none is asked for, members
        that hold nothing and are promised nothing have nothing better to do: one of them is.
    S2  Homes differ by at most one in number among those that may be homes. While owners do,
        nothing moves from an owner that is there and may be a home; so one that joins is given as
        many as balance wants, and when one leaves, only its own move.
    S3  A standby_only member holds a task only while no other member is warm for it.
    S4  The same members give the same shares, in whatever order they come.
    S5  Sharing again, when nothing changed but that the shares were taken, changes nothing.

Cost
    O(tasks · members), and O(tasks + members) more for each task that moves. Of 1,000 tasks and 20
    members: 30 ms when nothing moves, 140 ms when all tasks are one member's.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

__all__ = ("Member", "Share", "share")


class Member(msgspec.Struct, frozen=True):
    """A member's metadata in its join request."""

    worker: str
    """Its name for people; sharing is settled by it too."""
    standby_only: bool = False
    generation: int = -1
    """That of the sharing that gave it `active`; of two claims to a task the later one counts."""
    active: set[int] = set()
    standby: set[int] = set()
    promised: set[int] = set()
    """Its share by that sharing."""
    warm: dict[int, int] = {}
    """Those that it could take over at once: how far behind it is, in any unit that all share."""

    def follows(self, task: int) -> bool:
        """Whether it leads the task, stands by for it, or has its state."""
        return task in self.active or task in self.standby or task in self.warm


class Share(msgspec.Struct, frozen=True):
    """What a member is to do; tasks in order."""

    active: list[int]
    standby: list[int]
    promised: list[int]
    """Those of `standby` that become active once they are warm."""


def share(members: Mapping[str, Member], tasks: int, standbys: int = 1) -> dict[str, Share]:
    """Shares tasks 0 to `tasks` - 1 out; members are named by any unique id."""
    if not members:
        return {}
    return _Sharing(members, tasks).shares(standbys)


class _Sharing:
    """One sharing under way; members are tried in the order of their names throughout (S4)."""

    def __init__(self, members: Mapping[str, Member], tasks: int):
        self.members = dict(sorted(members.items(), key=lambda each: (each[1].worker, each[0])))
        self.order = {id_: place for place, id_ in enumerate(self.members)}
        self.tasks = range(tasks)
        regular = [id_ for id_, member in self.members.items() if not member.standby_only]
        self.eligible = regular or list(self.members)
        self.owners = self._claims(lambda member: member.active)
        self.pledges = self._claims(lambda member: member.promised)

    def shares(self, standbys: int) -> dict[str, Share]:
        homes = self._homes()
        holders = self._holders(homes)
        promised = {task: home for task, home in homes.items() if home != holders[task]}
        following = self._standbys(holders, promised, standbys)
        return {
            id_: Share(
                active=[task for task in self.tasks if holders[task] == id_],
                standby=[task for task in self.tasks if id_ in following[task]],
                promised=[task for task in self.tasks if promised.get(task) == id_],
            )
            for id_ in self.members
        }

    def _claims(self, claimed: Callable[[Member], set[int]]) -> dict[int, str]:
        """Whose the tasks are so far, of those that are somebody's."""
        claims: dict[int, str] = {}
        for id_ in sorted(self.members, key=lambda id_: -self.members[id_].generation):
            for task in claimed(self.members[id_]):
                claims.setdefault(task, id_)
        return {task: claims[task] for task in self.tasks if task in claims}

    def _best(self, ids: list[str], *ranks: Callable[[str], Any]) -> str:
        """The first by the given ranks, least first, and then by name."""
        return min(ids, key=lambda id_: (*(rank(id_) for rank in ranks), self.order[id_]))

    def _lag(self, task: int) -> Callable[[str], float]:
        """How far behind a member is; a cold one is behind all others."""
        return lambda id_: self.members[id_].warm.get(task, math.inf)

    def _warm(self, task: int, ids: list[str]) -> list[str]:
        return [id_ for id_ in ids if task in self.members[id_].warm]

    # --- where tasks belong --------------------------------------------------------------------

    def _homes(self) -> dict[int, str]:
        loads = _Loads(self.eligible)
        for task, owner in self.owners.items():
            home = self.pledges.get(task, owner)
            if home in loads.held:
                loads.give(task, home)
        for task in self.tasks:
            if task not in loads.holder:
                loads.give(task, self._new_home(task, loads))
        while loads.spread() > 1:
            self._even_out(loads)
        return loads.holder

    def _new_home(self, task: int, loads: "_Loads") -> str:
        near = self._warm(task, self.eligible) or [
            id_ for id_ in self.eligible if self.members[id_].follows(task)
        ]
        return self._best(near or self.eligible, loads.load, self._lag(task))

    def _even_out(self, loads: "_Loads") -> None:
        """Moves one task from the most to the least loaded; best one that the former does not own
        yet, which moves anyway, and then one that is warm where it goes."""
        giver = self._best(self.eligible, lambda id_: -loads.load(id_))
        owned = {task for task in loads.held[giver] if self.owners.get(task) == giver}
        held = loads.held[giver] - owned or owned
        least = min(map(loads.load, self.eligible))

        def move(taker: str) -> tuple[bool, bool, int, int]:
            warm = held & self.members[taker].warm.keys()
            near = warm or held & self.members[taker].standby
            return not warm, not near, self.order[taker], min(near or held)

        takers = {move(id_): id_ for id_ in self.eligible if loads.load(id_) == least}
        best = min(takers)
        loads.give(best[-1], takers[best])

    # --- who merges them now -------------------------------------------------------------------

    def _holders(self, homes: Mapping[int, str]) -> dict[int, str]:
        loads = _Loads(list(self.members))
        without = []
        for task, home in sorted(homes.items()):
            owner = self.owners.get(task)
            if home == owner or task in self.members[home].warm:
                loads.give(task, home)
            elif owner in self.eligible:
                loads.give(task, owner)
            else:
                without.append(task)
        for task in without:
            loads.give(task, self._bridge(task, homes[task], loads))
        return loads.holder

    def _bridge(self, task: int, home: str, loads: "_Loads") -> str:
        """Who holds a task of a cold home and no owner, or one that should not be one."""
        owner = self.owners.get(task)
        ready = self._warm(task, self.eligible)
        if not ready:
            ready = self._warm(task, list(self.members)) if owner is None else [owner]
        lag = self._lag(task)
        return self._best(ready, loads.load, lag) if ready else home

    # --- who follows them ----------------------------------------------------------------------

    def _standbys(
        self, holders: Mapping[int, str], promised: Mapping[int, str], count: int
    ) -> dict[int, set[str]]:
        following: dict[int, set[str]] = {task: set() for task in self.tasks}
        load = dict.fromkeys(self.members, 0)
        busy = set() if count else {*holders.values(), *promised.values()}
        able, count = [id_ for id_ in self.members if id_ not in busy], max(count, 1)

        def others(task: int) -> list[str]:
            taken = {holders[task], promised.get(task), *following[task]}
            return [id_ for id_ in able if id_ not in taken]

        for keeping in (True, False):  # first all that follow already, then the rest
            for task in self.tasks:
                kept, free = following[task], others(task)
                if keeping:
                    free = [id_ for id_ in free if self.members[id_].follows(task)]
                while free and len(kept) < count:
                    follower = self._best(free, self._lag(task), load.__getitem__)
                    free.remove(follower)
                    kept.add(follower)
                    load[follower] += 1
        self._spread(following, others, load)
        for task, home in promised.items():
            following[task].add(home)
        return following

    def _spread(
        self,
        following: Mapping[int, set[str]],
        others: Callable[[int], list[str]],
        load: dict[str, int],
    ) -> None:
        """Moves standbys from busy members to those that follow fewer by two or more."""
        moved = True
        while moved:
            moved = False
            for task, kept in following.items():
                if not kept or not (free := others(task)):
                    continue
                giver = self._best(list(kept), lambda id_: -load[id_])
                taker = self._best(free, load.__getitem__)
                if load[giver] - load[taker] > 1:
                    kept ^= {giver, taker}
                    load[giver] -= 1
                    load[taker] += 1
                    moved = True


class _Loads:
    """Which tasks are given to whom."""

    def __init__(self, ids: list[str]):
        self.held: dict[str, set[int]] = {id_: set() for id_ in ids}
        self.holder: dict[int, str] = {}

    def load(self, id_: str) -> int:
        return len(self.held[id_])

    def give(self, task: int, id_: str) -> None:
        if (before := self.holder.get(task)) is not None:
            self.held[before].discard(task)
        self.holder[task] = id_
        self.held[id_].add(task)

    def spread(self) -> int:
        """How many more the most loaded has than the least loaded."""
        loads = [len(tasks) for tasks in self.held.values()]
        return max(loads) - min(loads)
