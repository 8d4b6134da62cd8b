"""The merge step: what is done with a replica's records, whoever merges them.

    records ──▶ decode ──▶ route ──▶ guard ──▶ operator ──▶ elements of the output
               `decoding`  `routing`  `guards`  `core`

Theory
    A worker's task, a merge in Spark, a reader and a dry run take this step with each chunk of
    records of one partition; a merge of files begins behind decoding (`OperatorInput`). Where
    there are guards they decide on each stable before it is merged: it may be the last of what is
    taken at once, or have to wait. What is before it is then merged, nothing behind it is decoded,
    and the caller reads on from the stable's record later. Replayed input was judged when it was
    merged, so it meets no guards.

    A replica that is normalised has a normaliser per partition and incarnation before the
    operator. Its output is a function of the partition's prefix, so that a rebuilt operator
    receives what the original received. It cannot join late: an interval that is under way at the
    joining time has an unknown start, so it has no canonical form.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from lmerge_service.core import LMerge
from lmerge_service.elements import START, Element, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import Decoder
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.routing import Ownership
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.merge.decoding import DecodedPiece, ReplicaDecoder
from lmerge_service.merge.guards.evaluator import GuardEvaluator
from lmerge_service.merge.guards.verdicts import Ruling
from lmerge_service.merge.operator_input import OperatorInput

__all__ = ("MergeStep", "front_of")

_NORMALISER: Final = "normaliser"


def front_of(elements: Sequence[Element]) -> int:
    """How far a chunk of elements has come: the vs or vc of its last one."""
    if not elements:
        return START
    last = elements[-1]
    return last.vc if type(last) is Stable else last.vs  # type: ignore[union-attr]


class MergeStep:
    """The step for one replica; its decoder and its input to the operator are parts of it."""

    def __init__(
        self,
        merge: LMerge,
        name: str,
        decoder: WireDecoder,
        *,
        topic: str,
        partitions: int,
        joining_at: int = START,
        cut: Iterable[int] = (),
        incarnation: int = 0,
        gap_accepted: bool = False,
        suffices_from: int = START,
        normalise: bool = False,
        co_partitioned: bool = False,
        ignore_stables_before: Mapping[int, int] = MappingProxyType({}),
        owned: Ownership | None = None,
        dialect: Callable[[], Decoder] | None = None,
        routes: Callable[[bytes], int] | None = None,
        attached: bool = False,
    ):
        """`partitions` are the operator's: one if the replica is co-partitioned, since the task
        reads one. `owned` selects the elements of one output partition; None takes all. See
        `ReplicaDecoder` and `OperatorInput` for the rest."""
        self.decoder = ReplicaDecoder(
            name, decoder, topic=topic, partitions=partitions, incarnation=incarnation,
            joining_at=joining_at, cut=cut, must_be_whole=normalise,
            ignore_stables_before=ignore_stables_before, dialect=dialect, routes=routes,
        )  # fmt: skip
        self.input = OperatorInput(
            merge, name, partitions=partitions, joining_at=joining_at, accepted_gap=gap_accepted,
            suffices_from=suffices_from, normalise=normalise, attached=attached,
        )  # fmt: skip
        self.gap_accepted = gap_accepted
        self.front = START
        """The highest vs or vc that a piece of it ended with."""
        self.late: list[Sequence[Element]] = []
        """Elements of the last chunk that were processed together with late ones."""
        self._merge, self._owned, self._co_partitioned = merge, owned, co_partitioned
        self._elements = self.decoder.empty()

    def widen(self, partitions: int, cut: Iterable[int] = ()) -> None:
        """The replica's topic has got more partitions; of those that are `cut` the beginning is
        gone."""
        self.decoder.widen(partitions, cut)
        self._merge.inputs[self.decoder.name].add_partitions(partitions)

    def slot(self, partition: int) -> int:
        """The operator's number of a partition of the topic."""
        return 0 if self._co_partitioned else partition

    def take(
        self,
        partition: int,
        records: Sequence[TimedRecord],
        out: list[Element],
        dead: list[DeadLetter],
        *,
        guards: GuardEvaluator | None = None,
        replay_input: bool = False,
    ) -> int:
        """Decodes and merges records of a partition; appends what the operator emits and
        dead letters.

        Without guards every stable is merged. `replay_input` is for records that were merged
        before the output reached what was loaded.

        Returns the offset to read on from: behind the last record, unless a guard has stopped it,
        or the replica cannot be read on.
        """
        calm = self.open(partition, out, guards=guards, replay_input=replay_input)
        for piece in self.decoder.pieces(
            partition, records, dead, by_stable=guards is not None, calm=calm,
            final=self._merge.max_stable, replay_input=replay_input,
        ):  # fmt: skip
            ruling = self.offer(piece, piece.elements, piece.last)
            if ruling is not Ruling.MERGE:
                if ruling is Ruling.WAIT:
                    self.take_back(piece)
                break
        return self.close()

    # A chunk in pieces, which somebody else may have decoded.

    def open(
        self,
        partition: int,
        out: list[Element],
        *,
        guards: GuardEvaluator | None = None,
        replay_input: bool = False,
        routed: bool = False,
    ) -> int:
        """Begins a chunk of a partition, whose pieces are to be offered until `close`; they may be
        `calm` up to the time that is returned, see `ReplicaDecoder.pieces`. If they are `routed`,
        they have no elements but those of this output partition."""
        self._out, self._guards, self._partition = out, guards, partition
        self._replays_input = replay_input
        self._select = None if routed else self._owned
        self._elements, self._following, self.late = self.decoder.empty(), 0, []
        return START if guards is None else guards.calm(self.decoder.name, self.slot(partition))

    def offer(
        self, piece: DecodedPiece, elements: Sequence[Element], last: Sequence[Element]
    ) -> Ruling:
        """Takes the next piece of the chunk: `elements` and `last` are what of those of the piece
        is for this output partition. Behind a piece with another ruling than `MERGE` nothing can
        be offered; if it is `WAIT`, the piece's stable has not been taken."""
        self._elements += elements
        self._following = piece.following
        self.front = max(self.front, front_of(piece.elements))
        if piece.passed:
            self.front = max(self.front, *piece.passed)
            if self._guards is not None:
                slot = self.slot(self._partition)
                self._guards.passed(self.decoder.name, slot, piece.passed)
        if piece.began:
            self._process()
            self._begin(self._guards)
        elif piece.record is not None and self._guards is not None:
            slot = self.slot(self._partition)
            name, offset = self.decoder.name, piece.record.offset
            ruling = self._guards.stable(name, slot, piece.stable, offset)
            if ruling is Ruling.WAIT:
                self._following = offset
                return ruling
            self._elements += last
            self.front = max(self.front, piece.stable)
            return ruling
        return Ruling.MERGE

    def take_back(self, piece: DecodedPiece) -> None:
        """The stable of this piece, the last of the open chunk, was not taken: see
        `ReplicaDecoder.take_back`."""
        self.decoder.take_back(self._partition, piece)

    def close(self) -> int:
        """Merges what was offered; returns the offset to read on from."""
        self._process()
        return self._following

    def _process(self) -> None:
        elements: Sequence[Element] = self._elements
        self._elements = self.decoder.empty()
        if self._select is not None:
            elements = self._select.select(elements)
        slot = self.slot(self._partition)
        self._out += self.input.process(elements, slot, replay_input=self._replays_input)
        if self.input.late:
            self.late.append(self.input.late)

    def _begin(self, guards: GuardEvaluator | None) -> None:
        """A new incarnation of the replica has begun, as its decoder has found."""
        decoder = self.decoder
        self.gap_accepted, self.front = False, START
        self.input.begin(decoder.joining_at, decoder.partitions)
        if guards is not None:
            guards.started_over(decoder.name, decoder.incarnation)

    def start_over(self, incarnation: int, joining_at: int) -> None:
        """Follows the original to a new incarnation.

        Raises:
            ElementError: it joins late, and is normalised.
        """
        self.decoder.begin(incarnation, joining_at)
        self._begin(None)

    def accept_gap(self) -> None:
        """Follows the original in having joined before its time; after its output is loaded."""
        self.gap_accepted = True
        self._merge.accept(self.decoder.name, self.decoder.joining_at)

    def parts(self) -> Iterator[tuple[str, int, bytes]]:
        """What is remembered beside the operator, for a snapshot: kind, partition and state."""
        for partition, state in self.input.parts():
            yield _NORMALISER, partition, state
        yield from self.decoder.parts()

    def restore(self, kind: str, partition: int, saved: bytes) -> None:
        """Takes one of `parts`.

        Raises:
            StateError: it is damaged.
        """
        if kind == _NORMALISER:
            self.input.restore(partition, saved)
        else:
            self.decoder.restore(kind, partition, saved)
