"""The topology: one YAML file that declares what is merged, from where, to where.

`load(path)` gives a validated `Topology` or raises `ConfigurationError` with one line per fault,
each naming file, line and field. Unknown fields are faults. Nothing is read but the file, what it
names (certificates and secrets, see `credentials`), and the environment variable
`LMERGE_BOOTSTRAP`, which takes the place of `kafka.bootstrap`. `load_kafka(path)` reads the `kafka`
section alone, for clients.
"""

import ipaddress
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lmerge_service.config.credentials import ClientTls, Sasl
from lmerge_service.config.durations import Seconds
from lmerge_service.config.engines import engine_setting
from lmerge_service.config.http import Http
from lmerge_service.config.processes import Up
from lmerge_service.config.topic_names import is_topic_name
from lmerge_service.core import Case, Policy, StreamProperties
from lmerge_service.core.engine import EngineChoice, EngineSetting, chosen
from lmerge_service.core.properties import weakest
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError, fault_message
from lmerge_service.formats.dialects import Format, goes_by_partition
from lmerge_service.text import NANOSECONDS

__all__ = (
    "GuardSettings",
    "Kafka",
    "Limits",
    "Output",
    "OutputPolicy",
    "Properties",
    "Replica",
    "Stream",
    "Topology",
    "load",
    "load_kafka",
)

_HOUR = 3_600 * NANOSECONDS["s"]

M = TypeVar("M", bound=BaseModel)
GroupName = Annotated[str, Field(min_length=1, max_length=249)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}$")]

KeyField = Annotated[str, Field(pattern=r'^[^."\\\x00-\x1f]+(\.[^."\\\x00-\x1f]+)*$')]
"""Names of fields with dots between them."""


def _topic(name: str) -> str:
    if not is_topic_name(name):
        raise ValueError(
            "a topic name has 1 to 249 of the characters a-z A-Z 0-9 . _ -, and is neither . nor .."
        )
    return name


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Kafka(_Model):
    """How Kafka is reached."""

    bootstrap: str
    """host:port[,host:port…]"""
    tls: ClientTls | None = None
    """`{}` trusts the system's authorities; absent: no TLS."""
    sasl: Sasl | None = None

    @field_validator("bootstrap")
    @classmethod
    def _addresses(cls, bootstrap: str) -> str:
        for address in bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65_536:
                raise ValueError(f"host:port is needed, got {address.strip()!r}")
        return bootstrap

    @field_validator("tls", "sasl", mode="before")
    @classmethod
    def _not_empty(cls, given: Any) -> Any:
        if given is None:  # a field without a value must not pass for one that is absent
            raise ValueError("is empty; leave it out, or for TLS with the system's authorities: {}")
        return given

    @model_validator(mode="after")
    def _sealed(self) -> "Kafka":
        plain = self.sasl is not None and self.sasl.mechanism == "PLAIN" and self.tls is None
        if plain and not all(map(_is_loopback, self.bootstrap.split(","))):
            raise ValueError(
                "sasl PLAIN without tls sends the password in the clear: add tls, or use SCRAM"
            )
        return self


def _is_loopback(address: str) -> bool:
    host = address.strip().rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Output(_Model):
    """The merged stream."""

    topic: str
    partitions: int = Field(default=1, ge=1, le=1000)
    """How many merge tasks there are, one for each; fixed for the life of the topic."""
    dead_letters: str | None = None
    """Where records go that are not elements; by default the output topic + `.dead-letters`."""
    keep: Seconds | None = None
    """How long records of the output stay: older ones are deleted by the worker once no recovery
    and no reader needs them. By default the worker deletes nothing."""
    readers: tuple[GroupName, ...] = ()
    """Consumer groups whose committed offsets of the output the worker does not delete beyond."""
    table: bool = False
    """Whether the output's events are kept by key in a compacted topic as well: the output topic +
    `.table`."""
    longest_outage: Seconds = 86_400
    """For how long all workers may be down; where the output is kept for less, that is reported."""

    on_lost_state: Literal["stop", "restart"] = "stop"
    """What a worker does when it cannot go on from anything that is left of the output's state:
    `stop` ends it; `restart` begins a new incarnation of the output, for which all consumers must
    know what `lmerge-incarnation` and `lmerge-joining-at` mean."""

    _legal_topic = field_validator("topic", "dead_letters")(_topic)

    @property
    def dead_letter_topic(self) -> str:
        return self.dead_letters or f"{self.topic}.dead-letters"

    @property
    def state_topic(self) -> str:
        """Marks and snapshots of the merge."""
        return f"{self.topic}.state"

    @property
    def control_topic(self) -> str:
        """Decisions about the merge."""
        return f"{self.topic}.control"

    @property
    def events_topic(self) -> str:
        """What happened, as evidence for people."""
        return f"{self.topic}.events"

    @property
    def table_topic(self) -> str:
        """The output's events by key, if `table` is set."""
        return f"{self.topic}.table"

    @property
    def own_topics(self) -> tuple[str, ...]:
        """All that the merge writes."""
        return (
            self.topic,
            self.dead_letter_topic,
            self.state_topic,
            self.control_topic,
            self.events_topic,
            *([self.table_topic] if self.table else []),
        )


class Properties(_Model):
    """What a replica's stream promises, for `case: auto`; see `core.properties`."""

    ordered: bool = False
    strictly_ordered: bool = False
    revises: bool = True
    deterministic_ties: bool = False
    key: bool = False

    def of_stream(self) -> StreamProperties:
        """The same as `StreamProperties`, of which `lmerge(properties=…)` takes one per stream."""
        return StreamProperties(**self.model_dump())


class Stream(_Model):
    """Where a copy of the query publishes, and what its stream promises."""

    topic: str
    joining_at: Annotated[int, Field(ge=START, lt=INFINITY)] | None = None
    """The time from which the replica is correct; by default the beginning of time."""
    format: Format = "wire"
    """How its records encode elements: wire, or the options of a dialect (docs/dialects.md)."""
    properties: Properties = Properties()
    """What its stream promises; of use with `case: auto`."""
    co_partitioned: bool = False
    """Its topic has as many partitions as the output, and an event is in the partition of the same
    number: a declared short cut, by which a task reads one partition instead of all."""
    normalise: bool = False
    """Bring the replica to its canonical form first: it is the same as the others at every
    instant, but may cut its events into other intervals."""

    @property
    def is_known_by_partition(self) -> bool:
        """What a record means depends on those before it in its partition, so that a topic that
        gets more partitions cannot be read on."""
        return self.normalise or goes_by_partition(self.format)

    _legal_topic = field_validator("topic")(_topic)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.normalise and self.joining_at is not None:
            raise ValueError(
                "normalise needs the whole history, so it goes with no joining_at: an interval "
                "under way then has begun nobody knows when"
            )
        return self


class Replica(Stream):
    """One copy of the query."""

    name: Name


class OutputPolicy(_Model):
    """When the output emits; see docs/semantics.md, "Policies"."""

    insert: str = "first"
    """first, leader, half_frozen or quorum(n): which events are emitted, and when."""
    adjust: str = "lazy"
    """lazy, eager or leader: which revisions are emitted before a stable forces them."""
    stable: str = "max"
    """max, lag(d) or quorum(k): how far the output's stable goes."""

    @model_validator(mode="after")
    def _known(self) -> "OutputPolicy":
        self.policy()
        return self

    def policy(self) -> Policy:
        """The operator's `Policy`.

        Raises:
            ValueError: a part of it is no policy.
        """
        return Policy(self.insert, self.adjust, self.stable)


class Limits(_Model):
    """Bounds on what an outsider can make grow."""

    max_record_bytes: int = Field(default=1 << 20, ge=64, le=1 << 26)
    max_nesting: int = Field(default=64, ge=1, le=128)
    batch_records: int = Field(default=20_000, ge=1, le=1_000_000)
    """Records merged into one transaction at the most."""
    max_live_events: int = Field(default=1_000_000, ge=1)
    """Events of a worker's tasks together that are not fully frozen: from so many on, replicas that
    run ahead are paused; at one and a half times as many, all but one. Each task that it leads has
    an equal share."""
    max_live_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """The same for the bytes that those events take, by estimate."""


class GuardSettings(_Model):
    """What is judged before it is merged; see docs/operations.md, "Guards". 0 turns one off."""

    max_skew: int | None = Field(default=None, ge=0)
    """How far a stable may be ahead of the wall clock, in time units; by default one hour. Of no
    use where the topology has `time_unit: none`."""
    max_leap: int | None = Field(default=None, ge=0)
    """How far a stable may go beyond all that replicas have sent, in time units, before another
    has to come after it; by default 12 hours, none where the topology has `time_unit: none`."""
    early_end: bool = True
    """An end of stream waits until another replica ends, or no other is left to wait for."""
    patience_seconds: float | None = Field(default=300, ge=0)
    """A replica that has nothing unread and has made no progress for so long is not waited for any
    more; null: a person decides."""
    open_transaction_seconds: float = Field(default=10, ge=0)
    """A replica's transaction that is open for longer is a reason to look."""
    max_breaches: int = Field(default=50, ge=0, le=1_000)
    """More breaches and dead letters than this per 1,000 records quarantine a replica."""
    breach_window: int = Field(default=10_000, ge=1_000)
    """The latest records of a replica that are looked at for that."""
    min_breaches: int = Field(default=100, ge=1)
    """Fewer breaches than this in the window are never a reason."""
    max_divergences: int = Field(default=0, ge=0)
    """A replica that contradicts the final part of the output is reported; beyond so many times
    it is quarantined. 0: it is never quarantined for that."""
    duplicate_writer: Literal["quarantine", "report"] = "quarantine"
    """What becomes of a replica whose topic two producers seem to write."""


class Topology(_Model):
    """A merge: replicas in, one output."""

    name: Name
    """Names the merge: consumer group and transactional id are made of it."""
    kafka: Kafka
    output: Output
    key: tuple[KeyField, ...] = ()
    """The payload's fields that make the output's record key and choose its partition; by default
    the whole payload. A dot goes into an object; a field that is not there is null."""
    case: str = Case.R3.value
    """R0 to R4, or auto: the strongest case that the replicas' properties allow together."""
    policy: OutputPolicy = OutputPolicy()
    replicas: tuple[Replica, ...] = Field(min_length=1)
    nfc: bool = False
    """Normalise strings of payloads to NFC before they are compared."""
    drop_nulls: bool = False
    """Leave out members of payloads that are null before they are compared, for replicas some of
    which write them and some of which don't."""
    time_unit: Literal["ns", "us", "ms", "s", "none"] = "ms"
    """What vs, ve and vc count since 1970; none: they are no time of day."""
    limits: Limits = Limits()
    session_seconds: float = Field(default=6, ge=0.1, le=300)
    """How long a worker may send no heartbeat before its tasks are given to others; the brokers'
    limits (group.min.session.timeout.ms, by default 6 s) hold too."""
    standbys: int = Field(default=1, ge=0, le=10)
    """How many other workers follow each task; 0: only those that lead nothing do."""
    snapshot_seconds: float = Field(default=60, gt=0, le=86_400)
    """The time between two snapshots of a task, unless many records make one due earlier; recovery
    reads what came after one."""
    feedback_seconds: float = Field(default=1, ge=0.01, le=3_600)
    """The least time between two points that a task publishes for a replica."""
    guards: GuardSettings = GuardSettings()
    engine: EngineSetting = "auto"
    """What merges: Python, the native engine, or that where it is installed and knows the case and
    policy. The environment's LMERGE_ENGINE comes before it."""
    http: Http = Http()
    up: Up | None = None
    """What `lmerge up` starts; nothing to a worker."""

    @field_validator("key")
    @classmethod
    def _once(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({field for field in key if key.count(field) > 1}):
            raise ValueError(f"names {', '.join(twice)} twice")
        return key

    @field_validator("case")
    @classmethod
    def _known(cls, case: str) -> str:
        if case not in (choices := [*Case, "auto"]):
            raise ValueError(f"must be one of {', '.join(choices)}, got {case!r}")
        return case

    @model_validator(mode="after")
    def _distinct(self) -> "Topology":
        names = [replica.name for replica in self.replicas]
        topics = [replica.topic for replica in self.replicas]
        for what, values in (("name", names), ("topic", topics)):
            if twice := {value for value in values if values.count(value) > 1}:
                raise ValueError(f"replicas share the {what} {', '.join(sorted(twice))}")
        for own in self.output.own_topics:
            if own in topics:
                raise ValueError(f"topic {own} is both written and read as a replica")
        if self.output.own_topics.count(self.output.dead_letter_topic) > 1:
            raise ValueError("output, dead letters, state, decisions, events, table: a topic each")
        return self

    @model_validator(mode="after")
    def _kept(self) -> "Topology":
        if self.output.readers and self.output.keep is None:
            raise ValueError("output.readers are of use with output.keep only: nothing is deleted")
        if self.output.keep is not None and self.resolved_case not in (Case.R3, Case.R4):
            raise ValueError(
                f"output.keep needs case R3 or R4, not {self.resolved_case}, whose state does not "
                "hold the events that are live: who begins to read would lack them"
            )
        if self.output.table and self.resolved_case not in (Case.R3, Case.R4):
            raise ValueError(
                f"output.table needs case R3 or R4, not {self.resolved_case}, whose state does not "
                "hold the events that are live: the table could not begin with them"
            )
        return self

    @model_validator(mode="after")
    def _attainable(self) -> "Topology":
        self.policy.policy().check_inputs(len(self.replicas))
        return self

    @model_validator(mode="after")
    def _local(self) -> "Topology":
        secured = self.kafka.tls is not None or self.kafka.sasl is not None
        if secured and self.up is not None and self.up.broker is not None:
            raise ValueError("up.broker is a Kafka without TLS and SASL: leave out one of them")
        return self

    @model_validator(mode="after")
    def _revised(self) -> "Topology":
        if self.resolved_case not in (Case.R3, Case.R4) and any(
            each.normalise for each in self.replicas
        ):
            raise ValueError(
                f"normalise needs case R3 or R4, not {self.resolved_case}: "
                "the canonical form is revised"
            )
        return self

    @model_validator(mode="after")
    def _translated(self) -> "Topology":
        translated = [each.name for each in self.replicas if each.format != "wire"]
        if self.resolved_case not in (Case.R3, Case.R4) and translated:
            raise ValueError(
                f"replica {translated[0]} publishes in a dialect, which needs case R3 or R4, not "
                f"{self.resolved_case}: a row's end comes after its beginning"
            )
        return self

    @property
    def resolved_case(self) -> Case:
        """The case that is merged."""
        if self.case != "auto":
            return Case(self.case)
        return weakest(replica.properties.of_stream() for replica in self.replicas)

    @property
    def engine_choice(self) -> EngineChoice:
        """The engine that merges, and why.

        Raises:
            ConfigurationError: the native one is asked for, and cannot be had; LMERGE_ENGINE is
                none of the choices.
        """
        return chosen(engine_setting(self.engine), self.resolved_case, self.policy.policy())

    @property
    def unit_nanoseconds(self) -> int | None:
        """How long a time unit is; None where times are no time of day."""
        return NANOSECONDS.get(self.time_unit)

    @property
    def max_skew(self) -> int:
        """How far a stable may be ahead of the wall clock, in time units; 0: it does not matter."""
        return self._span(self.guards.max_skew, _HOUR) if self.unit_nanoseconds else 0

    @property
    def max_leap(self) -> int:
        """How far a stable may go beyond all others, in time units; 0: it does not matter."""
        return self._span(self.guards.max_leap, 12 * _HOUR)

    def _span(self, units: int | None, otherwise: int) -> int:
        if units is not None:
            return units
        return otherwise // self.unit_nanoseconds if self.unit_nanoseconds else 0


class _KafkaAlone(BaseModel):
    """What clients read of a file: whatever else it contains is not theirs."""

    kafka: Kafka


def load(path: Path | str, *, bootstrap: str | None = None) -> Topology:
    """Reads a topology; `bootstrap`, or else LMERGE_BOOTSTRAP, takes the place of the file's.

    Raises:
        ConfigurationError: the file can't be read, isn't YAML, or isn't a topology.
    """
    return _load(Topology, path, bootstrap, "a topology is a mapping with name, kafka, output, …")


def load_kafka(path: Path | str, *, bootstrap: str | None = None) -> Kafka:
    """Reads the `kafka` section of a file, which may be a topology; else as `load`."""
    return _load(_KafkaAlone, path, bootstrap, "a mapping with a kafka section is needed").kafka


def _load(model: type[M], path: Path | str, bootstrap: str | None, needed: str) -> M:
    from lmerge_service.config.yaml_file import parse  # slow to import, and replicas read no file

    document = parse(Path(path), needed)
    if instead := bootstrap or os.environ.get("LMERGE_BOOTSTRAP"):
        if not isinstance(document.get("kafka"), dict):
            document["kafka"] = {}
        document["kafka"]["bootstrap"] = _checked(instead)
    try:
        return model.model_validate(document, context={"folder": Path(path).parent})
    except ValidationError as error:
        raise ConfigurationError("\n".join(_faults(path, document, error))) from None


def _checked(bootstrap: str) -> str:
    """The address given instead of the file's, which the file is not to be blamed for."""
    try:
        return Kafka(bootstrap=bootstrap).bootstrap
    except ValidationError as error:
        fault = _described(error.errors()[0])
        raise ConfigurationError(f"--bootstrap or LMERGE_BOOTSTRAP: {fault}") from None


def _faults(path: Path | str, document: Any, error: ValidationError) -> list[str]:
    from lmerge_service.config.yaml_file import line_of

    found = [(_written(fault["loc"]), fault) for fault in _faults_of_their_own(error.errors())]
    return [
        f"{path}:{line_of(document, loc)}: {_field(loc)}{_described(fault)}" for loc, fault in found
    ]


def _faults_of_their_own(faults: Sequence[Any]) -> Iterator[Any]:
    """Without what merely follows from another fault: a list is too short when the items that have
    faults are not counted."""
    for fault in faults:
        at = fault["loc"]
        within = (each["loc"][: len(at)] == at for each in faults if len(each["loc"]) > len(at))
        if fault["type"] != "too_short" or not any(within):
            yield fault


def _written(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The place in the document: without the tags of unions, which stand in <>."""
    return tuple(part for part in loc if not (isinstance(part, str) and part.startswith("<")))


def _described(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown field"
    if fault["type"] == "missing":
        return "is missing"
    return fault_message(fault)


def _field(loc: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.lstrip(".") + ": " if loc else ""
