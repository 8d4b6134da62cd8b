"""Random drills: several faults at once, and the shortest schedule that still fails.

Theory
    A schedule is a set of faults, each with a beginning and an end; who is hit by one is hit by no
    other, and at most two of the three replicas are hit, so that the output is always owed. Equal
    seeds give equal schedules. What the schedules do to real processes is not the same each time:
    a run that fails is evidence, a run that passes is none.

    So shrinking is sound, but not complete: it leaves out one fault after the other, runs what is
    left up to twice, and takes it only if that has failed in the same way itself. Whatever it
    returns was seen to fail.

    >>> fails = lambda s: {f.victim for f in s.faults} >= {"w1", "broker"}
    >>> faults = tuple(Fault("pause", victim, 1.0, 2.0) for victim in ("a", "w1", "broker", "c"))
    >>> [fault.victim for fault in shrink(Schedule(1, faults), fails).faults]
    ['w1', 'broker']
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from lmerge_service.drills.report import Result

__all__ = ("Fault", "Schedule", "compose", "experiment_of", "failures", "shrink")

_REPLICAS: Final = ("a", "b", "c")
_WORKERS: Final = ("w1", "w2")
_TRIES: Final = 2
_HOLE_SECONDS: Final = 90
_SPAN_SECONDS: Final = 8.0

Step = tuple[str, dict[str, Any]]
"""An action's function and its arguments."""

_ON_REPLICAS: Final = (
    "kill for good", "kill, restart", "kill, restore", "kill, start over", "pause", "throttle",
    "corrupt", "late", "latency", "bandwidth", "reset_peer", "black hole",
)  # fmt: skip
_ON_WORKERS: Final = (
    "kill, start", "pause", "throttle", "latency", "bandwidth", "reset_peer", "black hole",
)  # fmt: skip
_ON_BROKER: Final = ("pause", "kill, start")
_TOXICS: Final[dict[str, dict[str, int]]] = {
    "latency": {"latency": 300, "jitter": 200},
    "bandwidth": {"rate": 20},
    "reset_peer": {"timeout": 200},
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its end."""

    kind: str
    victim: str
    start: float
    """Seconds since all was well."""
    end: float

    def begin_steps(self) -> list[Step]:
        kind, victim = self.kind, self.victim
        if victim == "broker":
            return [("pause_broker" if kind == "pause" else "kill_broker", {})]
        if kind in _TOXICS:
            return [("add_toxic", {"link": victim, "kind": kind, **_TOXICS[kind]})]
        match kind:
            case "black hole":
                return [("cut_link", {"link": victim})]
            case "throttle":
                return [("throttle", {"name": victim, "share": 0.3})]
            case "corrupt" | "late":
                manner = {"corrupt": 0.05} if kind == "corrupt" else {"lag": 2}
                return [("deploy_replica", {"replica": victim, **manner})]
        verb = "pause" if kind == "pause" else "kill"
        role = "worker" if victim in _WORKERS else "replica"
        return [(f"{verb}_{role}", {role: victim})]

    def end_steps(self) -> list[Step]:
        kind, victim = self.kind, self.victim
        if victim == "broker":
            return [("resume_broker" if kind == "pause" else "start_broker", {})]
        if kind in _TOXICS or kind == "black hole":
            return [("mend_links", {"link": victim})]
        role = "worker" if victim in _WORKERS else "replica"
        match kind:
            case "throttle":
                return [("unthrottle", {"name": victim})]
            case "pause":
                return [(f"resume_{role}", {role: victim})]
            case "kill, start":
                return [("start_worker", {"worker": victim})]
            case "kill, restart" | "kill, restore":
                return [(f"{kind.removeprefix('kill, ')}_replica", {"replica": victim})]
            case "kill, start over":
                return [("start_over", {"replica": victim})]
        return []


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults by the seed that they come from."""

    seed: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        texts = (f"{f.kind} {f.victim} [{f.start:.1f}, {f.end:.1f})" for f in self.faults)
        return "; ".join(texts)


def compose(seed: int) -> Schedule:
    """Two to four faults, which may overlap.

    >>> compose(7) == compose(7)
    True
    """
    rng = random.Random(seed)
    victims = [*rng.sample(_REPLICAS, 2), *_WORKERS, "broker"]
    rng.shuffle(victims)
    faults = []
    for victim in victims[: rng.randint(2, 4)]:
        kinds = (
            _ON_BROKER
            if victim == "broker"
            else _ON_WORKERS
            if victim in _WORKERS
            else _ON_REPLICAS
        )
        start = round(rng.uniform(0, _SPAN_SECONDS / 2), 1)
        end = round(start + rng.uniform(0.5, _SPAN_SECONDS / 2), 1)
        faults.append(Fault(rng.choice(kinds), victim, start, end))
    return Schedule(seed, tuple(sorted(_playable(faults), key=lambda fault: fault.start)))


def _playable(faults: list[Fault]) -> Iterator[Fault]:
    """No worker is started while the broker is away: the step would wait for what only a later
    one brings back."""
    away = next((fault for fault in faults if fault.victim == "broker"), None)
    for fault in faults:
        starts = fault.victim in _WORKERS and fault.kind == "kill, start"
        if starts and away is not None and away.start <= fault.end <= away.end:
            yield replace(fault, end=round(away.end + 0.1, 1))
        else:
            yield fault


def experiment_of(schedule: Schedule) -> dict[str, Any]:
    """The schedule as an experiment, which can be kept and run again."""
    timed = [(f.start, step) for f in schedule.faults for step in f.begin_steps()]
    timed += [(f.end, step) for f in schedule.faults for step in f.end_steps()]
    method, now = [], 0.0
    for at, (func, arguments) in sorted(timed, key=lambda each: each[0]):
        method.append(_activity("action", func, func, arguments, max(0.0, at - now)))
        now = at
    name = f"random-{schedule.seed}"
    return {
        "title": f"Random faults, seed {schedule.seed}",
        "description": f"{schedule}.",
        "tags": [name],
        "configuration": {"within": _HOLE_SECONDS},
        "controls": [
            {
                "name": "environment",
                "provider": {"type": "python", "module": "lmerge_service.drills.control"},
            }
        ],
        "steady-state-hypothesis": {
            "title": "The output is what its replicas allow, and moves",
            "probes": [
                _activity("probe", "verdict of K1 to K8", "verdict") | {"tolerance": "valid"},
                _activity("probe", "longest time without output, seconds", "longest_hole")
                | {"tolerance": [0, _HOLE_SECONDS]},
            ],
        },
        "method": [
            *method,
            _activity("action", "workers that have ended are started", "start_missing_workers"),
            _activity("probe", "seconds until the output moves on", "seconds_until_moving"),
            _activity("action", "replicas publish the rest, and end", "finish"),
        ],
        "rollbacks": [_activity("action", "all faults end", "heal")],
    }


def _activity(
    kind: str, name: str, func: str, arguments: dict[str, Any] | None = None, pause: float = 0
) -> dict[str, Any]:
    module = "lmerge_service.drills.actions" if kind == "action" else "lmerge_service.drills.probes"
    provider: dict[str, Any] = {"type": "python", "module": module, "func": func}
    activity: dict[str, Any] = {"type": kind, "name": name, "provider": provider}
    if arguments:
        provider["arguments"] = arguments
        activity["name"] = f"{name} {' '.join(map(str, arguments.values()))}"
    if pause:
        activity["pauses"] = {"before": round(pause, 2)}
    return activity


def failures(result: Result) -> frozenset[str]:
    """In which ways a drill has failed, by the names of checks, steps and probes.

        Nothing if it has passed, and nothing if it could not be played: a fault that has not come
    about proves nothing about the merge.
    """
    if result.passed or result.unplayed:
        return frozenset()
    ways = frozenset(line.partition(":")[0] for line in result.why)
    return ways - {"verdict of K1 to K8 (after the faults)"} or ways


def shrink(failing: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """The shortest schedule found; it has failed itself, as `failing` has."""
    index = 0
    while index < len(failing.faults) and len(failing.faults) > 1:
        rest = (*failing.faults[:index], *failing.faults[index + 1 :])
        shorter = replace(failing, faults=rest)
        if any(fails(shorter) for _ in range(_TRIES)):
            failing = shorter
        else:
            index += 1
    return failing
