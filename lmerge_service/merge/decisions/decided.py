"""What decisions have come to, piece by piece: replicas, accepted gaps, the output, entries."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmerge_service.config.topology import Replica
from lmerge_service.elements import START
from lmerge_service.merge.decisions.records import Decision
from lmerge_service.merge.replica_states import DesiredState

__all__ = (
    "AcceptedGap",
    "DecisionRefusal",
    "DesiredReplica",
    "Entry",
    "OutputIncarnation",
    "RefusalKind",
)

RefusalKind: TypeAlias = Literal["version", "state", "unknown", "invalid"]


@dataclass(frozen=True, slots=True)
class DesiredReplica:
    """What was decided about one replica."""

    replica: Replica
    state: DesiredState
    since: int
    """The version that brought it there."""
    epoch: int
    """The version of its last attachment, by attach, release or the topology file: a task whose
    attachment has another one attaches the replica again."""
    reason: str | None
    """Why it was quarantined, or why the file rules it no more."""
    who: str
    released: bool
    """That was a release from a quarantine."""
    decided: bool
    """Something else than the topology file has decided about it; the file no longer rules it."""


@dataclass(frozen=True, slots=True)
class AcceptedGap:
    """An accepted gap: the times before `until`, from which on the replica is correct, are lost."""

    replica: str
    until: int
    version: int
    who: str


@dataclass(frozen=True, slots=True)
class OutputIncarnation:
    """The output since it was last restarted; the first one is whole."""

    number: int = 0
    correct_from: int = START
    """It has every event that ends at this time or later; START: all events."""
    since: int = 0
    """The version that began it."""
    who: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRefusal:
    """Why a decision changed nothing."""

    kind: RefusalKind
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A decision of the log, with the verdict."""

    offset: int
    decision: Decision
    version: int
    """The version after it."""
    refusal: DecisionRefusal | None

    @property
    def accepted(self) -> bool:
        return self.refusal is None
