"""What a replica shows of itself: `/status` as a document, and why somebody should look at it."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from lmerge_service.elements import INFINITY, START
from lmerge_service.queries.explaining import tree, tree_nodes
from lmerge_service.replicas.running import QueryPhase, QueryReplica

__all__ = (
    "InputPartitionStatus",
    "InputStatus",
    "OperatorStatus",
    "QueryOutputStatus",
    "QueryStatus",
    "StateStatus",
    "reasons_of",
    "status_of",
)

Time = int | None | str
"""None: not known yet; "inf": the end."""


class InputPartitionStatus(BaseModel):
    """One partition of an input's topic."""

    partition: int
    position: int | None
    """The next offset."""
    lag: int | None
    """Records that can be read and were not."""
    reached: Time
    """Of facts the highest time, of elements the stable point."""
    holds_back: bool
    """It is why its input is no further, and has nothing to be read."""
    paused: bool
    """It is too far ahead of others."""


class InputStatus(BaseModel):
    """One source of the query."""

    name: str
    topic: str
    stable: Time
    """The watermark of facts; of elements the stable point."""
    records: int
    """Read by this process."""
    dropped: dict[str, int]
    """Records that are no part of the input, by reason."""
    partitions: list[InputPartitionStatus]


class QueryOutputStatus(BaseModel):
    """One partition of the output."""

    partition: int
    stable: Time
    records: int
    """Committed in this incarnation."""


class OperatorStatus(BaseModel):
    """One operator of the plan, all partitions together."""

    operator: str
    node: int | None = None
    """Which node of the plan it computes, as in `QueryStatus.tree_nodes`."""
    held: int
    taken: int = 0
    emitted: int = 0
    adjusts: int = 0
    nanoseconds: int = 0


class StateStatus(BaseModel):
    """How much is held."""

    entries: int
    bytes: int
    """Of a snapshot, by estimate."""
    max_bytes: int
    snapshot: int | None
    """The transaction of the latest snapshot that is whole."""
    snapshots: dict[str, int]


class QueryStatus(BaseModel):
    """All of it."""

    version: str
    query: str
    plan: str
    fingerprint: str
    to: str
    state: str
    health: str
    reasons: list[str]
    incarnation: int | None
    joining_at: Time
    recovery_seconds: float | None
    replayed: int | None
    """Records that were processed once more to recover."""
    inputs: list[InputStatus]
    output: list[QueryOutputStatus]
    published: dict[str, int]
    """Committed by this process."""
    transactions: int
    refused: dict[str, int]
    """Elements of inputs that may not stand where they stand."""
    feedback_point: Time
    tree: list[str]
    """The plan, a line for each node below the one that it feeds."""
    tree_nodes: list[int | None]
    """Which node each of these lines is; one that feeds several has several lines."""
    operators: list[OperatorStatus]
    held: StateStatus


def _time(time: int) -> Time:
    return "inf" if time == INFINITY else None if time == START else time


def status_of(replica: QueryReplica) -> QueryStatus:
    """The status as it is now."""
    state, transaction, request = replica.state, replica.transaction, replica.request
    record = None if transaction is None else transaction.record
    reasons = reasons_of(replica)
    return QueryStatus(
        version=version("lmerge-service"),
        query=request.name,
        plan=request.number,
        fingerprint=request.fingerprint,
        to=request.to,
        state=replica.phase,
        health="degraded" if reasons else "ok",
        reasons=reasons,
        incarnation=None if record is None else record.incarnation,
        joining_at=None if record is None else _time(record.joining_at),
        recovery_seconds=replica.recovery_seconds,
        replayed=None if state is None else state.replayed,
        inputs=list(_inputs(replica)),
        output=[]
        if record is None
        else [
            QueryOutputStatus(partition=n, stable=_time(each.stable), records=each.records)
            for n, each in enumerate(record.output)
        ],
        published=dict(replica.counts.elements),
        transactions=replica.counts.transactions,
        refused=dict(replica.refused),
        feedback_point=_time(replica.point),
        tree=list(tree(request.plan.plan)),
        tree_nodes=tree_nodes(request.plan.plan),
        operators=[]
        if state is None
        else [OperatorStatus(**_known(each)) for each in state.partitions.stats()],
        held=StateStatus(
            entries=0 if state is None else len(state.partitions),
            bytes=int(replica.state_bytes),
            max_bytes=request.max_state_bytes,
            snapshot=None
            if record is None or not record.snapshots
            else record.snapshots[0].transaction,
            snapshots=dict(replica.counts.snapshots),
        ),
    )


def _known(stats: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stats.items() if name in OperatorStatus.model_fields}


def _inputs(replica: QueryReplica) -> Iterator[InputStatus]:
    state, reading = replica.state, replica.reading
    if state is None or reading is None:
        return
    for name, each in state.inputs.items():
        places = {n: tp for tp, (found, n) in reading.places().items() if found is each}
        partitions = []
        for number, reached in enumerate(each.reached):
            lag = reading.lag(places[number])
            least = each.stables[number] == each.stable
            partitions.append(
                InputPartitionStatus(
                    partition=number,
                    position=reading.position(places[number]),
                    lag=lag,
                    reached=_time(reached),
                    holds_back=least and lag == 0 and each.stable != INFINITY and each.width > 1,
                    paused=places[number] in reading.paused,
                )
            )
        yield InputStatus(
            name=name,
            topic=each.topic,
            stable=_time(each.stable),
            records=sum(each.records),
            dropped=dict(each.dropped),
            partitions=partitions,
        )


def reasons_of(replica: QueryReplica) -> list[str]:
    """Why somebody should look."""
    found: list[str] = []
    if replica.phase is QueryPhase.ENDED:
        return found
    for each in _inputs(replica):
        silent = [p.partition for p in each.partitions if p.reached is None and p.lag == 0]
        if silent:
            which = ", ".join(f"{each.topic}-{number}" for number in silent)
            found.append(f"{which} has never spoken, which holds the output back")
    if replica.feedback is not None and replica.feedback.unreachable:
        found.append(f"no feedback: {replica.feedback.unreachable}")
    most = replica.request.max_state_bytes
    if replica.state_bytes > 0.8 * most:
        found.append(f"the state has {replica.state_bytes:,.0f} bytes of {most:,} at the most")
    return found
