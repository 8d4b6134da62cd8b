"""What the dashboard knows: of each merge the picture, its last minutes and its log; of each query
its plan. Made of the workers' answers, once for all who look.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmerge_service.dashboard.happenings import Happening, Happenings, changes
from lmerge_service.dashboard.history import History, Sample
from lmerge_service.dashboard.merged import MergeView, merge_of, merged
from lmerge_service.dashboard.polling import Answer
from lmerge_service.dashboard.queries import QueryView, is_query, query_of
from lmerge_service.dashboard.quiet import Quiet
from lmerge_service.dashboard.rates import Rates

__all__ = ("Model", "WatchedMerge", "labelled")

_NAMES = {"commit_p50": "commit p50", "commit_p99": "commit p99"}


@dataclass(slots=True)
class WatchedMerge:
    """One merge, over time."""

    key: tuple[str, str]
    addresses: list[str] = field(default_factory=list)
    view: MergeView | None = None
    history: History = field(default_factory=History)
    happenings: Happenings = field(default_factory=Happenings)
    rates: dict[str, Rates] = field(default_factory=dict)
    """By worker."""
    per_second: dict[str, float | None] = field(default_factory=dict)
    """Elements a second, by replica; `>` is the output."""
    quiet: Quiet = field(default_factory=Quiet)

    def take(self, at: float, answers: Mapping[str, Answer]) -> None:
        """Answers of its workers at a time (Unix, in seconds)."""
        ours = [(address, answers[address]) for address in sorted(self.addresses)]
        given = [(address, each.status, each.away) for address, each in ours]
        memory = {address: each.memory for address, each in ours if each.memory is not None}
        before, self.view = self.view, merged(given, self.view, memory)
        if before is None:
            began = f"the dashboard began to ask {len(ours)} worker(s) of {self.view.name}"
            self.happenings.add([Happening(at, "worker", began)])
        else:
            self.happenings.add(changes(before, self.view, at))
        self.happenings.led(self.view, at)
        for address, each in ours:
            self.happenings.decided(reversed(each.decisions))
            self._count(address, at, each.status)
        self.per_second = _summed(self.rates.values())
        self.quiet.take(at, self.view)
        self.history.gap_seconds = max(5.0, *(3.0 * each.pause for _, each in ours))
        self.history.add(_sample(at, self.view, self.per_second))

    def _count(self, address: str, at: float, status: Mapping[str, Any] | None) -> None:
        if status is None:
            self.rates.pop(address, None)
        else:
            self.rates.setdefault(address, Rates()).take(at, dict(_counts(status)))


@dataclass(slots=True)
class Model:
    """All that is watched."""

    merges: dict[tuple[str, str], WatchedMerge] = field(default_factory=dict)
    queries: dict[str, QueryView] = field(default_factory=dict)
    """By address."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Addresses of which it is not known yet what they are, and why."""
    generation: int = 0
    """Rises with each answer."""
    _rates: dict[str, Rates] = field(default_factory=dict)

    def take(self, at: float, answers: Mapping[str, Answer]) -> None:
        """All answers at a time (Unix, in seconds)."""
        self.generation += 1
        for address, answer in answers.items():
            self._place(address, answer, at)
        for watched in self.merges.values():
            watched.take(at, answers)

    def _place(self, address: str, answer: Answer, at: float) -> None:
        """Finds out what an address is; who is away is what it was."""
        status = answer.status
        if status is not None and is_query(status):
            self.unknown.pop(address, None)
            self.queries[address] = query_of(
                address, status, None, self._rates.setdefault(address, Rates()), at
            )
            return
        if address in self.queries:
            self._rates.pop(address, None)
            self.queries[address] = self.queries[address].gone(answer.away)
            return
        key = None if status is None else merge_of(status)
        if key is not None:
            self.unknown.pop(address, None)
            for other in [each for each in self.merges.values() if each.key != key]:
                if address in other.addresses:
                    other.addresses.remove(address)
                if not other.addresses:
                    del self.merges[other.key]  # nobody can tell any more
            watched = self.merges.setdefault(key, WatchedMerge(key))
            if address not in watched.addresses:
                watched.addresses.append(address)
        elif not any(address in each.addresses for each in self.merges.values()):
            self.unknown[address] = answer.away or "it is neither a worker nor a query"


def _counts(status: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Inserts and adjusts by replica, and of the output (`>`): stables go to every task."""
    for each in status.get("replicas", ()):
        if (count := _elements(each)) is not None:
            yield str(each.get("name")), count
    leads = any(task.get("role") == "leads" for task in status.get("tasks", ()))
    if leads and (count := _elements(status.get("output") or {})) is not None:
        yield ">", count


def _elements(counts: Mapping[str, Any]) -> int | None:
    known = [counts.get(kind) for kind in ("inserts", "adjusts")]
    found = [count for count in known if isinstance(count, int)]
    return sum(found) if len(found) == len(known) else None


def _summed(all_rates: Iterable[Rates]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for rates in all_rates:
        for name in rates.names():
            rate = rates.of(name)
            if rate is not None:
                found[name] = (found.get(name) or 0.0) + rate
    return found


def _sample(at: float, view: MergeView, rates: Mapping[str, float | None]) -> Sample:
    """The numbers of a picture, by series: `stable NAME` is a replica's stable point."""
    if not view.known:
        return Sample(at, blank=True)
    found: dict[str, float | None] = {
        f"stable {each.name}": each.stable_point for each in view.replicas if not each.ended
    }
    found["output"] = None if view.ended else view.stable_point
    found["rate"] = rates.get(">")
    found["live events"] = view.counts.get("live_events")
    found |= {name: getattr(view, field_name) for field_name, name in _NAMES.items()}
    found["commit"] = max((1e3 * (each.commit_seconds or 0.0) for each in view.tasks), default=0.0)
    found |= {f"memory {each.address}": each.memory for each in view.workers}
    known = {name: float(value) for name, value in found.items() if value is not None}
    return Sample(at, known, view.leader)


def labelled(merges: Mapping[tuple[str, str], WatchedMerge]) -> dict[str, WatchedMerge]:
    """Merges by their names; where several share one, with the topic of the output.

    >>> list(labelled({(name, topic): WatchedMerge((name, topic)) for name, topic in
    ...     [("a", "t"), ("b", "u"), ("b", "v")]}))
    ['a', 'b into u', 'b into v']
    """
    often = Counter(name for name, _ in merges)
    return {
        name if often[name] == 1 else f"{name} into {topic}": watched
        for (name, topic), watched in merges.items()
    }
