"""A bucket that goes on with an output of which nothing is left but itself.

Theory
    State is lost with a checkpoint, or is another plan's; the output is in its topic. The facts
    that matter to what may still change in it (`required_history`) are read once more, batch by
    batch. As long as the network is not as far as the output was, nobody listens: what it emits is
    folded. Then the output is made that of the network, in the fewest elements
    (`queries.switched_output`), and goes on with what the network emits:

        output      ──────────── stable(T) ┊
        network            from need(T) ───┊── difference, stable, … ▶

    Points of feedback that come before it is as far leave out what ends before them.

Invariants
    E1  What is emitted goes on legally with what the output holds.
    E2  It is a function of what is held and of the batches, however these were packed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from lmerge_service.elements import START, Element, Stable
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.netting import net
from lmerge_service.queries.switched_output import SwitchedOutput
from lmerge_service.spark.queries.moves import Held

__all__ = ("ResumedOutput",)


class ResumedOutput:
    """What stands between the network and the output, until nothing from before is left.

    >>> held = Held([("a",), ("b",)], [(0, 60), (20, 80)], stable=60, emitted=9)
    >>> output = ResumedOutput.of([held])
    >>> from lmerge_service.elements import Insert
    >>> output.process_batch([Insert(("a",), 0, 60), Stable(20)], 20)
    []
    >>> output.process_batch([Insert(("b",), 20, 80), Insert(("c",), 60, 90), Stable(70)], 70)
    [Insert(payload=('c',), vs=60, ve=90), Stable(vc=70)]
    >>> output.is_over(70)
    True
    """

    def __init__(self, held: LiveEvents, skip: int = START) -> None:
        self._held = held
        self._skip = skip
        self._computed = LiveEvents(stable=held.stable)
        self._switched: SwitchedOutput | None = None

    @classmethod
    def of(cls, held: Sequence[Held], skip: int = START) -> "ResumedOutput":
        """Of all pieces of what is held. `skip`: what the output lacks, as what ends before it does
        not matter."""
        events = (
            (tuple(row), *times)
            for some in held
            for row, times in zip(some.rows, some.times, strict=True)
        )
        return cls(LiveEvents(events, held[0].stable), skip)

    def process_batch(self, elements: Iterable[Element], stable: int) -> list[Element]:
        """Takes what the network emits, which is stable up to there; what the output emits."""
        if self._switched is not None:
            return self._switched.process_batch(elements)
        self._computed.apply(each for each in elements if type(each) is not Stable)
        if stable < self._held.stable:
            return []
        self._switched, changes = SwitchedOutput.begun(self._held, self._computed, self._skip)
        return net([*changes, *self._switched.process_batch([Stable(stable)])])

    def is_over(self, stable: int) -> bool:
        """Whether what the network, which is stable up to there, emits can go out as it is."""
        switched = self._switched
        return switched is not None and switched.is_over and stable >= switched.since

    def state(self) -> Any:
        """What msgpack can carry of it."""
        switched = None if self._switched is None else self._switched.state()
        return [self._skip, self._held.state(), self._computed.state(), switched]

    @classmethod
    def loaded(cls, state: Any) -> "ResumedOutput":
        """What `state` was made of."""
        skip, held, computed, switched = state
        output = cls(LiveEvents.loaded(held), skip)
        output._computed = LiveEvents.loaded(computed)
        output._switched = None if switched is None else SwitchedOutput.loaded(switched)
        return output
