"""Checks the plans of a query over recorded input: against the meaning, and merged.

Theory
    The plans take in the same steps, each plan in batches of another size. What a plan emits must
    be legal, and be what the query means: of the input so far, after every batch, if it emits on
    update; else before its stable point. So a plan that is wrong for a while is found although it
    is right in the end. The outputs are merged under the case that the plans allow, which breaches
    report if a plan lacks what it promises, and `judging.Judge` judges the merge after every
    element.

Cost
    The meaning is computed from all events, whenever it is compared with: `every` so many steps,
    and at the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lmerge_service.core import Case, lmerge
from lmerge_service.elements import Element
from lmerge_service.errors import ModuleError
from lmerge_service.queries import logical
from lmerge_service.queries.judging import Judge
from lmerge_service.queries.logical import Node
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.physical import Choice, PhysicalPlan, levels
from lmerge_service.queries.properties import case
from lmerge_service.tdb import TDB, Event, differences

__all__ = ("Check", "Deviation", "PlanCheck", "Step", "check")

_BATCHES: Final = (1, 2, 3, 5, 8)
"""How many steps the plans take in at once, in turn."""


class Step(NamedTuple):
    """What one record brings."""

    place: str
    """Where it is: `file:line`."""
    source: str
    elements: Sequence[Element]


class Deviation(NamedTuple):
    """Where a plan, or the merge, is first wrong."""

    step: int
    """The number of the step behind which it is, from 0."""
    place: str
    element: int
    """How many elements had been emitted."""
    what: str
    expected: tuple[Event, ...] = ()
    found: tuple[Event, ...] = ()


@dataclass(slots=True)
class PlanCheck:
    """What was found of one plan."""

    plan: PhysicalPlan
    emitted: int = 0
    compared: int = 0
    """How often its output was compared with the meaning."""
    deviation: Deviation | None = None


@dataclass(slots=True)
class Check:
    """What was found of all plans, and of their merge."""

    case: Case
    plans: list[PlanCheck]
    merge: Deviation | None = None
    merged: int = 0
    """Elements of the merge, which ends where a plan deviates."""
    events: int = 0
    """Of the result."""

    @property
    def agrees(self) -> bool:
        """Whether nothing is wrong."""
        return self.merge is None and self.first is None

    @property
    def first(self) -> int | None:
        """The number, from 1, of the plan that is wrong first."""
        wrong = [(d.step, n) for n, each in enumerate(self.plans, 1) if (d := each.deviation)]
        return min(wrong)[1] if wrong else None


def check(plans: Sequence[PhysicalPlan], steps: Iterable[Step], every: int = 1) -> Check:
    """Runs plans of one query over the same steps; the last steps close their sources.

    Raises:
        ModuleError: a module of the user's raises; the message names the plan and the place.
    """
    return _Run(plans, every).over(steps)


class _Replica:
    """One plan, what it has emitted, and the steps that wait to be one batch."""

    def __init__(self, plan: PhysicalPlan, batch: int) -> None:
        self.found = PlanCheck(plan)
        self.network = plan.begin()
        self.output = TDB()
        self.batch = batch
        self.waiting: list[Step] = []
        self.exact = _is_exact(plan)
        self.due = 0
        """The step from which on it is to be compared again."""


class _Run:
    """Plans over steps, and the merge of what they emit."""

    def __init__(self, plans: Sequence[PhysicalPlan], every: int) -> None:
        self._replicas = [_Replica(p, _BATCHES[n % len(_BATCHES)]) for n, p in enumerate(plans)]
        self._every = every
        self._logical = plans[0].plan
        self._given = {name: TDB() for name in logical.sources(self._logical)}
        self._wanted: tuple[int, TDB] = (-1, TDB())
        self._check = Check(case(plans), [replica.found for replica in self._replicas])
        self._merge = lmerge(self._check.case)
        self._judge = Judge(len(plans), self._check.case)
        self._merged = TDB()
        self._step, self._place = -1, ""
        for number in range(len(plans)):
            self._merge.attach(str(number))

    def over(self, steps: Iterable[Step]) -> Check:
        """All steps, and then what is right in the end."""
        for self._step, step in enumerate(steps):
            self._place = step.place
            for element in step.elements:
                self._given[step.source].apply(element)
            for number, replica in enumerate(self._replicas):
                replica.waiting.append(step)
                if len(replica.waiting) >= replica.batch:
                    self._flush(number, replica)
        for number, replica in enumerate(self._replicas):
            self._flush(number, replica)
            self._compare(replica)
        wanted = self._meaning()
        self._check.events = len(wanted)
        if self._check.agrees and self._merged != wanted:
            what = "the merge has another result in the end"
            self._check.merge = self._differing(what, self._check.merged, wanted, self._merged)
        return self._check

    def _flush(self, number: int, replica: _Replica) -> None:
        waiting, replica.waiting = replica.waiting, []
        if replica.found.deviation is not None:
            return
        try:
            for name, batch in _batches(waiting):
                for element in replica.network.process_batch(name, batch):
                    self._emitted(number, replica, element)
        except ModuleError as error:
            raise ModuleError(f"plan {number + 1}, {self._place}: {error}") from error
        if self._step >= replica.due:
            self._compare(replica)

    def _emitted(self, number: int, replica: _Replica, element: Element) -> None:
        replica.found.emitted += 1
        if replica.found.deviation is not None:
            return
        if wrong := replica.output.violation(element):
            replica.found.deviation = self._deviation(replica.found.emitted, wrong)
            return
        replica.output.apply(element)
        if self._check.agrees:
            self._merge_in(number, element)

    def _merge_in(self, number: int, element: Element) -> None:
        self._judge.received(number, element)
        for merged in self._merge.process(str(number), element):
            self._check.merged += 1
            if wrong := self._merged.violation(merged):
                self._check.merge = self._deviation(self._check.merged, f"the merge: {wrong}")
                return
            self._merged.apply(merged)
            self._judge.emitted(merged)
        if wrong := "; ".join(self._judge.broken()):
            self._check.merge = self._deviation(self._check.merged, wrong)
        elif breaches := self._merge.breaches():
            self._check.merge = self._deviation(self._check.merged, f"the merge: {breaches[0]}")

    # Against the meaning

    def _compare(self, replica: _Replica) -> None:
        if replica.found.deviation is not None:
            return
        replica.due = self._step + self._every
        replica.found.compared += 1
        wanted, output, point = self._meaning(), replica.output, replica.network.stable
        what = "it differs from the meaning"
        if not replica.exact:
            wanted, output = wanted.before(point), output.before(point)
            what = f"it differs from the meaning before its stable({point})"
        if output != wanted:
            replica.found.deviation = self._differing(what, replica.found.emitted, wanted, output)

    def _meaning(self) -> TDB:
        """Of the input up to this step."""
        if self._wanted[0] != self._step:
            self._wanted = (self._step, meaning(self._logical, self._given))
        return self._wanted[1]

    def _differing(self, what: str, element: int, wanted: TDB, output: TDB) -> Deviation:
        """The events of the first (payload, vs) that differ."""
        payload, vs, (expected, found) = differences(wanted, output)[0]
        events = [tuple(Event(payload, vs, ve) for ve in ends) for ends in (expected, found)]
        return self._deviation(element, what)._replace(expected=events[0], found=events[1])

    def _deviation(self, element: int, what: str) -> Deviation:
        return Deviation(self._step, self._place, element, what)


def _batches(steps: Iterable[Step]) -> list[tuple[str, list[Element]]]:
    """What is taken in at once: neighbouring steps of one source."""
    found: list[tuple[str, list[Element]]] = []
    for _, source, elements in steps:
        if not found or found[-1][0] != source:
            found.append((source, []))
        found[-1][1].extend(elements)
    return found


def _is_exact(plan: PhysicalPlan) -> bool:
    """Whether its output is the meaning of its input at any time."""
    chosen = dict(plan.choices)
    return all(_emits_at_once(node, plan, chosen.get(node)) for node in logical.nodes(plan.plan))


def _emits_at_once(node: Node, plan: PhysicalPlan, choice: Choice | None) -> bool:
    if choice is not None and choice.align is not None:
        return False
    if isinstance(node, logical.GroupApply):
        return _is_exact(PhysicalPlan(node.plan, plan.emit))
    if levels(node) and ((choice and choice.emit) or plan.emit) != "on_update":
        return False
    # windows that begin behind all that is known wait until they do
    return not isinstance(node, logical.Windows) or logical.longest(node.of) == 1
