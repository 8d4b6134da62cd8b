"""A group in memory: members with sessions, and who of them has which task.

Theory
    A member lives by its heartbeats: without one for a session it is gone. Whenever members come
    or go, or one of them asks for it, the tasks are shared out anew, by the service's own
    `assignor` and from what each member last reported of itself. Each learns it at its next
    heartbeat.

Invariants
    G1  A task has one owner, who is a member.
    G2  The generation rises with each sharing, and with nothing else.
    G3  All members are of one kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lmerge_service.kafka.assignor import Member, Share, share
from lmerge_service.kafka.members import GroupKind

__all__ = ("Given", "Group", "KeptOut")


@dataclass(frozen=True, slots=True)
class KeptOut:
    """The members are of another kind."""

    kind: GroupKind
    workers: str


@dataclass(slots=True)
class _Joined:
    deadline: float
    member: Member


@dataclass(frozen=True, slots=True)
class Given:
    """What a heartbeat is answered with."""

    generation: int
    share: Share
    owners: dict[int, str]


@dataclass(slots=True)
class Group:
    """One group's coordinator; `clock` returns seconds."""

    clock: Callable[[], float]
    generation: int = -1
    kind: GroupKind | None = None
    """The members', as long as there are any."""
    members: dict[str, _Joined] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)

    def beat(
        self,
        member: Member,
        kind: GroupKind,
        *,
        session: float,
        standbys: int = 1,
        again: bool = False,
    ) -> Given | KeptOut | None:
        """A heartbeat, which is also how a member joins; `again` asks for another sharing. None
        to one that was taken for dead."""
        gone = self._bury()
        if self.members and self.kind is not None and kind != self.kind:
            return KeptOut(self.kind, ", ".join(sorted(self.members)))
        self.kind = kind
        joins = member.worker not in self.members
        if joins and member.generation >= 0:
            return None
        self.members[member.worker] = _Joined(self.clock() + session, member)
        if gone or joins or again or not self.shares:
            self._share(kind.tasks, standbys)
        owners = {task: name for name, each in self.shares.items() for task in each.active}
        return Given(self.generation, self.shares[member.worker], owners)

    def leave(self, name: str) -> None:
        """The others share at the next heartbeat."""
        if self.members.pop(name, None) is not None:
            self.shares = {}

    def _bury(self) -> bool:
        now = self.clock()
        gone = [name for name, each in self.members.items() if each.deadline <= now]
        for name in gone:
            self.leave(name)
        return bool(gone)

    def _share(self, tasks: int, standbys: int) -> None:
        self.generation += 1
        members = {name: each.member for name, each in self.members.items()}
        self.shares = share(members, tasks, standbys)
