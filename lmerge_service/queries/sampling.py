"""What plans cost over a sample of their input: elements, state, progress and time, measured.

Theory
    A plan takes in the sample in batches, as a replica does. Of each operator what passes it, what
    it holds and how long it takes is counted; of the whole plan, how many elements an event of the
    result costs (1 is an insert and no revision), the most state that it held, and how far, in
    application time, its stable point was behind that of its input at the most.

    >>> from lmerge_service.elements import Insert, Stable
    >>> from lmerge_service.queries.physical import physical
    >>> from lmerge_service.queries.plan import count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str})
    >>> hourly = flights.windows(tumbling(60)).by("origin").aggregate(n=count())
    >>> steps = [Step("line 1", "flights", [Insert(("JFK",), 7, 8), Stable(7)]),
    ...          Step("line 2", "flights", [Insert(("JFK",), 90, 91), Stable(90)]),
    ...          Step("line 3", "flights", [Stable(INFINITY)])]
    >>> found = sampled(physical(hourly, emit="on_close"), steps, clock=lambda: 0, batch=1)
    >>> found.taken, found.events, found.per_event, found.lag
    (2, 2, 1.0, 30)

Cost
    One run of the plan; a TDB of its result.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Step
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.tdb import TDB

__all__ = ("OperatorSample", "PlanSample", "batch_of", "batches", "sampled")

_BATCHES: Final = 100
"""A sample is taken in so many at least, as far as it has steps,"""
_BATCH: Final = 100
"""of so many steps at most."""


@dataclass(frozen=True, slots=True)
class OperatorSample:
    """One operator over a sample."""

    operator: str
    taken: int
    """Elements in."""
    emitted: int
    """Elements out, adjusts and stables among them."""
    adjusts: int
    held: int
    """The most entries of state."""
    nanoseconds: int


@dataclass(slots=True)
class PlanSample:
    """A plan over a sample."""

    taken: int = 0
    """Inserts and adjusts in."""
    emitted: int = 0
    """Inserts and adjusts out."""
    events: int = 0
    """Of the result."""
    held: int = 0
    """The most entries of state at a time."""
    mean_held: float = 0.0
    """Behind a batch, on average."""
    lag: int | None = None
    """By how much of the application's time its stable point was behind the input's at the most;
    None if the sample shows none before its end."""
    nanoseconds: int = 0
    batches: list[int] = field(default_factory=list)
    """The time of each batch; plans over one sample have the same batches."""
    operators: list[OperatorSample] = field(default_factory=list)

    @property
    def per_event(self) -> float | None:
        """Inserts and adjusts for each event of the result; None if it has none."""
        return self.emitted / self.events if self.events else None


def batch_of(steps: Sequence[Step]) -> int:
    """How many steps of a sample are taken in at once."""
    return min(_BATCH, 1 + len(steps) // _BATCHES)


def sampled(
    plan: PhysicalPlan, steps: Sequence[Step], clock: Callable[[], int], batch: int | None = None
) -> PlanSample:
    """Runs a plan over steps, `batch` at once; `clock` gives nanoseconds.

    Raises:
        ModuleError: a module of the user's raises.
    """
    network, found, result = plan.begin(clock), PlanSample(), TDB()
    batch = batch or batch_of(steps)
    held, total = [0] * len(network.operators), 0
    points = dict.fromkeys(logical.sources(plan.plan), START)
    for several in batches(steps, batch):
        for name, elements in several:
            for element in elements:
                if isinstance(element, Stable):
                    points[name] = max(points[name], element.vc)
                else:
                    found.taken += 1
            for element in network.process_batch(name, elements):
                result.apply(element)
                found.emitted += not isinstance(element, Stable)
        spent = sum(flow.nanoseconds for flow in network.flows)
        found.batches.append(spent - found.nanoseconds)
        found.nanoseconds = spent
        held = [max(most, len(op)) for most, op in zip(held, network.operators, strict=True)]
        found.held = max(found.held, len(network))
        total += len(network)
        _note_lag(found, min(points.values()), network.stable)
    found.events = len(result)
    found.mean_held = total / max(len(found.batches), 1)
    found.operators = [*_operators(network, held)]
    return found


def batches(steps: Sequence[Step], size: int) -> Iterator[list[tuple[str, list[Element]]]]:
    """So many steps at once, the elements of neighbouring ones of one source together."""
    for at in range(0, len(steps), size):
        neighbours = groupby(steps[at : at + size], key=lambda step: step.source)
        yield [(name, [e for step in each for e in step.elements]) for name, each in neighbours]


def _note_lag(found: PlanSample, point: int, stable: int) -> None:
    """Takes note of how far the output is behind, where both are somewhere."""
    if stable > START and point < INFINITY:
        found.lag = max(found.lag or 0, point - stable)


def _operators(network: Network, held: Sequence[int]) -> Iterator[OperatorSample]:
    for operator, flow, most in zip(network.operators, network.flows, held, strict=True):
        yield OperatorSample(
            type(operator).__name__,
            flow.taken,
            flow.emitted,
            flow.adjusts,
            most,
            flow.nanoseconds,
        )
