"""How a topology configures a replica's dialect: strict models, one for each.

`format: wire`, the default, or a mapping whose `dialect` names the model. A *path* is the names of
nested fields with dots between. `time` and `watermark` are looked for from the record's value
down, everything else in the row.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from lmerge_service.elements import INFINITY
from lmerge_service.formats.dialects.unavailable import PLACEHOLDER, octets

__all__ = (
    "TIMESTAMP",
    "Debezium",
    "DialectFormat",
    "Flink",
    "Format",
    "Lateness",
    "OpenClose",
    "RowLifetime",
    "Transactions",
    "Upserts",
    "Watermark",
)

TIMESTAMP = "timestamp"
"""As a time: the Kafka record's own timestamp."""

Path = Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)*$", max_length=1_000)]
Keys = Annotated[tuple[Path, ...], Field(min_length=1)]


def _with_octets(placeholder: str) -> str:
    try:
        found = octets(placeholder)
    except ValueError:
        raise ValueError("hex: needs hexadecimal digits behind it, two for each byte") from None
    if not found:
        raise ValueError("an empty placeholder would also occur as a value")
    return placeholder


Placeholder = Annotated[str, Field(max_length=1_000), AfterValidator(_with_octets)]
"""A connector's `unavailable.value.placeholder`, as it is set there."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lateness(_Model):
    """Stable stays so far behind the latest time seen; what comes later yet is refused."""

    lateness: int = Field(ge=0, lt=INFINITY)
    """In the unit of the times."""
    step: int = Field(default=1, ge=1, lt=INFINITY)
    """Stables are multiples of it: the larger, the fewer."""
    heartbeats: bool = False
    """The times of heartbeat records count as seen (Debezium)."""


class Watermark(_Model):
    """The records carry it: nothing before the time in this field changes any more."""

    watermark: Path


class Transactions(_Model):
    """The latest time seen is stable when a transaction ends."""

    transactions: Literal[True]


def _rule(value: Any) -> str | None:
    names = value if isinstance(value, dict) else getattr(type(value), "model_fields", ())
    known = ("lateness", "watermark", "transactions")
    return next((f"<{name}>" for name in known if name in names), None)


def _discriminator(kinds: str) -> Discriminator:
    return Discriminator(
        _rule,
        custom_error_type="stable_rule",
        custom_error_message=f"must be a mapping with {kinds}: where stables come from",
    )


_Lateness = Annotated[Lateness, Tag("<lateness>")]
_Watermark = Annotated[Watermark, Tag("<watermark>")]
_Transactions = Annotated[Transactions, Tag("<transactions>")]
_Stable = Annotated[_Lateness | _Watermark, _discriminator("lateness or watermark")]
_DebeziumStable = Annotated[
    _Lateness | _Watermark | _Transactions, _discriminator("lateness, watermark or transactions")
]


class RowLifetime(_Model):
    """Rows that carry the interval in which they are valid (a window's start and end)."""

    vs: Path
    ve: Path
    """A null is infinity."""


class OpenClose(_Model):
    """Open and close elements (Example 3 of the paper), with stables among them."""

    dialect: Literal["openclose"]
    stable: Lateness | None = None
    """Besides the stream's own stable records."""

    @model_validator(mode="after")
    def _no_heartbeats(self) -> "OpenClose":
        _refuse_heartbeats(self.stable)
        return self


class Debezium(_Model):
    """Debezium's change events, with schema or without."""

    dialect: Literal["debezium"]
    time: Path = "source.ts_ms"
    """When the change happened, from the envelope down; or `timestamp`."""
    lifetime: RowLifetime | None = None
    """Instead of `time`."""
    key: Keys | None = None
    """Fields that identify a row; by default the record key does."""
    unavailable_value_placeholder: Placeholder = PLACEHOLDER
    """What the connector writes for values that the log does not repeat; text, or `hex:…`."""
    stable: _DebeziumStable


class Flink(_Model):
    """Changelog rows, as Apache Flink's formats write them."""

    dialect: Literal["flink"]
    encoding: Literal["rowkind", "debezium-json", "canal-json"]
    kind: Annotated[str, Field(min_length=1)] = "op"
    """The field of a row that holds +I, -U, +U or -D (rowkind)."""
    time: Path = TIMESTAMP
    """When the change happened, from the record's value down; or `timestamp`."""
    lifetime: RowLifetime | None = None
    """Instead of `time`; then rows need no key, and nothing is kept."""
    key: Keys | None = None
    """Fields that identify a row; by default the whole row does."""
    stable: _Stable

    @model_validator(mode="after")
    def _consistent(self) -> "Flink":
        if self.lifetime is not None and self.key is not None:
            raise ValueError("rows with a lifetime are taken as they are, so key has no use")
        _refuse_heartbeats(self.stable)
        return self


class Upserts(_Model):
    """Rows by record key, and tombstones: compacted topics, KTables, Spark's update mode."""

    dialect: Literal["upserts"]
    time: Path = TIMESTAMP
    """When the row became so, from the record's value down; or `timestamp`, which is also when a
    tombstone takes effect."""
    lifetime: RowLifetime | None = None
    """Instead of `time`."""
    key_into: Annotated[str, Field(min_length=1)] | None = None
    """Under which name the record key becomes part of the row, which must keep keys distinct."""
    key_encoding: Literal["json", "text"] = "json"
    unavailable_value_placeholder: Placeholder = PLACEHOLDER
    """As with `debezium`, of whose connectors the rows may come without their envelope."""
    stable: _Stable

    @model_validator(mode="after")
    def _consistent(self) -> "Upserts":
        if self.key_into is None and "key_encoding" in self.model_fields_set:
            raise ValueError("key_encoding is of use with key_into only")
        _refuse_heartbeats(self.stable)
        return self


def _refuse_heartbeats(stable: object) -> None:
    if isinstance(stable, Lateness) and stable.heartbeats:
        raise ValueError("stable.heartbeats: only Debezium has heartbeats")


def _dialect(value: Any) -> str | None:
    if isinstance(value, str):
        return "<wire>"
    name = value.get("dialect") if isinstance(value, dict) else getattr(value, "dialect", None)
    return f"<{name}>"


DialectFormat: TypeAlias = OpenClose | Debezium | Flink | Upserts

Format = Annotated[
    Annotated[Literal["wire"], Tag("<wire>")]
    | Annotated[OpenClose, Tag("<openclose>")]
    | Annotated[Debezium, Tag("<debezium>")]
    | Annotated[Flink, Tag("<flink>")]
    | Annotated[Upserts, Tag("<upserts>")],
    Discriminator(
        _dialect,
        custom_error_type="format",
        custom_error_message="must be wire, or a mapping whose dialect is one of "
        "debezium, flink, openclose, upserts",
    ),
]
"""The tags in <> stand in the places that pydantic reports for a fault, where nobody wrote them."""
