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

from chaos.records import Topic
from chaos.verdicts import Finding
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
    """Which events go out, and how far the output's stable goes."""

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
            self._apply(action, at)
        self.verdicts[id_] = Verdict(id_, at, self.version, refused)

    def _refusal(self, action: Mapping[str, Any]) -> str | None:
        """Why an action is not possible now."""
        kind = action["do"]
        if kind == "declare":
            return "state" if action == self.declared else None
        if not self.version:
            return "state"
        if kind == "policy":
            speaking = action["insert"], action["stable"]
            return self._unattainable(speaking, self._present())
        if kind == "attach":
            return self._no_attach(action["replica"])
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
                    self.speaking = tuple(action["policy"].values())
                self.declared = action
            case "attach":
                self._attach(action["replica"]["name"], action["replica"]["topic"], at)
            case "release":
                self._attach(name := action["replica"], self.replicas[name].topic, at)
            case "detach" | "quarantine" as kind:
                self._withdraw(action["replica"], f"{kind.removesuffix('e')}ed", at)
            case "policy":
                self.speaking = action["insert"], action["stable"]

    def _attach(self, name: str, topic: str, at: int) -> None:
        self.replicas[name] = _Wanted(topic, "attached")
        self.spans.setdefault((name, topic), []).append((at, INFINITY))

    def _withdraw(self, name: str, wish: str, at: int) -> None:
        known = self.replicas[name]
        if known.wish == "attached":
            spans = self.spans[name, known.topic]
            spans[-1] = (spans[-1][0], at)
        known.wish = wish


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
