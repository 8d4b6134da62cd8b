"""The ways in which one plan hands over to another, over Example 30.1 (`benchmarks.migration`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol, TypeAlias

from benchmarks.dead import Dead
from benchmarks.genmig import GenMig
from benchmarks.parallel_track import ParallelTrack
from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import PhysicalPlan, physical
from lmerge_service.queries.plan import Query, elements
from lmerge_service.queries.plan_switch import RunningQuery
from lmerge_service.queries.properties import case, required_history

__all__ = ("RESUMED", "SECOND", "STEP", "WAYS", "Example", "Way", "joins")

SECOND: Final = 1_000
STEP: Final = SECOND // 10
_WATCHED: Final = 10 * SECOND
_RESUMED_AFTER: Final = 2 * SECOND
_NAMES: Final = "abcd"


@dataclass(frozen=True, slots=True)
class Example:
    """Example 30.1, and smaller ones of the same selectivities. Times in milliseconds."""

    rate: int = 100
    """Elements of a stream in a second, 10 at least."""
    seconds: int = 50
    width: int = 10 * SECOND
    begins: int = 20 * SECOND
    dies: int = 25 * SECOND

    def steps(self) -> Iterator[tuple[int, Mapping[str, list[Element]]]]:
        """(time at its end, elements by source) of each step."""
        rng = Random(30)
        below = {"a": 5 * self.rate, "b": 5 * self.rate, "c": 10 * self.rate, "d": 10 * self.rate}
        gap = SECOND // self.rate
        for end in range(STEP, self.seconds * SECOND + 1, STEP):
            yield (
                end,
                {
                    name: [
                        *(
                            Insert((rng.randrange(below[name]),), t, t + self.width)
                            for t in range(end - STEP, end, gap)
                        ),
                        Stable(end),
                    ]
                    for name in _NAMES
                },
            )


def joins(*flags: str) -> tuple[Query, Query]:
    """The left-deep and the right-deep plan; sources have a flag each besides, if there are any."""
    a, b, c, d = (
        elements(name, {"v": int, **{f"{name}_{flag}": bool for flag in flags}}) for name in _NAMES
    )
    left = a.join(b, "v").join(c, "v").join(d, "v")
    return left, a.join(b.join(c.join(d, "v"), "v"), "v")


Past: TypeAlias = Mapping[str, Sequence[Element]]
"""What each source has sent."""


class Way(Protocol):
    """What computes the query while its plan changes."""

    done: int | None
    """When the old plan was not needed any more; None: it still is."""

    def __len__(self) -> int: ...

    def begin(self, now: int, past: Past) -> list[Element]: ...

    def process_batch(self, now: int, source: str, given: list[Element]) -> list[Element]: ...

    def kill(self, now: int, which: str) -> None: ...


class Uninterrupted:
    """The old plan alone; what is right."""

    def __init__(self, _example: Example) -> None:
        self.done: int | None = None
        self._network: Network | Dead = physical(joins()[0]).begin()

    def __len__(self) -> int:
        return len(self._network)

    def begin(self, now: int, past: Past) -> list[Element]:
        return []

    def process_batch(self, now: int, source: str, given: list[Element]) -> list[Element]:
        return self._network.process_batch(source, given)

    def kill(self, now: int, which: str) -> None:
        self._network = Dead(self._network.stable)


class Migrating:
    """GenMig."""

    def __init__(self, example: Example) -> None:
        left, self._right = joins()
        self.done: int | None = None
        self._width = example.width
        self._query = GenMig(physical(left).begin())

    def __len__(self) -> int:
        return len(self._query)

    def begin(self, now: int, past: Past) -> list[Element]:
        self._query.migrate(physical(self._right).begin(), self._width)
        return []

    def process_batch(self, now: int, source: str, given: list[Element]) -> list[Element]:
        emitted = self._query.process_batch(source, given)
        if self._query.is_done and self.done is None:
            self.done = now
        return emitted

    def kill(self, now: int, which: str) -> None:
        if (network := getattr(self._query, which)) is not None:
            setattr(self._query, which, Dead(network.stable))


class Adopting:
    """`RunningQuery.switch_plan`, and `resume` if the process is started again."""

    def __init__(self, _example: Example, *, resumes: bool = False) -> None:
        left, right = joins()
        self.done: int | None = None
        self._new = physical(right)
        self._query: RunningQuery | Dead = RunningQuery(physical(left))
        self._output = LiveEvents()
        self._resumes, self._resumes_at = resumes, INFINITY
        self._past: Past = {}

    def __len__(self) -> int:
        return len(self._query)

    def begin(self, now: int, past: Past) -> list[Element]:
        assert isinstance(self._query, RunningQuery)
        self.done, self._past = now, past
        given = history(past, self._new, self._query.stable)
        return self._taken(self._query.switch_plan(self._new, given))

    def process_batch(self, now: int, source: str, given: list[Element]) -> list[Element]:
        if now < self._resumes_at:
            return self._taken(self._query.process_batch(source, given))
        self._resumes_at = INFINITY
        stable = self._output.stable
        past = history(self._past, self._new, stable)  # what is given now is in it
        self._query, emitted = RunningQuery.resume(self._new, self._output, stable, past)
        return self._taken(emitted)

    def _taken(self, emitted: list[Element]) -> list[Element]:
        self._output.apply(emitted)
        return emitted

    def kill(self, now: int, which: str) -> None:
        if which == "old":
            return  # it went when the new one took over
        self._query = Dead(self._query.stable)
        if self._resumes:
            self._resumes_at = now + _RESUMED_AFTER


class Merging:
    """Two replicas and the merge, as a cutover has it."""

    def __init__(self, example: Example, *, is_cold: bool = False) -> None:
        plans = [physical(query) for query in joins()]
        self.done: int | None = None
        self._new, self._width, self._is_cold = plans[1], example.width, is_cold
        self._merge = lmerge(case(plans))
        self._merge.attach("old")
        self._replicas: dict[str, Network | Dead] = {"old": plans[0].begin()}
        self._joined: int | None = None

    def __len__(self) -> int:
        return len(self._merge) + sum(map(len, self._replicas.values()))

    def begin(self, now: int, past: Past) -> list[Element]:
        replica = self._replicas["new"] = self._new.begin()
        if self._is_cold:
            latest = max(e.vs for stream in past.values() for e in stream if type(e) is Insert)
            self._merge.attach("new", joining_at=latest + self._width + 1)
            return []
        self._merge.attach("new", joining_at=self._merge.max_stable)
        given = history(past, self._new, self._merge.max_stable)
        return self._merge.process_batch("new", replica.process_batches(given))

    def process_batch(self, now: int, source: str, given: list[Element]) -> list[Element]:
        emitted: list[Element] = []
        for name, replica in self._replicas.items():
            if published := replica.process_batch(source, given):
                emitted += self._merge.process_batch(name, published)
        self._watch(now)
        return emitted

    def _watch(self, now: int) -> None:
        """Detaches the old replica when the new one has been joined, and level, for long enough."""
        new = self._merge.inputs.get("new")
        if self.done is not None or new is None or not new.joined:
            return
        output = self._merge.max_stable
        if self._joined is None:
            self._joined = output
        if output >= self._joined + _WATCHED and self._replicas["new"].stable >= output:
            self._merge.detach("old")
            del self._replicas["old"]
            self.done = now

    def kill(self, now: int, which: str) -> None:
        if which in self._replicas:
            self._replicas[which] = Dead(self._replicas[which].stable)


def history(past: Past, plan: PhysicalPlan, stable: int) -> dict[str, list[Element]]:
    """What a plan needs of the past to go on at `stable`."""
    since = required_history(plan.plan, stable)
    return {
        name: [
            *(e for e in stream if type(e) is not Stable and e.ve >= since[name]),  # type: ignore[union-attr]
            *[e for e in stream if type(e) is Stable][-1:],
        ]
        for name, stream in past.items()
    }


def _parallel_track(example: Example) -> ParallelTrack:
    left, right = (physical(query) for query in joins("old"))
    return ParallelTrack(left, right, 1, 2 * example.width)


WAYS: Final[Mapping[str, Callable[[Example], Way]]] = {
    "uninterrupted": Uninterrupted,
    "adopt": Adopting,
    "GenMig": Migrating,
    "LMerge": Merging,
    "LMerge, cold": lambda example: Merging(example, is_cold=True),
    "Parallel Track": _parallel_track,
    "adopt, resumed": lambda example: Adopting(example, resumes=True),
}
RESUMED: Final = "adopt, resumed"
