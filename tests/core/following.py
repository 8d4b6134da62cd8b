"""An original operator that does things, and a follower that receives them step by step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmerge_service.core import LMerge, lmerge, restore_parts
from lmerge_service.core.ordered import Ordered
from lmerge_service.elements import START, Element

__all__ = ("Pick", "Run", "Step", "followed", "in_order", "state")

Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of several."""

Control = tuple[str, str, int, int]
"""(attach, name, joining_at, partitions), (detach, name, 0, 0) or (accept, name, end, 0)."""


@dataclass
class Step:
    """What happened since the step before: what the output emitted, and per input what was
    decided about it and what it published, in order."""

    emitted: list[Element] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    received: list[tuple[str, int, Element, int]] = field(default_factory=list)
    """(input, partition, element, how many controls came before)"""


class Run:
    """An original, with all that happened to it."""

    def __init__(self, merge: LMerge) -> None:
        self.merge = merge
        self.step = Step()

    def cut(self) -> Step:
        """What happened since the last cut."""
        step, self.step = self.step, Step()
        return step

    def process(self, name: str, partition: int, element: Element) -> list[Element]:
        self.step.received.append((name, partition, element, len(self.step.controls)))
        emitted = self.merge.process(name, element, partition)
        self.step.emitted += emitted
        return emitted

    def attach(self, name: str, joining_at: int = START, partitions: int = 1) -> None:
        self.step.controls.append(("attach", name, joining_at, partitions))
        self.merge.attach(name, joining_at, partitions)

    def detach(self, name: str) -> None:
        self.step.controls.append(("detach", name, 0, 0))
        self.step.emitted += self.merge.detach(name)

    def accept_gap(self) -> None:
        gap, emitted = self.merge.accept_gap()
        self.step.controls.append(("accept", gap.input, gap.end, 0))
        self.step.emitted += emitted


def followed(merge: LMerge, step: Step, pick: Pick) -> None:
    """Replays a step in an operator: the output as a whole or in pieces, decisions in order, and
    what the inputs attached at the end have published, partitions in any order."""
    left = list(step.emitted)
    while left:
        length = pick([len(left), 1, 2])
        merge.replay_output(left[:length])
        del left[:length]
    for control in step.controls:
        _obey(merge, control)
    begun = {name: n for n, (kind, name, *_) in enumerate(step.controls, 1) if kind != "accept"}
    received: dict[tuple[str, int], list[Element]] = {}
    for name, partition, element, after in step.received:
        if after >= begun.get(name, 0):
            received.setdefault((name, partition), []).append(element)
    while received:
        key = pick(list(received))
        length = pick([1, 2, 100])
        assert merge.replay_input(key[0], received[key][:length], key[1]) == [], (
            "the output has all of it"
        )
        del received[key][:length]
        if not received[key]:
            del received[key]
    merge.check()


def _obey(merge: LMerge, control: Control) -> None:
    kind, name, time, partitions = control
    if kind == "attach":
        merge.attach(name, time, partitions)
    elif kind == "detach":
        assert merge.detach(name) == []
    else:
        merge.accept(name, time)


def state(merge: LMerge) -> Any:
    """All that decides how an operator goes on, without order of arrival, blame and counts."""
    names = {source: source.name for source in merge.inputs.values()}
    inputs = [
        (s.name, s.incarnation, s.joined, s.joining_at, s.gap_until, s.stables, s.front)
        for s in merge.inputs.values()
    ]
    stats = merge.stats()
    counts = (stats.inserts, stats.adjusts, stats.stables, stats.removals)
    return merge.max_stable, merge.gap, inputs, counts, sorted(map(repr, _events(merge, names)))


def _events(merge: LMerge, names: Any) -> list[Any]:
    if isinstance(merge, Ordered):
        waiting = sorted((names[s], list(inserts)) for s, inserts in merge._waiting.items())
        if merge.max_vs < merge.max_stable:
            return [waiting]  # nothing can be emitted at max_vs any more
        events = [
            (e, sorted(names[s] for s in contributing_inputs))
            for e, contributing_inputs in merge._events()
        ]
        places = [s.at_front for s in merge.inputs.values() if s.front == merge.max_vs]
        return [merge.max_vs, waiting, events, places]
    return [
        (
            node.vs,
            node.payload,
            node.out,
            node.half_frozen,
            sorted((names[s], ends) for s, ends in node.ends.items()),
            sorted(names[s] for s in getattr(node, "claims", None) or ()),
        )
        for node in merge._index  # type: ignore[attr-defined]
    ]


def in_order(emitted: Sequence[Element]) -> list[str]:
    """Elements before one stable come in order of arrival, which a follower cannot know."""
    return sorted(map(repr, emitted))


def restarted(merge: LMerge, nodes: int) -> LMerge:
    """The operator as it comes out of its parts."""
    return restore_parts(list(merge.parts(nodes)))


def fresh(merge: LMerge) -> LMerge:
    """One that has not received anything yet."""
    return lmerge(merge.case, merge.policy)
