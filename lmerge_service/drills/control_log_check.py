"""The decisions, from the control topic alone, and what they mean for the other checks.

Theory
    Each record of the control topic is a decision, and their order decides. One that was made
    against another version than there is, or that makes no sense where it comes, changes nothing;
    any other makes the next version. This module folds the log independently, by the specification
    and in few lines, so that the service's interpretation of the same records can be checked:

        K9  the answers to decisions agree with the log, and so does each fold in it

    A fold is a record that carries what all records before it come to. It holds at the offset that
    it was made for. A log that has lost its beginning begins with one; what was attached before it
    counts from when its entry was made, or from the beginning of time.

    A replica counts while it is attached. What it publishes afterwards is ignored; if it is
    attached again with another topic, that topic counts.

    An accepted gap is lost as far as the events topic reports it, and no further: an event that
    ends in it may be there or not, with any end.

Invariants
    D1  A record that is no decision changes nothing, nor does one whose id was there before.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmerge_service.drills.records import CommittedTopic
from lmerge_service.drills.verdicts import CheckResult
from lmerge_service.elements import INFINITY, START

__all__ = ("Answer", "ControlHistory", "ExpectedOutcome", "decided", "k9", "lost")

_QUORUM = re.compile(r"quorum\((\d+)\)")
_LOST = re.compile(r"\[(-?\d+), (-?\d+)\) is lost")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a decision."""

    id: str
    version: int
    refused: str | None
    """The kind of refusal: version, state, unknown or invalid."""


@dataclass(frozen=True, slots=True)
class ExpectedOutcome:
    """The correct outcome of a decision."""

    id: str
    at: int
    """Milliseconds since the epoch."""
    version: int
    """After it."""
    refused: str | None


@dataclass(slots=True)
class _DesiredReplica:
    topic: str
    state: str
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
class ControlHistory:
    """The decisions of one control topic."""

    verdicts: dict[str, ExpectedOutcome] = field(default_factory=dict)
    """By id."""
    spans: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """By name and topic of a replica: from when to when, in milliseconds, it was attached."""
    version: int = 0
    replicas: dict[str, _DesiredReplica] = field(default_factory=dict)
    declared: Mapping[str, Any] | None = None
    """The last topology that was declared."""
    policy: tuple[str, ...] = ()
    """Which events go out, which revisions, and how far the output's stable goes."""
    cutover: _Cutover | None = None
    """The last one."""
    next: int = 0
    """The offset behind the last record."""
    wrong_folds: list[str] = field(default_factory=list)
    """Which folds are not what the records before them come to, and in what."""
    restarts: list[tuple[int, int]] = field(default_factory=list)
    """Of the output: each incarnation, and from when on it is correct."""

    def fold(self, at: int, value: bytes | None, offset: int | None = None) -> None:
        """Takes the next record, by default one without a gap before it."""
        offset = self.next if offset is None else offset
        first, self.next = self.next == 0 < offset, offset + 1
        try:
            decision = json.loads(value or b"")
            if "fold" in decision:
                if decision["offset"] == offset:
                    (self._begin if first else self._compare)(decision["ledger"])
                return
            id_, action, expects = str(decision["id"]), decision["action"], decision.get("expects")
        except (ValueError, TypeError, KeyError):
            return
        if id_ in self.verdicts:
            return
        refused = "version" if expects not in (None, self.version) else self._refusal(action)
        if refused is None:
            self.version += 1
            before = self.policy
            self._apply(action, at)
            self._review(before)
        self.verdicts[id_] = ExpectedOutcome(id_, at, self.version, refused)

    def _begin(self, ledger: Mapping[str, Any]) -> None:
        """From what a fold carries."""
        self.version, self.declared = ledger["version"], ledger["declared"]
        self.policy = _policy_of(ledger["policy"])
        self.verdicts = {
            each["decision"]["id"]: ExpectedOutcome(
                each["decision"]["id"], each["decision"]["made"], each["version"], _kind(each)
            )
            for each in ledger["entries"]
        }
        made = {
            each["version"]: START if _is_declaration(each) else each["decision"]["made"]
            for each in ledger["entries"]
            if _kind(each) is None
        }
        for each in ledger["replicas"]:
            name, topic = each["replica"]["name"], each["replica"]["topic"]
            self.replicas[name] = _DesiredReplica(topic, each["state"], each["epoch"])
            counts = each["state"] == "attached"
            end = INFINITY if counts else made.get(each["since"], START)
            self.spans[name, topic] = [(made.get(each["epoch"], START), end)]
        self.restarts = [
            (action["incarnation"], action["correct_from"])
            for each in ledger["entries"]
            if _kind(each) is None
            and (action := each["decision"]["action"])["do"] == "restart_output"
        ]
        if (now := ledger["cutover"]) is not None:
            self.cutover = _Cutover(
                now["leaving"],
                now["coming"],
                now["began"],
                (now["epochs"][0], now["epochs"][1]),
                now["since"],
                now["state"],
                set(map(int, now["ready"] or ())),
            )

    def _compare(self, ledger: Mapping[str, Any]) -> None:
        """With what a fold carries of the same records."""
        place = f"the fold at offset {self.next - 1}"
        output = ledger["output"]["number"], ledger["output"]["correct_from"]
        last = self.restarts[-1] if self.restarts else (0, START)
        if output != last:
            self.wrong_folds.append(f"{place} has output {output}, not {last}")
        if ledger["version"] != self.version:
            self.wrong_folds.append(f"{place} has version {ledger['version']}, not {self.version}")
        for each in ledger["entries"]:
            expected = self.verdicts.get(id_ := each["decision"]["id"])
            if expected is None or (expected.version, expected.refused) != (
                each["version"],
                _kind(each),
            ):
                self.wrong_folds.append(f"{place} has another verdict on {id_} than {expected}")
        there = {each["replica"]["name"]: each for each in ledger["replicas"]}
        for name in there.keys() | {n for n, r in self.replicas.items() if r.state != "detached"}:
            known, folded = self.replicas.get(name), there.get(name)
            has = None if folded is None else (folded["replica"]["topic"], folded["state"])
            if known is None or has != (known.topic, known.state):
                self.wrong_folds.append(f"{place} has replica {name} as {has}, not {known}")

    def _refusal(self, action: Mapping[str, Any]) -> str | None:
        """Why an action is not possible now."""
        kind = action["do"]
        if kind == "declare":
            return "state" if action == self.declared else None
        if not self.version:
            return "state"
        if kind == "policy":
            return self._unattainable(_policy_of(action), self._present())
        if kind == "attach":
            return self._no_attach(action["replica"])
        if kind.startswith("cutover"):
            return self._no_cutover(kind, action)
        if kind == "restart_output":
            attached = {n for n, each in self.replicas.items() if each.state == "attached"}
            before = self.restarts[-1][0] if self.restarts else 0
            fits = action["incarnation"] > before and {*action["replicas"]} == attached
            return None if fits else "state"
        known = self.replicas.get(action["replica"])
        if known is None:
            return "unknown"
        allowed = {
            "detach": ("attached", "quarantined"),
            "quarantine": ("attached",),
            "release": ("quarantined",),
            "accept_gap": ("attached",),
        }
        if known.state not in allowed[kind]:
            return "state"
        if kind != "detach":
            return None
        left = self._present() - 1
        return self._unattainable(self.policy, left) if left else "invalid"

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
        return "state" if action["readiness"] == ("ready" if known else "unready") else None

    def _no_change(self, action: Mapping[str, Any]) -> str | None:
        """Why one replica cannot take another's place."""
        leaving, coming, attach = action["leaving"], action["coming"], action.get("attach")
        if leaving == coming:
            return "invalid"
        for name in (leaving, coming) if attach is None else (leaving,):
            known = self.replicas.get(name)
            if known is None or known.state != "attached":
                return "unknown" if known is None else "state"
        if attach is not None and (refused := self._no_attach(attach)) is not None:
            return refused
        return self._unattainable(self.policy, self._present() - (attach is None))

    def _tasks(self) -> int:
        return int((self.declared or {}).get("output", {}).get("partitions", 1))

    def _no_attach(self, replica: Mapping[str, Any]) -> str | None:
        known = self.replicas.get(replica["name"])
        if known is not None and known.state != "detached":
            return "state"
        taken = {each.topic for each in self.replicas.values() if each.state != "detached"}
        return "invalid" if replica["topic"] in taken else None

    def _present(self) -> int:
        return sum(each.state != "detached" for each in self.replicas.values())

    def _unattainable(self, policy: Iterable[str], replicas: int) -> str | None:
        quorums = filter(None, map(_QUORUM.fullmatch, policy))
        return "invalid" if any(int(each[1]) > replicas for each in quorums) else None

    def _apply(self, action: Mapping[str, Any], at: int) -> None:
        match action["do"]:
            case "declare":
                for replica in action["replicas"]:
                    if replica["name"] not in self.replicas:
                        # The replica's topic is read from its beginning.
                        self._attach(replica["name"], replica["topic"], START)
                if self.declared is None:
                    self.policy = _policy_of(action["policy"])
                self.declared = action
            case "attach":
                self._attach(action["replica"]["name"], action["replica"]["topic"], at)
            case "release":
                self._attach(name := action["replica"], self.replicas[name].topic, at)
            case "detach" | "quarantine" as kind:
                self._withdraw(action["replica"], f"{kind.removesuffix('e')}ed", at)
            case "policy":
                self.policy = _policy_of(action)
            case "cutover":
                if (attach := action.get("attach")) is not None:
                    self._attach(attach["name"], attach["topic"], at)
                both = action["leaving"], action["coming"]
                epochs = self.replicas[both[0]].epoch, self.replicas[both[1]].epoch
                self.cutover = _Cutover(*both, self.version, epochs, self.version)
            case "cutover_abort":
                self._move("aborted")
            case "restart_output":
                self.restarts.append((action["incarnation"], action["correct_from"]))
                for name in action["replicas"]:
                    self.replicas[name].epoch = self.version
            case "cutover_report":
                self._report(action["task"], action["readiness"], at)

    def _move(self, state: str) -> None:
        assert self.cutover is not None
        self.cutover.state, self.cutover.since, self.cutover.ready = state, self.version, set()

    def _report(self, task: int, report: str, at: int) -> None:
        now = self.cutover
        assert now is not None
        if report == "diverged":
            self._move("aborted")
            return
        now.ready ^= {task}
        if len(now.ready) < self._tasks():
            return
        if now.state == "watching":
            self._withdraw(now.leaving, "detached", at)
        self._move("done" if now.state == "watching" else "watching")

    def _review(self, policy: tuple[str, ...]) -> None:
        """What the last decision means for a cutover; `policy` is the one before it."""
        now = self.cutover
        if now is None or not now.runs:
            return
        both = [self.replicas[now.leaving], self.replicas[now.coming]]
        stay = all(each.state == "attached" for each in both)
        same = tuple(each.epoch for each in both) == now.epochs
        if not stay or not same or self._unattainable(self.policy, self._present() - 1):
            self._move("aborted")
        elif policy != self.policy:
            self._move("joining")

    def _attach(self, name: str, topic: str, at: int) -> None:
        self.replicas[name] = _DesiredReplica(topic, "attached", self.version)
        self.spans.setdefault((name, topic), []).append((at, INFINITY))

    def _withdraw(self, name: str, state: str, at: int) -> None:
        known = self.replicas[name]
        if known.state == "attached":
            spans = self.spans[name, known.topic]
            spans[-1] = (spans[-1][0], at)
        known.state = state


def _kind(entry: Mapping[str, Any]) -> str | None:
    """Of the refusal of an entry, as a fold has it."""
    refusal = entry["refusal"]
    return None if refusal is None else str(refusal["kind"])


def _is_declaration(entry: Mapping[str, Any]) -> bool:
    return bool(entry["decision"]["action"]["do"] == "declare")


def _policy_of(policy: Mapping[str, Any]) -> tuple[str, ...]:
    """Of an action or a topology, with the defaults of missing fields."""
    defaults = {"insert": "first", "adjust": "lazy", "stable": "max"}
    return tuple(str(policy.get(part, default)) for part, default in defaults.items())


def decided(control: CommittedTopic) -> ControlHistory:
    """Folds a control topic."""
    found = ControlHistory()
    for record in control.of(0):
        found.fold(record.timestamp, record.value, record.offset)
    return found


def lost(events: CommittedTopic) -> list[tuple[int, int]]:
    """The ranges of time, without their ends, that the events topic reports as given up."""
    return [(int(found[1]), int(found[2])) for found in _given_up(events)]


def _given_up(events: CommittedTopic) -> Iterator[re.Match[str]]:
    for record in events.records:
        event = json.loads(record.value or b"{}")
        if event.get("kind") == "accepted_gap" and (found := _LOST.search(event.get("reason", ""))):
            yield found


def k9(right: ControlHistory, answers: Sequence[Answer]) -> CheckResult:
    """Each answer agrees with the log, and each decision that was answered is in the log; so does
    each fold."""
    wrong = list(right.wrong_folds)
    for answer in answers:
        verdict = right.verdicts.get(answer.id)
        if verdict is None:
            wrong.append(f"{answer} of a decision that is not in the log")
        elif (verdict.version, verdict.refused) != (answer.version, answer.refused):
            wrong.append(f"{answer}, but {verdict}")
    return CheckResult.of("K9", wrong)
