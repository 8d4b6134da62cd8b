"""What happened to a merge, as a log: the differences of successive pictures, and decisions.

Theory
    A worker reports states, not events. What differs between two pictures has happened between
    them; what began and ended within one interval of asking is in the worker's log and in
    OUTPUT.events only. Decisions are read from the workers' control API, each with who made it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lmerge_service.dashboard.merged import MergeView

__all__ = ("Happening", "Happenings", "changes")

_KEPT: Final = 1_000
_FILE: Final = "the topology file"
"""Who declares the topology at each start of a worker; what is declared already is refused."""


@dataclass(frozen=True, slots=True)
class Happening:
    """A line of the log."""

    at: float
    """Unix time in seconds."""
    kind: str
    """leader, replica, worker, reason, cutover, decision or refused."""
    text: str
    bad: bool = False
    """Somebody should look."""


def changes(before: MergeView, after: MergeView, at: float) -> Iterator[Happening]:
    """What has happened between two pictures of a merge."""
    yield from _workers(before, after, at)
    if not (before.known and after.known):
        return
    if before.leader != after.leader:
        why = f": {after.leader_why}" if after.leader_why and after.leader else ""
        yield Happening(
            at,
            "leader",
            f"{after.leader or 'nobody'} leads, after {before.leader or 'nobody'}{why}",
        )
    yield from _replicas(before, after, at)
    for kind, text in after.reasons:
        if (kind, text) not in before.reasons and kind not in {k for k, _ in before.reasons}:
            yield Happening(at, "reason", text, bad=True)
    for kind in {k for k, _ in before.reasons} - {k for k, _ in after.reasons}:
        yield Happening(at, "reason", f"over: {kind.replace('_', ' ')}")
    yield from _cutover(before.cutover or {}, after.cutover or {}, at)
    if before.incarnation != after.incarnation and None not in (
        before.incarnation,
        after.incarnation,
    ):
        text = f"the output has started over, as incarnation {after.incarnation}"
        yield Happening(at, "reason", text, bad=True)


def _workers(before: MergeView, after: MergeView, at: float) -> Iterator[Happening]:
    known = {each.address: each for each in before.workers}
    for each in after.workers:
        state = known[each.address].state if each.address in known else None
        if state == each.state:
            continue
        if each.state == "away":
            yield Happening(at, "worker", f"{each.address} does not answer: {each.why}", bad=True)
        else:
            yield Happening(at, "worker", f"{each.address} is {each.state}")


def _replicas(before: MergeView, after: MergeView, at: float) -> Iterator[Happening]:
    known = {each.name: each for each in before.replicas}
    for each in after.replicas:
        was = known.pop(each.name, None)
        if was is None:
            yield Happening(at, "replica", f"{each.name} is {each.word}")
            continue
        if was.word != each.word:
            why = f": {each.why}" if each.why else ""
            bad = each.state in {"excluded", "quarantined", "paused"}
            text = f"{each.name} is {each.word}, was {was.word}{why}"
            yield Happening(at, "replica", text, bad)
        if None not in (was.incarnation, each.incarnation) and was.incarnation != each.incarnation:
            text = f"{each.name} has started over, as incarnation {each.incarnation}"
            yield Happening(at, "replica", text)
        if each.disagrees and not was.disagrees:
            yield Happening(at, "replica", f"{each.name} contradicts the output", bad=True)
        yield from _counted(each.name, was.counts, each.counts, was.breaches, each.breaches, at)
    for name in known:
        yield Happening(at, "replica", f"{name} is merged no more")


def _counted(
    name: str, was: Mapping[str, int], now: Mapping[str, int], broke: Mapping[str, int],
    breaks: Mapping[str, int], at: float,
) -> Iterator[Happening]:  # fmt: skip
    """First occurrences only: the table has the counts."""
    if now.get("dead_letters") and not was.get("dead_letters"):
        yield Happening(at, "replica", f"{name} has published what is no element", bad=True)
    if now.get("lost_events") and not was.get("lost_events"):
        yield Happening(at, "replica", f"{name}'s stable came before events of others", bad=True)
    for kind in breaks.keys() - broke.keys():
        yield Happening(at, "replica", f"{name} broke a rule: {kind}", bad=True)


def _cutover(was: Mapping[str, Any], now: Mapping[str, Any], at: float) -> Iterator[Happening]:
    if not now or (was.get("began"), was.get("state")) == (now.get("began"), now.get("state")):
        return
    why = f": {now['why']}" if now.get("why") else ""
    text = f"cutover {now.get('leaving')} → {now.get('coming')} is {now.get('state')}{why}"
    yield Happening(at, "cutover", text, now.get("state") == "aborted")


class Happenings:
    """The last thousand lines of one merge; decisions are there once each."""

    def __init__(self) -> None:
        self._lines: deque[Happening] = deque(maxlen=_KEPT)
        self._decided: dict[str, None] = {}
        self._led: dict[int, str] = {}
        """By task, the worker that led it last: for a while nobody may."""

    def add(self, happenings: Iterable[Happening]) -> None:
        """Lines in the order in which they happened."""
        self._lines.extend(happenings)

    def led(self, after: MergeView, at: float) -> None:
        """Which worker leads which task now."""
        for task in after.tasks:
            was = self._led.get(task.partition, task.worker)
            if task.worker is None:
                continue
            self._led[task.partition] = task.worker
            if was != task.worker:
                text = f"task {task.partition} moved from {was} to {task.worker}"
                self._lines.append(Happening(at, "worker", text))

    def decided(self, decisions: Iterable[Mapping[str, Any]]) -> None:
        """Decisions as `/v1/decisions` lists them, those that are known among them."""
        for each in decisions:
            if (name := str(each.get("id"))) in self._decided:
                continue
            self._decided[name] = None
            while len(self._decided) > _KEPT:
                del self._decided[next(iter(self._decided))]
            self._lines.append(_decision(each))

    def newest_first(self) -> list[Happening]:
        """All of them by time."""
        return sorted(self._lines, key=lambda each: each.at, reverse=True)


def _decision(each: Mapping[str, Any]) -> Happening:
    accepted = bool(each.get("accepted"))
    verdict = f"version {each.get('version')}" if accepted else f"refused: {each.get('why')}"
    text = f"{each.get('what')}, by {each.get('who')} ({verdict})"
    made = each.get("made")
    at = made / 1000 if isinstance(made, int | float) else 0.0
    bad = not accepted and each.get("who") != _FILE
    return Happening(at, "decision" if accepted else "refused", text, bad)
