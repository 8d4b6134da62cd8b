"""Carrying out decisions: from the ledger's replicas to those of a task's operator.

Theory
    A ledger has the desired replicas, each with an epoch; a task has some, each with an epoch.
    Differences are reconciled: a replica that is not desired is detached, one with another epoch is
    expected again, one in quarantine does not contribute. Merging a replica begins when its topic
    is found, which is left to the caller.
"""

from collections.abc import Callable

from lmerge_service.core.base import Gap
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
    report: Callable[[DesiredReplica], object] = lambda _: None,
    accepted: Callable[[AcceptedGap, Gap, list[Element]], object],
) -> None:
    """Carries out the decisions that are not carried out yet. `report` receives each replica with a
    new decision, `accepted` each gap that was accepted, with the elements that it lets the operator
    emit.

    Case and policy must be those that were decided (`is_of_kind`).
    """
    replicas = state.replicas
    for name in state.stated.keys() - ledger.replicas.keys():
        del state.stated[name]  # it was detached so long ago that nobody knows it any more
    for name, desired in ledger.replicas.items():
        have = replicas.states.get(name)
        if desired.state is DesiredState.DETACHED or desired.epoch > state.decided:
            state.quarantined.pop(name, None)  # what was found was of another attachment
        if desired.since > state.decided:
            report(desired)
        if desired.state is DesiredState.DETACHED:
            if have is not None:
                replicas.leave(name)
            continue
        if have is None or have.epoch != desired.epoch:
            replicas.expect(desired.replica, epoch=desired.epoch, released=desired.released)
        if desired.state is DesiredState.QUARANTINED:
            replicas.quarantine(name, desired.reason or "")
        elif name in state.quarantined:
            replicas.quarantine(name, state.quarantined[name])
    for each in ledger.accepted_gaps:
        gap = state.merge.gap
        if each.version <= state.decided or gap is None:
            continue
        if (gap.input, gap.end) == (each.replica, each.until):
            step = replicas.states[gap.input].step
            assert step is not None
            step.gap_accepted = True
            _, out = state.merge.accept_gap()
            accepted(each, gap, out)
    state.decided = ledger.version
