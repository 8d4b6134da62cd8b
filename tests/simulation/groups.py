"""A group in memory: members with sessions, and who of them has which task.

Theory
    A member lives by its heartbeats: without one for a session it is gone, and the others share
    its tasks. A task stays where it is as long as its owner lives; else it goes to a member that
    has it warm, else to the one that has the fewest. One other member follows each task.

Invariants
    G1  A task has one owner, who is a member and not there for standing by only.
    G2  The generation rises whenever the members change.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

__all__ = ("Given", "Group")


@dataclass(slots=True)
class _Member:
    deadline: float
    standby_only: bool
    warm: Collection[int]


@dataclass(frozen=True, slots=True)
class Given:
    """What a heartbeat is answered with."""

    generation: int
    active: frozenset[int]
    standby: frozenset[int]
    owners: dict[int, str]


@dataclass(slots=True)
class Group:
    """One group's coordinator; `clock` tells seconds."""

    clock: Callable[[], float]
    generation: int = -1
    members: dict[str, _Member] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)

    def beat(
        self,
        name: str,
        *,
        session: float,
        tasks: int,
        warm: Collection[int] = (),
        standby_only: bool = False,
    ) -> Given:
        """A heartbeat, which is also how a member joins."""
        self._bury()
        joins = name not in self.members
        self.members[name] = _Member(self.clock() + session, standby_only, tuple(warm))
        if joins:
            self.generation += 1
        self._share(tasks)
        mine = frozenset(task for task, owner in self.owners.items() if owner == name)
        return Given(self.generation, mine, self._followed(name), dict(self.owners))

    def leave(self, name: str) -> None:
        if self.members.pop(name, None) is not None:
            self.generation += 1

    def _bury(self) -> None:
        now = self.clock()
        for name in [name for name, each in self.members.items() if each.deadline <= now]:
            self.leave(name)

    def _share(self, tasks: int) -> None:
        able = [name for name, each in self.members.items() if not each.standby_only]
        self.owners = {task: owner for task, owner in self.owners.items() if owner in able}
        for task in range(tasks):
            if task not in self.owners and able:
                loads = list(self.owners.values())
                self.owners[task] = min(
                    able, key=lambda name: (task not in self.members[name].warm, loads.count(name))
                )

    def _followed(self, name: str) -> frozenset[int]:
        """Each task is followed by the member that comes behind its owner."""
        names = list(self.members)
        return frozenset(
            task
            for task, owner in self.owners.items()
            if owner != name and names[(names.index(owner) + 1) % len(names)] == name
        )
