"""One picture of a merge, of what all of its workers answered.

Theory
    Each task is led by one worker; others follow it and show what they have read. So numbers about
    the merge are taken from the workers that lead something, each about the tasks that it leads:
    counts are added up, stable points are the lowest, states the worst. What was found of a
    replica is added up over all workers: each counts what it has found while it led. Documents
    are read leniently, as `lmerge watch` does: what a worker of another version does not report is
    None.

Cost
    Linear in the rows of the documents: O(workers × (replicas + tasks)).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

__all__ = ("MergeView", "ReplicaRow", "TaskRow", "WorkerRow", "merge_of", "merged")

Document: TypeAlias = Mapping[str, Any]

_WORST: Final = ("quarantined", "excluded", "paused", "leaving", "joining", "joined", "gone")
_SUMS: Final = (
    *("inserts", "adjusts", "stables", "delivered_first", "late", "stale", "repeated"),
    *("contradicted", "dead_letters", "lost_events", "left_out"),
)
_FINDINGS: Final = ("repeated", "contradicted", "dead_letters", "lost_events")
"""Of these, what was found wrong."""
_OUTPUT_SUMS: Final = ("inserts", "adjusts", "stables", "live_events", "transactions")


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker, as it was last asked."""

    address: str
    state: str
    """As it reports; `away` where it does not answer."""
    health: str | None
    why: str | None
    """Why there is no answer."""
    leads: tuple[int, ...] = ()
    follows: tuple[int, ...] = ()
    memory: float | None = None
    """Resident bytes."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """An output partition."""

    partition: int
    worker: str | None
    """Who leads it; None: nobody that answers."""
    phase: str
    leader: str | None
    """The replica that leads there."""
    stable_point: int | None
    ended: bool
    followers: int
    stuck: str | None
    cutover: str | None
    """What it waits for in the cutover that runs."""
    commit_seconds: float | None
    """How long the commit has taken that is under way; None: none is."""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica, as all tasks see it."""

    name: str
    topic: str
    state: str
    why: str | None
    leads: bool
    incarnation: int | None
    stable_point: int | None
    ended: bool
    behind: int | None
    """How far it is behind the output, in the topology's unit: in the task where it is furthest."""
    lag: int | None
    """Records of its topic that are not merged."""
    liveness: str | None
    share_first: float | None
    counts: Mapping[str, int]
    breaches: Mapping[str, int]
    repeated_at: str | None
    contradicted_at: str | None
    confirmed: int | None
    confirmed_to_the_end: bool
    disagrees: bool
    unconfirmed: bool
    held: Sequence[Document]
    open_transactions: Sequence[Document]
    outdated: Sequence[Document]
    silent_partitions: Sequence[int]

    @property
    def word(self) -> str:
        """Its state, as people read it."""
        if self.state == "joined":
            if self.ended:
                return "ended"
            if self.liveness in {"not progressing", "silent"}:
                return f"joined, {self.liveness}"
        return self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeView:
    """A merge at one moment."""

    name: str
    topic: str
    time_unit: str | None
    case: str | None
    policy: Mapping[str, str]
    version: int | None
    health: str
    reasons: tuple[tuple[str, str], ...]
    """Kind and text of each, once."""
    known: bool
    """Some worker has answered this time."""
    leader: str | None
    """The replica that leads most tasks."""
    leaders: Mapping[str, int] = field(default_factory=dict)
    """How many tasks each replica leads."""
    leader_since: float | None = None
    leader_before: str | None = None
    leader_why: str | None = None
    stable_point: int | None = None
    ended: bool = False
    incarnation: int | None = None
    correct_from: int | None = None
    gap: str | None = None
    counts: Mapping[str, int | None] = field(default_factory=dict)
    commit_p50: float | None = None
    """Milliseconds from read to commit: the latency that the merge adds."""
    commit_p99: float | None = None
    cutover: Document | None = None
    detached: Mapping[str, int] = field(default_factory=dict)
    workers: tuple[WorkerRow, ...] = ()
    tasks: tuple[TaskRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()


def merge_of(status: Document) -> tuple[str, str] | None:
    """Which merge a document of a worker is about: its name and its output's topic."""
    output = _part(status, "output")
    if "replicas" not in status or not output.get("topic"):
        return None
    return str(status.get("name")), str(output.get("topic"))


def merged(
    answers: Sequence[tuple[str, Document | None, str | None]],
    before: MergeView | None = None,
    memory: Mapping[str, float] | None = None,
) -> MergeView:
    """The picture of answers (address, document or None, why there is none) of one merge's workers.

    Where nobody answers it is what was known `before`, as not known now.
    """
    documents = [status for _, status, _ in answers if status is not None]
    workers = tuple(_worker(*each, (memory or {}).get(each[0])) for each in answers)
    if not documents:
        return _away(workers, before)
    leading = [each for each in documents if _leads(each)] or documents
    newest = max(documents, key=lambda each: each.get("version") or 0)
    tasks = _tasks(answers)
    output = _output(leading)
    leaders = Counter(task.leader for task in tasks if task.leader is not None)
    replicas = _replicas(leading, documents, leaders)
    reasons = _reasons(answers)
    return MergeView(
        name=str(newest.get("name")),
        topic=str(_part(newest, "output").get("topic")),
        time_unit=newest.get("time_unit"),
        case=_part(newest, "output").get("case"),
        policy=_part(newest, "output").get("policy") or {},
        version=newest.get("version"),
        health="degraded" if reasons else "ok",
        reasons=reasons,
        known=True,
        leader=max(leaders, key=leaders.__getitem__) if leaders else output["leader"],
        leaders=dict(leaders),
        cutover=newest.get("cutover"),
        detached=_detached(leading),
        workers=workers,
        tasks=tasks,
        replicas=replicas,
        **{name: value for name, value in output.items() if name != "leader"},
    )


def _away(workers: tuple[WorkerRow, ...], before: MergeView | None) -> MergeView:
    kept = {} if before is None else {
        name: getattr(before, name)
        for name in ("name", "topic", "time_unit", "case", "policy", "version", "cutover",
                     "stable_point", "ended", "tasks", "replicas", "leader", "detached")
    }  # fmt: skip
    fresh = dict.fromkeys(("name", "topic"), "?") | dict.fromkeys(
        ("time_unit", "case", "version", "leader")
    )
    reason = ("away", "no worker answers")
    return MergeView(
        **{"policy": {}, **fresh, **kept},
        health="degraded", reasons=(reason,), known=False, workers=workers,
    )  # fmt: skip


def _worker(
    address: str, status: Document | None, why: str | None, memory: float | None
) -> WorkerRow:
    if status is None:
        return WorkerRow(address, "away", None, why)
    roles: dict[str, list[int]] = {"leads": [], "follows": []}
    for task in _list(status, "tasks"):
        roles.setdefault(str(task.get("role")), []).append(task.get("partition"))
    return WorkerRow(
        address, str(status.get("state", "?")), str(status.get("health", "?")), None,
        tuple(sorted(roles["leads"])), tuple(sorted(roles["follows"])), memory,
    )  # fmt: skip


def _leads(status: Document) -> bool:
    return any(task.get("role") == "leads" for task in _list(status, "tasks"))


def _reasons(
    answers: Sequence[tuple[str, Document | None, str | None]],
) -> tuple[tuple[str, str], ...]:
    found: dict[tuple[str, str], None] = {}
    for address, status, why in answers:
        if status is None:
            found["away", f"{address} does not answer: {why}"] = None
            continue
        texts = _list(status, "reasons")
        kinds = [*_list(status, "reason_kinds"), *("" for _ in texts)]
        for kind, text in zip(kinds, texts, strict=False):
            found[str(kind), str(text)] = None
    return tuple(found)


def _detached(leading: Sequence[Document]) -> dict[str, int]:
    """How many records the topics of those that were detached have got since, as far as any task
    knows: each knows all of a topic."""
    found: dict[str, int] = {}
    for each in leading:
        for name, count in _part(each, "detached").items():
            found[name] = max(found.get(name, 0), count)
    return found


def _output(leading: Sequence[Document]) -> dict[str, Any]:
    outputs = [_part(each, "output") for each in leading]
    latest = max(outputs, key=lambda each: each.get("leader_since") or 0.0)
    points = [each.get("stable_point") for each in outputs if not each.get("ended")]
    return {
        "leader": latest.get("leader"),
        "leader_since": latest.get("leader_since"),
        "leader_before": latest.get("leader_before"),
        "leader_why": latest.get("leader_why"),
        "stable_point": _lowest(points) if points else None,
        "ended": not points,
        "incarnation": _least(each.get("incarnation") for each in outputs),
        "correct_from": _most(each.get("correct_from") for each in outputs),
        "gap": next((each["gap"] for each in outputs if each.get("gap")), None),
        "counts": {name: _sum(each.get(name) for each in outputs) for name in _OUTPUT_SUMS},
        "commit_p50": _most(each.get("commit_ms_p50") for each in outputs),
        "commit_p99": _most(each.get("commit_ms_p99") for each in outputs),
    }


def _tasks(answers: Sequence[tuple[str, Document | None, str | None]]) -> tuple[TaskRow, ...]:
    led: dict[int, tuple[str, Document]] = {}
    followed: dict[int, list[Document]] = {}
    for address, status, _ in answers:
        for task in _list(status or {}, "tasks"):
            if task.get("role") == "leads":
                led[task["partition"]] = address, task
            else:
                followed.setdefault(task.get("partition"), []).append(task)
    found = []
    for partition in sorted(led.keys() | followed.keys()):
        worker, task = led.get(partition) or (None, followed[partition][0])
        output = _part(task, "output")
        found.append(
            TaskRow(
                partition, worker, str(task.get("phase", "?")), output.get("leader"),
                output.get("stable_point"), bool(output.get("ended")),
                len(followed.get(partition, ())), task.get("stuck"), task.get("cutover"),
                task.get("commit_seconds"),
            )
        )  # fmt: skip
    return tuple(found)


# --- replicas -------------------------------------------------------------------------------------


def _replicas(
    leading: Sequence[Document], documents: Sequence[Document], leaders: Mapping[str, int]
) -> tuple[ReplicaRow, ...]:
    first = _sum(_part(each, "output").get("inserts") for each in leading)
    whole = _by_name(documents)
    return tuple(
        _replica(name, seen, whole[name], first, leads=name in leaders)
        for name, seen in _by_name(leading).items()
    )


def _by_name(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """What these documents have of each replica."""
    found: dict[str, list[Document]] = {}
    for status in documents:
        for each in _list(status, "replicas"):
            found.setdefault(str(each.get("name")), []).append(each)
    return found


def _replica(
    name: str,
    seen: Sequence[Document],
    by_all: Sequence[Document],
    first: int | None,
    *,
    leads: bool,
) -> ReplicaRow:
    worst = min(seen, key=lambda each: _rank(str(each.get("state"))))
    unended = [each for each in seen if not each.get("ended")]
    stable = _lowest([each.get("stable_point") for each in unended]) if unended else None
    counts = {each: _sum(one.get(each) for one in seen) or 0 for each in _SUMS}
    counts |= {each: _sum(one.get(each) for one in by_all) or 0 for each in _FINDINGS}
    return ReplicaRow(
        name=name,
        topic=str(worst.get("topic")),
        state=str(worst.get("state", "?")),
        why=worst.get("why"),
        leads=leads,
        incarnation=_most(each.get("incarnation") for each in seen),
        stable_point=stable,
        ended=not unended,
        behind=_most(each.get("behind_output") for each in seen),
        lag=_most(each.get("lag_records") for each in seen),
        liveness=_liveness(seen),
        share_first=counts["delivered_first"] / first if first else None,
        counts=counts,
        breaches=dict(sum((Counter(each.get("breaches") or {}) for each in by_all), Counter())),
        repeated_at=next((e["repeated_at"] for e in by_all if e.get("repeated_at")), None),
        contradicted_at=next(
            (e["contradicted_at"] for e in by_all if e.get("contradicted_at")), None
        ),
        confirmed=_lowest([e.get("confirmed") for e in seen if not e.get("confirmed_to_the_end")]),
        confirmed_to_the_end=all(each.get("confirmed_to_the_end") for each in seen),
        disagrees=any(each.get("disagrees") for each in seen),
        unconfirmed=any(each.get("unconfirmed") for each in seen),
        held=[held for each in seen for held in _list(each, "held")],
        open_transactions=_once(_list(each, "open_transactions") for each in seen),
        outdated=max((_list(each, "outdated") for each in seen), key=len),
        silent_partitions=sorted({p for each in seen for p in _list(each, "silent_partitions")}),
    )


def _rank(state: str) -> int:
    return _WORST.index(state) if state in _WORST else len(_WORST)


def _liveness(seen: Sequence[Document]) -> str | None:
    """The liveliest that a worker reports: it has read what others have not yet."""
    found = [str(each["liveness"]) for each in seen if each.get("liveness")]
    order = ("progressing", "not progressing", "silent")
    return min(found, key=lambda each: order.index(each) if each in order else 3, default=None)


def _once(lists: Iterable[Sequence[Any]]) -> list[Document]:
    """Open transactions, each as whoever has seen it for longest."""
    found: dict[tuple[Any, Any], Document] = {}
    for each in (each for one in lists for each in one):
        place = each.get("partition"), each.get("offset")
        if place not in found or found[place].get("seconds", 0) < each.get("seconds", 0):
            found[place] = each
    return list(found.values())


# --- values ---------------------------------------------------------------------------------------


def _part(document: Document, name: str) -> Document:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(document: Document, name: str) -> Sequence[Any]:
    found = document.get(name)
    return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def _sum(values: Iterable[Any]) -> int | None:
    known = [value for value in values if isinstance(value, int)]
    return sum(known) if known else None


def _lowest(values: Sequence[Any]) -> int | None:
    """None when one is not known."""
    known = [value for value in values if isinstance(value, int)]
    return min(known) if known and len(known) == len(values) else None


def _least(values: Iterable[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
