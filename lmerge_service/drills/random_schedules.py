"""Random drills: several faults at once, drawn from a seed.

Theory
    A schedule is a set of faults, each with a beginning and an end; who is hit by one is hit by no
    other, and at most two of the three replicas are hit, so that the output is always owed. Equal
    seeds give equal schedules. What the schedules do to real processes is not the same each time:
    a run that fails is evidence, a run that passes is none.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from lmerge_service.drills.drills import EXPERIMENTS, experiment

__all__ = ("FaultActions", "Schedule", "ScheduledFault", "compose", "experiment_of")

_REPLICAS: Final = ("a", "b", "c")
_WORKERS: Final = ("w1", "w2")
_BROKER: Final = "broker"
_SPAN_SECONDS: Final = 8.0


class FaultActions(NamedTuple):
    """The actions that begin and end a fault."""

    parameter: str | None
    """By which the actions take the victim."""
    begin: str
    end: str | None = None
    more: Mapping[str, Any] = {}
    """Further arguments of the beginning."""


def _stalled(role: str) -> dict[str, FaultActions]:
    return {
        "pause": FaultActions(role, f"pause_{role}", f"resume_{role}"),
        "throttle": FaultActions("name", "throttle", "unthrottle", {"share": 0.3}),
    }


def _toxic(kind: str, **attributes: int) -> dict[str, FaultActions]:
    return {kind: FaultActions("link", "add_toxic", "mend_links", {"kind": kind, **attributes})}


_ON_LINKS: Final = {
    **_toxic("latency", latency=300, jitter=200),
    **_toxic("bandwidth", rate=20),
    **_toxic("reset_peer", timeout=200),
    "black hole": FaultActions("link", "cut_link", "mend_links"),
}
_ON_REPLICAS: Final = {
    "kill for good": FaultActions("replica", "kill_replica"),
    "kill, restart": FaultActions("replica", "kill_replica", "restart_replica"),
    "kill, restore": FaultActions("replica", "kill_replica", "restore_replica"),
    "kill, start over": FaultActions("replica", "kill_replica", "start_over"),
    **_stalled("replica"),
    "corrupt": FaultActions("replica", "deploy_replica", more={"corrupt": 0.05}),
    "late": FaultActions("replica", "deploy_replica", more={"lag": 2}),
    **_ON_LINKS,
}
_ON_WORKERS: Final = {
    "kill, start": FaultActions("worker", "kill_worker", "start_worker"),
    **_stalled("worker"),
    **_ON_LINKS,
}
_ON_BROKER: Final = {
    "pause": FaultActions(None, "pause_broker", "resume_broker"),
    "kill, start": FaultActions(None, "kill_broker", "start_broker"),
}
_KINDS: Final = {
    **dict.fromkeys(_REPLICAS, _ON_REPLICAS),
    **dict.fromkeys(_WORKERS, _ON_WORKERS),
    _BROKER: _ON_BROKER,
}
"""The faults of each victim. A seed draws by their order, so that another order changes seeds."""


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """One fault and its end."""

    kind: str
    victim: str
    start: float
    """Seconds since all was well."""
    end: float

    def steps(self) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """When each of its actions is due, its name and its arguments."""
        kind = _KINDS[self.victim][self.kind]
        victim = {kind.parameter: self.victim} if kind.parameter else {}
        yield self.start, kind.begin, {**victim, **kind.more}
        if kind.end:
            yield self.end, kind.end, victim


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults by the seed that they come from."""

    seed: int
    faults: tuple[ScheduledFault, ...]

    def __str__(self) -> str:
        texts = (f"{f.kind} {f.victim} [{f.start:.1f}, {f.end:.1f})" for f in self.faults)
        return "; ".join(texts)


def compose(seed: int) -> Schedule:
    """Two to four faults, which may overlap.

    >>> compose(7) == compose(7)
    True
    """
    rng = random.Random(seed)
    victims = [*rng.sample(_REPLICAS, 2), *_WORKERS, _BROKER]
    rng.shuffle(victims)
    faults = []
    for victim in victims[: rng.randint(2, 4)]:
        start = round(rng.uniform(0, _SPAN_SECONDS / 2), 1)
        end = round(start + rng.uniform(0.5, _SPAN_SECONDS / 2), 1)
        faults.append(ScheduledFault(rng.choice(list(_KINDS[victim])), victim, start, end))
    return Schedule(seed, tuple(sorted(_playable(faults), key=lambda fault: fault.start)))


def _playable(faults: list[ScheduledFault]) -> Iterator[ScheduledFault]:
    """No worker is started while the broker is away: the step would wait for what only a later
    one brings back."""
    away = next((fault for fault in faults if fault.victim == _BROKER), None)
    for fault in faults:
        starts = fault.victim in _WORKERS and fault.kind == "kill, start"
        if starts and away is not None and away.start <= fault.end <= away.end:
            yield replace(fault, end=round(away.end + 0.1, 1))
        else:
            yield fault


def experiment_of(schedule: Schedule) -> dict[str, Any]:
    """The schedule as an experiment."""
    found = experiment(str(EXPERIMENTS / "random.yaml"))
    found["title"] += f", seed {schedule.seed}"
    found["description"] = f"{schedule}."
    found["tags"] = [f"random-{schedule.seed}"]
    found["method"][:0] = _method(schedule)
    return found


def _method(schedule: Schedule) -> Iterator[dict[str, Any]]:
    """All faults begin and end, each action after a pause."""
    steps = sorted(
        (step for fault in schedule.faults for step in fault.steps()), key=lambda step: step[0]
    )
    now = 0.0
    for at, func, arguments in steps:
        yield {
            "type": "action",
            "name": " ".join((func, *map(str, arguments.values()))),
            "pauses": {"before": round(at - now, 2)},
            "provider": {
                "type": "python",
                "module": "lmerge_service.drills.actions",
                "func": func,
                "arguments": arguments,
            },
        }
        now = at
