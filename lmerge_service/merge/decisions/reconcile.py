"""Carrying out what was decided: from the ledger's replicas to those of a task's operator.

Theory
    A ledger says which replicas are wanted and under which epoch; a task has some, under some
    epoch. What differs is made so: who is not wanted leaves, who is wanted under another epoch is
    expected anew, who is in quarantine says nothing. Merging one begins when its topic is found,
    which is whoever calls this's to do.
"""

from collections.abc import Callable

from lmerge_service.core.operator import Gap
from lmerge_service.elements import Element
from lmerge_service.merge.decisions.ledger import AcceptedGap, DesiredReplica, Ledger
from lmerge_service.merge.replica_states import DesiredState
from lmerge_service.merge.task_state import TaskState

__all__ = ("is_of_kind", "reconcile")


def is_of_kind(state: TaskState, ledger: Ledger) -> bool:
    """The state's case and policy are those that were decided."""
    decided, merge = ledger.topology, state.merge
    return (decided.resolved_case, decided.policy.policy()) == (merge.case, merge.policy)


def reconcile(
    state: TaskState,
    ledger: Ledger,
    *,
    tell: Callable[[DesiredReplica], object] = lambda _: None,
    accepted: Callable[[AcceptedGap, Gap, list[Element]], object],
) -> None:
    """Makes what is decided so, as far as it is not: `tell` is told of each replica about which
    something is new, `accepted` of each gap that was accepted, and what the output says then.

    Case and policy must be those that were decided (`is_of_kind`).
    """
    replicas = state.replicas
    for name, wanted in ledger.replicas.items():
        have = replicas.states.get(name)
        if wanted.wish is DesiredState.DETACHED or wanted.epoch > state.decided:
            state.quarantined.pop(name, None)  # what was found was of another attachment
        if wanted.since > state.decided:
            tell(wanted)
        if wanted.wish is DesiredState.DETACHED:
            if have is not None:
                replicas.leave(name)
            continue
        if have is None or have.epoch != wanted.epoch:
            replicas.expect(wanted.replica, epoch=wanted.epoch, released=wanted.released)
        if wanted.wish is DesiredState.QUARANTINED:
            replicas.quarantine(name, wanted.reason or "")
        elif name in state.quarantined:
            replicas.quarantine(name, state.quarantined[name])
    for each in ledger.accepted_gaps:
        gap = state.merge.gap
        if each.version <= state.decided or gap is None:
            continue
        if (gap.input, gap.end) == (each.replica, each.until):
            ingest = replicas.states[gap.input].ingest
            assert ingest is not None
            ingest.gap_accepted = True
            _, out = state.merge.accept_gap()
            accepted(each, gap, out)
    state.decided = ledger.version
