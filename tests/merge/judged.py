"""Replicas read into one operator through the guards, as a merge step does it: in memory.

Each replica is one partition: a list of elements that is read up to `end`. A held stable stops
its replica until the guards let it go; a quarantine ends it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmerge_service.config.topology import Kafka, Output, OutputPolicy, Replica, Topology
from lmerge_service.core import LMerge, lmerge
from lmerge_service.drills.records import CommittedRecord
from lmerge_service.elements import Element, Stable
from lmerge_service.kafka.unread import Unread
from lmerge_service.merge.guards.guards import Guards, Now, chunk_of
from lmerge_service.merge.guards.verdicts import Action, Verdict
from lmerge_service.merge.liveness import Liveness

__all__ = ("Judged", "topology_of")

UNIX_NS = 1_700_000_000 * 10**9


def topology_of(
    replicas: Iterable[str], *, case: str = "R3", stable: str = "max", unit: str = "none",
    **guards: Any,
) -> Topology:  # fmt: skip
    return Topology.model_validate(
        {
            "name": "t",
            "kafka": Kafka(bootstrap="127.0.0.1:9092"),
            "output": Output(topic="out"),
            "case": case,
            "time_unit": unit,
            "policy": OutputPolicy(stable=stable),
            "replicas": [Replica(name=name, topic=f"in.{name}") for name in replicas],
            "guards": guards,
        }
    )


class Judged:
    """A merge behind its guards."""

    def __init__(self, streams: Mapping[str, Sequence[Element]], topology: Topology) -> None:
        self.streams = streams
        self.guards = Guards(topology)
        self.merge: LMerge = lmerge(topology.resolved_case, topology.policy.policy())
        self.now = Now(UNIX_NS, 0.0)
        self.at = dict.fromkeys(streams, 0)
        self.stopped: set[str] = set()
        self.quarantined: set[str] = set()
        self.verdicts: list[Verdict] = []
        self.out: list[Element] = []
        self.living: dict[str, Liveness] = {}
        for name in streams:
            self.merge.attach(name)
            self.living[name] = Liveness(self.now.seconds)
            self.living[name].follow(self.merge.inputs[name])
            self.guards.attach(name, [self.merge.max_stable], self.now, living=self.living[name])
        self._look()

    def pass_time(self, seconds: float) -> None:
        """Also looks at what is unread then."""
        self.now = Now(self.now.unix_ns + int(seconds * 10**9), self.now.seconds + seconds)
        self._look()

    def read(self, name: str, records: int = 1) -> None:
        """Reads so many records of a replica on, unless it is stopped."""
        for _ in range(records):
            if name in self.stopped | self.quarantined or self.at[name] == len(self.streams[name]):
                break
            self._chunk(name, 1)
        self._resume()

    def read_chunk(self, name: str, most: int) -> None:
        """Reads up to so many records of a replica at once."""
        self._chunk(name, most)
        self._resume()

    def read_all(self, batch: int = 1) -> None:
        """Reads everybody to the end, as far as the guards let them."""
        while True:
            before = dict(self.at), set(self.stopped)
            for name in self.streams:
                if name not in self.stopped | self.quarantined:
                    self._chunk(name, batch)
                self._resume()
            if before == (self.at, self.stopped):
                return

    def _chunk(self, name: str, most: int) -> None:
        stream, start = self.streams[name], self.at[name]
        stop = min(start + min(most, chunk_of(stream)), len(stream))
        if start == stop:
            return
        taken: list[Element] = []
        verdicts: list[Verdict] = []
        for offset in range(start, stop):
            element = stream[offset]
            if type(element) is Stable:
                verdict = self.guards.stable(name, 0, element.vc, offset, self.now)
                if verdict is not None:
                    verdicts.append(verdict)
                    break
            taken.append(element)
            self.at[name] = offset + 1
            if type(element) is Stable and self.guards.watches(name, 0):
                break
        self.out += self.merge.process_batch(name, taken)
        records = [
            CommittedRecord(name, 0, offset, 0, repr(each).encode())
            for offset, each in enumerate(taken)
        ]
        source, stable = self.merge.inputs[name], self.merge.max_stable
        self.living[name].look(source, records, self.now.seconds, stable)
        breaches = self.merge.inputs[name].breaches
        verdicts += self.guards.after(name, 0, len(taken), breaches, 0, self.now)
        for verdict in verdicts:
            self._act(verdict)
        self._look()

    def _act(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if verdict.action is Action.HOLD:
            self.stopped.add(verdict.replica)
        elif verdict.action is Action.QUARANTINE:
            self.quarantined.add(verdict.replica)
            self.merge.detach(verdict.replica)
            self.guards.detach(verdict.replica)

    def _look(self) -> None:
        for name, stream in self.streams.items():
            left = len(stream) - self.at[name]
            unread = Unread(left, readable=left > 0, open=(), asked_at=self.now.seconds)
            self.guards.know_unread(name, unread, self.now)

    def _resume(self) -> None:
        for held in self.guards.let_go():
            self.stopped.discard(held.replica)
