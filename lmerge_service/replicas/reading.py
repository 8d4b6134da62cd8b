"""Reads the inputs of a replica: all partitions of all topics, none too far ahead of the others.

Theory
    A join holds what it has of one side until the other side's stable has passed it. So a partition
    that is ahead of one that still has records to be read, by more than `skew` of the facts' time,
    is paused until the other has come that far, or has nothing more at present: what lags because
    nothing is published must not stop the others. Of what is read together, the input whose stable
    is least is processed first.

    How far the topics reach is asked for every second, beside the reading.

Who owns what
    A `Source` is borrowed; `InputReading` assigns and pauses its partitions.

What happens on a crash: nothing; what counts is what was committed.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from lmerge_service.elements import START
from lmerge_service.errors import StateError, TransportError
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.replicas.inputs import QueryInput

__all__ = ("InputReading", "Portion")

_LOOK_SECONDS: Final = 1.0


class Portion(NamedTuple):
    """Records of one partition, one after the other."""

    input: QueryInput
    partition: int
    records: list[Record]

    @property
    def behind(self) -> int:
        """The offset behind the last of them."""
        return self.records[-1].offset + 1


class InputReading:
    """Of all inputs; positions are by input and partition."""

    def __init__(
        self,
        source: Source,
        inputs: Mapping[str, QueryInput],
        positions: Mapping[str, list[int]],
        *,
        skew: int,
        clock: Callable[[], float],
    ):
        self._source = source
        self._skew = skew
        self._clock = clock
        self._inputs = {
            TopicPartition(each.topic, number): (each, number)
            for each in inputs.values()
            for number in range(each.width)
        }
        self.ends: dict[TopicPartition, int] = {}
        """Up to where each partition could be read when that was asked for last."""
        self._looked = clock() - _LOOK_SECONDS
        starts = {
            TopicPartition(inputs[name].topic, number): at
            for name, each in positions.items()
            for number, at in enumerate(each)
        }
        source.assign(starts)

    async def read(self, seconds: float, most: int) -> list[Portion]:
        """What has arrived, of the input whose stable is least first.

        Raises:
            StateError: a partition cannot be read on: its records are gone, or corrupt.
            TransportError: Kafka went away.
        """
        if self._clock() - self._looked >= _LOOK_SECONDS:
            await self._look()
        batches = await self._source.poll(seconds, most)
        for place, why in self._source.lost.items():
            raise StateError(
                f"{place.topic}-{place.partition} {why}; if its retention was too short, begin a "
                "new incarnation with --rejoin"
            )
        portions = [Portion(*self._inputs[place], records) for place, records in batches.items()]
        portions.sort(key=lambda each: (each.input.stable, each.partition))
        return portions

    async def _look(self) -> None:
        self._looked = self._clock()
        try:
            self.ends = await self._source.ends([*self._inputs], seconds=_LOOK_SECONDS)
        except TransportError:
            return  # reading on finds out what it is; until then the ends are those of before

    def position(self, place: TopicPartition) -> int | None:
        """The next offset of a partition; None: not known yet."""
        return self._source.position(place)

    def lag(self, place: TopicPartition) -> int | None:
        """Records, and markers, that can be read and were not; None: not known yet."""
        position, end = self._source.position(place), self.ends.get(place)
        return None if position is None or end is None else max(0, end - position)

    def balance(self) -> None:
        """Pauses what is too far ahead, resumes what is not any more."""
        reached = {place: each.reached[number] for place, (each, number) in self._inputs.items()}
        behind = [at for place, at in reached.items() if self.lag(place)]
        if len(reached) < 2 or not behind:
            limit = None
        else:
            limit = min(behind) + self._skew if min(behind) > START else None
        ahead = {place for place, at in reached.items() if limit is not None and at > limit}
        if ahead != self._source.paused:
            self._source.resume(self._source.paused - ahead)
            self._source.pause(ahead - self._source.paused)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Partitions that are too far ahead."""
        return self._source.paused

    def places(self) -> Mapping[TopicPartition, tuple[QueryInput, int]]:
        """All partitions, with their input and number there."""
        return self._inputs
