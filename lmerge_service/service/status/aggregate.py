"""Several tasks as one: of counts the sums, of stable points the lowest.

Each task of a worker has its own status of the output and of the replicas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Final

from lmerge_service.config.topology import Topology
from lmerge_service.merge.replica_states import ReplicaPhase
from lmerge_service.service.status.document import (
    OpenTransactionStatus,
    OutputStatus,
    ReplicaActivity,
    ReplicaStatus,
    TaskStatus,
)

__all__ = ("IDLE_AFTER_SECONDS", "liveness_of", "output_of_all", "quantile_ms", "replicas_of_all")

IDLE_AFTER_SECONDS: Final = 60.0
"""For so long without progress, or without a record, is standing still, or silent."""

_WORST = (
    ReplicaPhase.QUARANTINED,
    ReplicaPhase.EXCLUDED,
    ReplicaPhase.PAUSED,
    ReplicaPhase.JOINING,
    ReplicaPhase.JOINED,
)
_SUMS = (
    "inserts", "adjusts", "stables", "delivered_first", "late", "stale", "repeated", "unusual",
    "contradicted", "dead_letters", "lost_events", "left_out",
)  # fmt: skip


def output_of_all(
    topology: Topology, tasks: Sequence[TaskStatus], waits: Sequence[float]
) -> OutputStatus:
    """The output of several tasks; `waits` are the latencies of their commits, ascending."""
    if not tasks:
        return _nothing(topology)
    outputs = [each.output for each in tasks]
    sums = (
        "live_events",
        "inserts",
        "adjusts",
        "removals",
        "stables",
        "leader_switches",
        "transactions",
    )
    points = [each.stable_point for each in outputs if not each.ended]
    leaders = {each.leader for each in outputs}
    return outputs[0].model_copy(
        update={
            **{name: sum(getattr(each, name) for each in outputs) for name in sums},
            "incarnation": min(each.incarnation for each in outputs),
            "ended": not points,
            "stable_point": _lowest(points) if points else None,
            "leader": leaders.pop() if len(leaders) == 1 else None,
            **_last_change(outputs),
            "commit_ms_p50": quantile_ms(waits, 0.50),
            "commit_ms_p99": quantile_ms(waits, 0.99),
            "gap": next((each.gap for each in outputs if each.gap is not None), None),
        }
    )


def _last_change(outputs: Sequence[OutputStatus]) -> dict[str, object]:
    """The latest change of leader in any of them."""
    latest = max(outputs, key=lambda each: each.leader_since or 0.0)
    names = ("leader_since", "leader_before", "leader_why")
    return {name: getattr(latest, name) for name in names}


def _nothing(topology: Topology) -> OutputStatus:
    """Of a worker without tasks."""
    return OutputStatus(
        topic=topology.output.topic,
        case=topology.resolved_case,
        policy=asdict(topology.policy.policy()),
        stable_point=None,
        incarnation=0,
        correct_from=None,
        ended=False,
        live_events=0,
        inserts=0,
        adjusts=0,
        removals=0,
        stables=0,
        leader=None,
        leader_since=None,
        leader_before=None,
        leader_why=None,
        leader_switches=0,
        transactions=0,
        commit_ms_p50=None,
        commit_ms_p99=None,
        gap=None,
    )


def replicas_of_all(tasks: Sequence[TaskStatus]) -> list[ReplicaStatus]:
    """Each replica as several tasks see it, in the order in which they name them."""
    return [_aggregated(statuses) for statuses in _by_replica(tasks)]


def _by_replica(tasks: Sequence[TaskStatus]) -> Iterator[list[ReplicaStatus]]:
    """The statuses of each replica in the tasks."""
    found: dict[str, list[ReplicaStatus]] = {}
    for task in tasks:
        for each in task.replicas:
            found.setdefault(each.name, []).append(each)
    yield from found.values()


def _aggregated(statuses: Sequence[ReplicaStatus]) -> ReplicaStatus:
    """One replica as several tasks see it. All of them read the same records, so that its lag is
    the largest, and not the sum."""
    if len(statuses) == 1:
        return statuses[0]
    worst = min(statuses, key=lambda each: _WORST.index(each.state))
    first = [each.share_first for each in statuses if each.share_first is not None]
    breaches = sum((Counter(each.breaches) for each in statuses), Counter())
    lags = [each.lag_records for each in statuses]
    ended = all(each.ended for each in statuses)
    idle = min((x for each in statuses if (x := each.idle_seconds) is not None), default=None)
    silent = min((x for each in statuses if (x := each.silent_seconds) is not None), default=None)
    return worst.model_copy(
        update={
            **{name: sum(getattr(each, name) for each in statuses) for name in _SUMS},
            "silent_partitions": sorted({p for each in statuses for p in each.silent_partitions}),
            "stable_point": _lowest(each.stable_point for each in statuses if not each.ended),
            "ended": ended,
            "lag_records": None if None in lags else max(lag for lag in lags if lag is not None),
            "open_transactions": _transactions_of_all(statuses),
            "liveness": liveness_of(idle, silent, ended=ended),
            "idle_seconds": idle,
            "silent_seconds": silent,
            "share_first": sum(first) / len(first) if first else None,
            "held": [held for each in statuses for held in each.held],
            "breaches": dict(breaches),
            "repeated_at": next((at for each in statuses if (at := each.repeated_at)), None),
            "contradicted_at": next(
                (at for each in statuses if (at := each.contradicted_at)), None
            ),
            "outdated": max((each.outdated for each in statuses), key=len),
            "confirmed": _lowest(e.confirmed for e in statuses if not e.confirmed_to_the_end),
            "confirmed_from": max(
                (e.confirmed_from for e in statuses if e.confirmed_from is not None), default=None
            ),
            "confirmed_to_the_end": all(each.confirmed_to_the_end for each in statuses),
            "disagrees": any(each.disagrees for each in statuses),
            "unconfirmed": any(each.unconfirmed for each in statuses),
            "in_trouble": any(each.in_trouble for each in statuses),
        }
    )


def _transactions_of_all(statuses: Sequence[ReplicaStatus]) -> list[OpenTransactionStatus]:
    """All tasks see the same ones; who has seen one for longest knows best."""
    found: dict[tuple[int, int], OpenTransactionStatus] = {}
    for each in (each for status in statuses for each in status.open_transactions):
        known = found.get((each.partition, each.offset))
        if known is None or known.seconds < each.seconds:
            found[each.partition, each.offset] = each
    return [found[place] for place in sorted(found)]


def liveness_of(idle: float | None, silent: float | None, *, ended: bool) -> ReplicaActivity | None:
    """By the seconds without progress and without a record.

    >>> liveness_of(3.0, 3.0, ended=False)
    <ReplicaActivity.PROGRESSING: 'progressing'>
    >>> liveness_of(90.0, 0.2, ended=False)
    <ReplicaActivity.NOT_PROGRESSING: 'not progressing'>
    """
    if ended or idle is None or silent is None:
        return None
    if idle < IDLE_AFTER_SECONDS:
        return ReplicaActivity.PROGRESSING
    return (
        ReplicaActivity.NOT_PROGRESSING if silent < IDLE_AFTER_SECONDS else ReplicaActivity.SILENT
    )


def _lowest(values: Iterable[int | None]) -> int | None:
    """The lowest, or unknown when one is."""
    known = list(values)
    return None if None in known or not known else min(v for v in known if v is not None)


def quantile_ms(ordered: Sequence[float], q: float) -> float | None:
    """Of seconds, ascending."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000, 2)
