"""From one replica's records to its elements in the operator: incarnations, dead letters, order.

Theory
    A record that is not an element goes to the dead letters and the replica goes on. A replica
    that starts over says so in headers (docs/semantics.md): a higher `lmerge-incarnation` on any
    partition re-attaches the replica, from `lmerge-joining-at` on, and drops what the old
    incarnation held; records of an older one that are still in flight are ignored and counted.

    Nothing here depends on how the partitions interleave: of each partition only the records of
    the highest incarnation count in the end. So the operator can be rebuilt from the partitions'
    prefixes (promise 7 of docs/semantics.md), once it is known which incarnation that is.

    A replica that is normalised has a normaliser per partition and incarnation, between decoding
    and the operator. What that says is a function of the partition's prefix, too, so that a
    rebuild hears what the original heard. It cannot join late: an interval that is under way at
    the joining time has begun nobody knows when, so it has no canonical form.

    A replica that speaks a dialect (`formats.dialects`) has a decoder per partition and
    incarnation in the same way. One record may say several elements then, or none.
"""

from collections.abc import Callable, Iterable

import msgspec

from lmerge_service.core import Operator
from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import START, Element
from lmerge_service.errors import ElementError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import Decoder
from lmerge_service.formats.headers import JOINING_AT_HEADER, TimedRecord, incarnation_of
from lmerge_service.formats.wire import WireDecoder

__all__ = ("Ingest", "Standing")

_MUST_BE_WHOLE = "a replica that is normalised must be correct from the beginning"


class Standing(msgspec.Struct, frozen=True):
    """What has to be known of a replica, beside an offset, to go on from there.

    It is stored with each committed offset. Only the latest incarnation may be fed to a rebuilt
    operator: an older one was heard against another output, and what it said then is gone.
    """

    incarnation: int = 0
    joining_at: int = START
    begins: int = 0
    """The first offset of the partition that was merged."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> "Standing":
        """Reads what `text` wrote; of anything else, the standing of a replica that is new."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            return cls()


class Ingest:
    """Feeds one replica's records to an operator; counts what it left out."""

    def __init__(
        self,
        merge: Operator,
        name: str,
        decoder: WireDecoder,
        *,
        partitions: int,
        joining_at: int = START,
        incarnation: int = 0,
        normalise: bool = False,
        dialect: Callable[[], Decoder] | None = None,
    ):
        self.name = name
        self.incarnation = incarnation
        self.joining_at = joining_at
        self.partitions = partitions
        self.stale = 0
        """Records of an incarnation that a later one had replaced."""
        self._merge = merge
        self._decoder = decoder
        self._normalise = normalise
        self._normalisers: dict[int, Normaliser] = {}
        self._dialect = dialect
        self._decoders: dict[int, Decoder] = {}
        merge.attach(name, joining_at, partitions)

    def widen(self, partitions: int) -> None:
        """The replica's topic has got more partitions."""
        self.partitions = partitions
        self._merge.inputs[self.name].add_partitions(partitions)

    def take(
        self,
        records: Iterable[TimedRecord],
        out: list[Element],
        dead: list[DeadLetter],
        *,
        recall: bool = False,
    ) -> None:
        """Processes records of one partition in order; appends what there is to say.

        `recall` is for records that were merged before the output reached what was loaded.
        """
        elements: list[Element] = []
        decode = self._decoder.decode
        in_wire = self._dialect is None
        partition = 0
        for record in records:
            partition = record.partition
            try:
                incarnation, joining_at = (
                    incarnation_of(record.headers) if record.headers else (0, START)
                )
                if incarnation != self.incarnation:
                    if incarnation < self.incarnation:
                        self.stale += 1
                        continue
                    out += self._process(elements, partition, recall)
                    elements = []
                    self._start_over(incarnation, joining_at)
                if in_wire:
                    elements.append(decode(record.value))
                else:
                    elements += self._translated(record)
            except ElementError as error:
                dead.append(self._dead_letter(record, error))
        out += self._process(elements, partition, recall)

    def _translated(self, record: TimedRecord) -> Iterable[Element]:
        assert self._dialect is not None
        decoder = self._decoders.get(record.partition)
        if decoder is None:
            decoder = self._decoders[record.partition] = self._dialect()
        return decoder.decode(record)

    def _process(self, elements: list[Element], partition: int, recall: bool) -> list[Element]:
        process = self._merge.recall if recall else self._merge.process_batch
        if not self._normalise:
            return process(self.name, elements, partition)
        normaliser = self._normalisers.setdefault(partition, Normaliser())
        heard = normaliser.process_batch(elements)
        normaliser.blame(self._merge, self.name)
        return process(self.name, heard, partition)

    def _start_over(self, incarnation: int, joining_at: int) -> None:
        if joining_at != START and self._normalise:
            raise ElementError("header", f"{JOINING_AT_HEADER}: {_MUST_BE_WHOLE}")
        self.incarnation, self.joining_at = incarnation, joining_at
        self._normalisers = {}
        self._decoders = {}
        self._merge.attach(self.name, joining_at, self.partitions)

    def _dead_letter(self, record: TimedRecord, error: ElementError) -> DeadLetter:
        return DeadLetter(
            replica=self.name,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=error.reason,
            message=str(error),
            key=record.key,
            value=record.value,
        )
