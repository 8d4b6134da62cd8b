"""One replica's elements into the operator, which receives them normalised where that is asked for.

`MergeStep` feeds it with what it decoded and routed, a merge of files with what it read.
"""

from collections.abc import Iterator, Sequence

from lmerge_service.core import LMerge
from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import START, Element

__all__ = ("OperatorInput",)


class OperatorInput:
    """An input of an operator."""

    def __init__(
        self,
        merge: LMerge,
        name: str,
        *,
        partitions: int = 1,
        joining_at: int = START,
        accepted_gap: bool = False,
        suffices_from: int = START,
        normalise: bool = False,
        attached: bool = False,
    ):
        """An input that is correct from `suffices_from` on, or from earlier, joins at once, since
        the output promises nothing of what ends before. `attached`: the operator has the input
        already, from a snapshot."""
        self.processed: Sequence[Element] = ()
        """The elements that the operator processed last."""
        self.late: Sequence[Element] = ()
        """The same if some of them were late, else none."""
        self._merge, self._name, self._normalise = merge, name, normalise
        self._normalisers: dict[int, Normaliser] = {}
        self._suffices_from = suffices_from
        if not attached:
            self._attach(joining_at, partitions, accepted_gap=accepted_gap)

    def _attach(self, joining_at: int, partitions: int, *, accepted_gap: bool = False) -> None:
        merge, suffices = self._merge, self._suffices_from
        if joining_at <= suffices != START:
            if merge.live_output() is None:
                joining_at = START  # else an ordered case ignores what began before
            else:  # nor is it compared with the output before that time
                joining_at, accepted_gap = suffices, True
        merge.attach(self._name, joining_at, partitions, accepted_gap=accepted_gap)

    def process(
        self, elements: Sequence[Element], partition: int = 0, *, replay_input: bool = False
    ) -> list[Element]:
        """Processes elements of one partition in order; returns what the operator emits.
        `replay_input` is for what was processed before the output reached what was loaded."""
        merge, name, source = self._merge, self._name, self._merge.inputs[self._name]
        if self._normalise:
            normaliser = self._normalisers.setdefault(partition, Normaliser())
            elements = normaliser.process_batch(elements)
            normaliser.blame(merge, name)
        late, self.processed = source.late, elements
        process = merge.replay_input if replay_input else merge.process_batch
        out = process(name, elements, partition)
        self.late = elements if source.late > late else ()
        return out

    def process_one(self, element: Element) -> list[Element]:
        """The same for one element, without the bookkeeping of a batch (`processed`, `late`), which
        costs 0.4 µs."""
        if self._normalise:
            return self.process((element,))
        return self._merge.process(self._name, element)

    def begin(self, joining_at: int, partitions: int) -> None:
        """A new incarnation: what the old one contributed is dropped."""
        self._normalisers, self.processed = {}, ()
        self._attach(joining_at, partitions)

    def parts(self) -> Iterator[tuple[int, bytes]]:
        """What is remembered beside the operator, for a snapshot: partition and state."""
        for partition, normaliser in self._normalisers.items():
            yield partition, normaliser.snapshot()

    def restore(self, partition: int, saved: bytes) -> None:
        """Takes one of `parts`.

        Raises:
            StateError: it is damaged.
        """
        self._normalisers[partition] = Normaliser.restore(saved)
