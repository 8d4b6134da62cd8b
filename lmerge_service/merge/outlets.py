"""Outlets: which of the topics that a merge writes cannot be written at the moment, and why.

Theory
    Output and state are what the merge is about: while one of them cannot be written, nothing is
    published, and the topic is reported. Dead letters and evidence are about the merge: when
    their topic cannot be written for some seconds, the output goes on without them, and they are
    counted as not written. So one bad record cannot stop the output:

        dead letters deleted    created again, within a second or two: nothing is lost
        … not ours to create    3 s later the output goes on; each dead letter is counted
        … may be written again  so are dead letters

    A table that was left out begins once it can be written again (`table.writer`).

    A fault is noted where it is found: by the watch over the topics (`internal_topics`) or by a
    commit that was refused. The watch removes it.

Invariants
    O1  `leaves_out` is about side topics only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lmerge_service.config.topology import Topology

__all__ = ("OutletFault", "Outlets")

_PATIENCE_SECONDS: Final = 3.0
"""For so long a commit waits for a topic that it could do without: one that was deleted is created
again, and a partition gets another leader, in less."""
_REFUSED_SECONDS: Final = 10.0
"""What a commit was refused is tried again after so long, at the earliest."""


@dataclass(frozen=True, slots=True)
class OutletFault:
    """A topic that cannot be written."""

    why: str
    since: float
    """In the clock's seconds."""
    refused: bool = False
    """A commit was refused: there is nothing to wait for."""
    needs_bytes: int | None = None
    """How large a batch it must take, where that is the reason."""


class Outlets:
    """Of one worker: its tasks write the same topics."""

    def __init__(self, topology: Topology, clock: Callable[[], float]) -> None:
        output = topology.output
        self.side = (output.dead_letter_topic, output.events_topic, output.table_topic)
        """The topics that the output can do without."""
        self._needed = (output.topic, output.state_topic)
        self.faults: dict[str, OutletFault] = {}
        """By topic, those that cannot be written."""
        self._clock = clock

    @property
    def stops_output(self) -> bool:
        """Nothing can be published."""
        return any(topic in self.faults for topic in self._needed)

    def note(self, topic: str, why: str) -> bool:
        """It was seen that a topic cannot be written; whether that is news."""
        if (known := self.faults.get(topic)) is not None and known.why == why:
            return False
        since = self._clock() if known is None else known.since
        self.faults[topic] = OutletFault(why, since, known is not None and known.refused)
        return True

    def refuse(self, topic: str, why: str, needs_bytes: int | None) -> None:
        """A commit could not be made for a topic's sake."""
        self.faults[topic] = OutletFault(why, self._clock(), True, needs_bytes)

    def writable_again(self, topic: str) -> bool:
        """A topic can be written, as far as can be seen; whether that is news."""
        known = self.faults.get(topic)
        if known is None or (known.refused and self._clock() - known.since < _REFUSED_SECONDS):
            return False
        del self.faults[topic]
        return True

    def leaves_out(self, topic: str) -> OutletFault | None:
        """Why the output goes on without a side topic; None: it does not."""
        fault = self.faults.get(topic)
        if fault is None or topic not in self.side:
            return None
        waited = self._clock() - fault.since >= _PATIENCE_SECONDS
        return fault if fault.refused or waited else None
