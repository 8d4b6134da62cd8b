"""What a replica is asked to be: a query by one of its plans, from topics to a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lmerge_service.config.http import Http
from lmerge_service.kafka.connection import Connection
from lmerge_service.queries import logical
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.replicas.partitions import Columns

__all__ = ("ReplicaRequest",)

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRequest:
    """A replica; nothing in it has been looked up."""

    name: str
    """What the query is called, in messages."""
    query: logical.Node
    """The logical plan, as it was written."""
    plan: PhysicalPlan
    columns: Columns | None
    """By source, the columns that keep together what belongs together; None: there are none."""
    number: str
    """Which of the query's plans it is."""
    connection: Connection
    to: str
    topics: Mapping[str, str] = field(default_factory=dict)
    """By source its topic, where that is not the source's name."""
    partitions: int = 1
    """Of the output, if it is made here."""
    since: int | None = None
    """Begin with the facts of this time, in a higher incarnation; None: with the first."""
    rejoin: bool = False
    """Begin with the facts of now, in a higher incarnation, unless the topic is empty."""
    resume: bool = False
    """When the state is lost, go on from what the topic holds."""
    feedback: str | None = None
    """The merge's output, whose feedback it heeds."""
    replica: str | None = None
    """Its name there; by default its topic's."""
    batch: int = 10_000
    """Records that are processed at once, at the most."""
    skew: int = _HOUR_MS
    """A partition that is so far ahead of one that has records is not read on."""
    snapshot_seconds: float = 60.0
    max_state_bytes: int = 1 << 30
    max_record_bytes: int = 1 << 20
    http: Http = field(default_factory=lambda: Http(port=0))

    @property
    def fingerprint(self) -> str:
        """What distinguishes the query from all others, whatever the plan."""
        return logical.fingerprint(self.query)

    @property
    def sources(self) -> dict[str, logical.Source | logical.Elements]:
        """The sources that the query reads, by name."""
        return logical.sources(self.query)

    def topic_of(self, source: str) -> str:
        """The topic that a source is."""
        return self.topics.get(source, source)
