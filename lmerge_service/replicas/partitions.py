"""The plan at work: a running query for each output partition, and what they emit, as records.

Theory
    Events are routed (`routing`), stable points go to all. Each partition has a network of its own,
    whose elements go to the output partition of its number; each has a stable of its own.

        batch of events ──▶ route ──▶ query 0 ──▶ records of partition 0
                        └──────────▶ query 1 ──▶ records of partition 1

Invariants
    P1  A batch gives all data of a source before its stable, and a stable only when it has risen.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from lmerge_service.elements import START, Element, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import logical
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan_switch import RunningQuery
from lmerge_service.replicas.encoding import RowEncoder
from lmerge_service.replicas.routing import Route

__all__ = ("Columns", "Partitions")

_SAME: Final = ("operator", "node")
"""What is the same of an operator in every partition."""

Columns = Mapping[str, Sequence[str]]
"""By source, the columns that keep together what belongs together."""


class Partitions:
    """The queries of all output partitions; `clock` gives nanoseconds, to count operators' time."""

    def __init__(
        self,
        plan: PhysicalPlan,
        partitions: int,
        columns: Columns | None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """
        Raises:
            ConfigurationError: there are several partitions, and the plan cannot be divided.
        """
        if partitions > 1 and columns is None:
            raise ConfigurationError(
                f"{partitions} partitions: nothing divides this query, all of it belongs together; "
                "its output has one partition"
            )
        self.plan = plan
        self.queries = [RunningQuery(plan, clock) for _ in range(partitions)]
        self.encoder = RowEncoder(logical.schema_of(plan.plan))
        self._clock = clock
        self._routes = {
            name: Route(source.fields, (columns or {}).get(name, ()), partitions)
            for name, source in logical.sources(plan.plan).items()
        }
        self._stables = dict.fromkeys(self._routes, START)

    def __len__(self) -> int:
        """How many entries of state are held."""
        return sum(map(len, self.queries))

    @property
    def stables(self) -> list[int]:
        """The stable point of each partition of the output."""
        return [query.stable for query in self.queries]

    def process(
        self, events: Mapping[str, Sequence[Element]], stables: Mapping[str, int]
    ) -> list[list[Element]]:
        """What each partition emits by a batch: events by source, and how far each source is.

        Raises:
            ModuleError: user code raised; nothing of the batch may count.
        """
        given = self._divided(events, stables)
        return [
            self._emitted(query, batches) if batches else []
            for query, batches in zip(self.queries, given, strict=True)
        ]

    def _divided(
        self, events: Mapping[str, Sequence[Element]], stables: Mapping[str, int]
    ) -> list[dict[str, list[Element]]]:
        given: list[dict[str, list[Element]]] = [{} for _ in self.queries]
        for name, route in self._routes.items():
            if of_source := events.get(name):
                for batches, part in zip(given, route.split(of_source), strict=True):
                    if part:
                        batches[name] = part
            if (stable := stables.get(name, START)) > self._stables[name]:
                self._stables[name] = stable
                for batches in given:
                    batches.setdefault(name, []).append(Stable(stable))
        return given

    @staticmethod
    def _emitted(query: RunningQuery, batches: Mapping[str, list[Element]]) -> list[Element]:
        if len(batches) == 1:
            ((name, batch),) = batches.items()
            return query.process_batch(name, batch)
        return query.process_batches(batches)

    def divide(
        self, events: Mapping[str, Iterable[Element]], stables: Mapping[str, int]
    ) -> list[dict[str, list[Element]]]:
        """A history by partition, as `resume` takes it: each source with its stable."""
        given = self._divided({name: [*each] for name, each in events.items()}, stables)
        for batches in given:
            for name in self._routes:
                batches.setdefault(name, [])
        return given

    # --- going on -------------------------------------------------------------------------------

    def resume(
        self,
        outputs: Sequence[LiveEvents],
        history: Sequence[Mapping[str, Sequence[Element]]],
        reaching: Mapping[str, int],
        skip: int,
    ) -> list[list[Element]]:
        """Goes on with outputs of which nothing is left but themselves, and that lack what ends
        before `skip`; what each emits first."""
        first: list[list[Element]] = []
        for number, (output, given) in enumerate(zip(outputs, history, strict=True)):
            events = ((e.payload, e.vs, e.ve) for e in output)
            self.queries[number], emitted = RunningQuery.resume(
                self.plan,
                events,
                output.stable,
                given,
                reaching=reaching,
                skip=skip,
                clock=self._clock,
            )
            first.append(emitted)
        return first

    def go_on_from(self, outputs: Sequence[LiveEvents]) -> list[list[Element]]:
        """Has these be what was emitted; what each emits to make it that of its state."""
        return [
            query.go_on_from(output) for query, output in zip(self.queries, outputs, strict=True)
        ]

    def expect(self, stables: Mapping[str, int]) -> None:
        """The queries know of these stable points of their sources already."""
        self._stables |= stables

    def skip_before(self, point: int) -> None:
        """Nothing about events with a final ve below it matters any more."""
        for query in self.queries:
            query.skip_before(point)

    def stats(self) -> list[dict[str, Any]]:
        """Per operator, all partitions together."""
        found: list[dict[str, Any]] = []
        for query in self.queries:
            for at, each in enumerate(query.stats()):
                if at == len(found):
                    found.append({name: each[name] for name in _SAME if name in each})
                for name, value in each.items():
                    if name not in _SAME:
                        found[at][name] = found[at].get(name, 0) + value
        return found
