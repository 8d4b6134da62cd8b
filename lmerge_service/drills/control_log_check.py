"""What was decided, from the control topic alone, and what that means for the other checks.

Theory
    Each record of the control topic is a decision, and their order decides. One that was made
    against another version than there is, or that makes no sense where it comes, changes nothing;
    any other makes the next version. This is folded here anew, by the promise and in few lines,
    so that what the service made of the same records can be held against it:

        K9  who decided was told what the log says

    While a replica is attached it counts. What it says afterwards is nobody's business: if it is
    attached again by another topic, of that topic.

    A gap that somebody accepted is lost, as far as the events topic says so, and no further: an
    event that ends in it may be there or not, with any end.

Invariants
    D1  A record that is no decision changes nothing, nor does one whose id was there before.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmerge_service.drills.records import Topic
from lmerge_service.drills.verdicts import Finding
from lmerge_service.elements import INFINITY, START

__all__ = ("Answer", "Decided", "Verdict", "decided", "k9", "lost")

_QUORUM = re.compile(r"quorum\((\d+)\)")
_LOST = re.compile(r"\[(-?\d+), (-?\d+)\) is lost")


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody who decided was told."""

    id: str
    version: int
    refused: str | None
    """The kind of refusal: version, state, unknown or invalid."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is right about one decision."""

    id: str
    at: int
    """Milliseconds since the epoch."""
    version: int
    """After it."""
    refused: str | None


@dataclass(slots=True)
class _Wanted:
    topic: str
    wish: str
    """attached, quarantined or detached."""
    epoch: int
    """The version that attached it."""


@dataclass(slots=True)
class _Cutover:
    leaving: str
    coming: str
    began: int
    epochs: tuple[int, int]
    since: int
    state: str = "joining"
    ready: set[int] = field(default_factory=set)
    """Tasks that are, in this state."""

    @property
    def runs(self) -> bool:
        return self.state in {"joining", "watching"}


@dataclass(slots=True)
class Decided:
    """The decisions of one control topic."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """By id."""
    spans: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """By name and topic of a replica: from when to when, in milliseconds, it was attached."""
    version: int = 0
    replicas: dict[str, _Wanted] = field(default_factory=dict)
    declared: Mapping[str, Any] | None = None
    """The last topology that was declared."""
    speaking: tuple[str, ...] = ()
    """Which events go out, which revisions, and how far the output's stable goes."""
    cutover: _Cutover | None = None
    """The last one."""

    def fold(self, at: int, value: bytes | None) -> None:
        try:
            said = json.loads(value or b"")
            id_, action, expects = str(said["id"]), said["action"], said.get("expects")
        except (ValueError, TypeError, KeyError):
            return
        if id_ in self.verdicts:
            return
        refused = "version" if expects not in (None, self.version) else self._refusal(action)
        if refused is None:
            self.version += 1
            before = self.speaking
            self._apply(action, at)
            self._review(before)
        self.verdicts[id_] = Verdict(id_, at, self.version, refused)

    def _refusal(self, action: Mapping[str, Any]) -> str | None:
        """Why an action is not possible now."""
        kind = action["do"]
        if kind == "declare":
            return "state" if action == self.declared else None
        if not self.version:
            return "state"
        if kind == "policy":
            return self._unattainable(_speaking(action), self._present())
        if kind == "attach":
            return self._no_attach(action["replica"])
        if kind.startswith("cutover"):
            return self._no_cutover(kind, action)
        known = self.replicas.get(action["replica"])
        if known is None:
            return "unknown"
        wishes = {
            "detach": ("attached", "quarantined"),
            "quarantine": ("attached",),
            "release": ("quarantined",),
            "accept_gap": ("attached",),
        }
        if known.wish not in wishes[kind]:
            return "state"
        if kind != "detach":
            return None
        left = self._present() - 1
        return self._unattainable(self.speaking, left) if left else "invalid"

    def _no_cutover(self, kind: str, action: Mapping[str, Any]) -> str | None:
        now = self.cutover
        if kind == "cutover":
            return "state" if now is not None and now.runs else self._no_change(action)
        if now is None or not now.runs:
            return "state"
        if kind == "cutover_abort":
            return None
        if (action["cutover"], action["since"]) != (now.began, now.since):
            return "state"
        if action["task"] >= self._tasks():
            return "invalid"
        known = action["task"] in now.ready
        return "state" if action["says"] == ("ready" if known else "unready") else None

    def _no_change(self, action: Mapping[str, Any]) -> str | None:
        """Why one replica cannot take another's place."""
        leaving, coming, attach = action["leaving"], action["coming"], action.get("attach")
        if leaving == coming:
            return "invalid"
        for name in (leaving, coming) if attach is None else (leaving,):
            known = self.replicas.get(name)
            if known is None or known.wish != "attached":
                return "unknown" if known is None else "state"
        if attach is not None and (refused := self._no_attach(attach)) is not None:
            return refused
        return self._unattainable(self.speaking, self._present() - (attach is None))

    def _tasks(self) -> int:
        return int((self.declared or {}).get("output", {}).get("partitions", 1))

    def _no_attach(self, replica: Mapping[str, Any]) -> str | None:
        known = self.replicas.get(replica["name"])
        if known is not None and known.wish != "detached":
            return "state"
        taken = {each.topic for each in self.replicas.values() if each.wish != "detached"}
        return "invalid" if replica["topic"] in taken else None

    def _present(self) -> int:
        return sum(each.wish != "detached" for each in self.replicas.values())

    def _unattainable(self, speaking: Iterable[str], replicas: int) -> str | None:
        quorums = filter(None, map(_QUORUM.fullmatch, speaking))
        return "invalid" if any(int(each[1]) > replicas for each in quorums) else None

    def _apply(self, action: Mapping[str, Any], at: int) -> None:
        match action["do"]:
            case "declare":
                for replica in action["replicas"]:
                    if replica["name"] not in self.replicas:
                        # What was said before anybody merged is read like all the rest.
                        self._attach(replica["name"], replica["topic"], START)
                if self.declared is None:
                    self.speaking = _speaking(action["policy"])
                self.declared = action
            case "attach":
                self._attach(action["replica"]["name"], action["replica"]["topic"], at)
            case "release":
                self._attach(name := action["replica"], self.replicas[name].topic, at)
            case "detach" | "quarantine" as kind:
                self._withdraw(action["replica"], f"{kind.removesuffix('e')}ed", at)
            case "policy":
                self.speaking = _speaking(action)
            case "cutover":
                if (attach := action.get("attach")) is not None:
                    self._attach(attach["name"], attach["topic"], at)
                both = action["leaving"], action["coming"]
                epochs = self.replicas[both[0]].epoch, self.replicas[both[1]].epoch
                self.cutover = _Cutover(*both, self.version, epochs, self.version)
            case "cutover_abort":
                self._move("aborted")
            case "cutover_report":
                self._report(action["task"], action["says"], at)

    def _move(self, state: str) -> None:
        assert self.cutover is not None
        self.cutover.state, self.cutover.since, self.cutover.ready = state, self.version, set()

    def _report(self, task: int, says: str, at: int) -> None:
        now = self.cutover
        assert now is not None
        if says == "diverged":
            self._move("aborted")
            return
        now.ready ^= {task}
        if len(now.ready) < self._tasks():
            return
        if now.state == "watching":
            self._withdraw(now.leaving, "detached", at)
        self._move("done" if now.state == "watching" else "watching")

    def _review(self, speaking: tuple[str, ...]) -> None:
        """What the last decision means for a cutover; how the output spoke before it is given."""
        now = self.cutover
        if now is None or not now.runs:
            return
        both = [self.replicas[now.leaving], self.replicas[now.coming]]
        stay = all(each.wish == "attached" for each in both)
        same = tuple(each.epoch for each in both) == now.epochs
        if not stay or not same or self._unattainable(self.speaking, self._present() - 1):
            self._move("aborted")
        elif speaking != self.speaking:
            self._move("joining")

    def _attach(self, name: str, topic: str, at: int) -> None:
        self.replicas[name] = _Wanted(topic, "attached", self.version)
        self.spans.setdefault((name, topic), []).append((at, INFINITY))

    def _withdraw(self, name: str, wish: str, at: int) -> None:
        known = self.replicas[name]
        if known.wish == "attached":
            spans = self.spans[name, known.topic]
            spans[-1] = (spans[-1][0], at)
        known.wish = wish


def _speaking(policy: Mapping[str, Any]) -> tuple[str, ...]:
    """Of an action or a topology, where what is not said is the default."""
    defaults = {"insert": "first", "adjust": "lazy", "stable": "max"}
    return tuple(str(policy.get(part, default)) for part, default in defaults.items())


def decided(control: Topic) -> Decided:
    """Folds a control topic."""
    found = Decided()
    for record in control.of(0):
        found.fold(record.timestamp, record.value)
    return found


def lost(events: Topic) -> list[tuple[int, int]]:
    """The ranges of time, without their ends, that the events topic tells were given up."""
    return [(int(said[1]), int(said[2])) for said in _given_up(events)]


def _given_up(events: Topic) -> Iterator[re.Match[str]]:
    for record in events.records:
        said = json.loads(record.value or b"{}")
        if said.get("kind") == "accepted_gap" and (found := _LOST.search(said.get("reason", ""))):
            yield found


def k9(right: Decided, answers: Sequence[Answer]) -> Finding:
    """Each answer is what the log says, and each decision that was answered is in the log."""
    wrong = []
    for answer in answers:
        verdict = right.verdicts.get(answer.id)
        if verdict is None:
            wrong.append(f"{answer} of a decision that is not in the log")
        elif (verdict.version, verdict.refused) != (answer.version, answer.refused):
            wrong.append(f"{answer}, but {verdict}")
    return Finding.of("K9", wrong)
