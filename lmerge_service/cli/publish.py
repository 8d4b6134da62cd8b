"""`lmerge publish`: an element file into a topic, as a replica would send it."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import typer

from lmerge_service.cli.options import KafkaOptions, Partitions, Seed, argument, check_topic, option
from lmerge_service.cli.streams import label, reading
from lmerge_service.elements import START
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.elements import Element
    from lmerge_service.formats.dialects import Written

__all__ = ("publish",)

_Format: TypeAlias = Literal["wire", "debezium", "flink", "openclose", "upserts"]


def publish(
    source: str = argument("FILE", "An element file; - is stdin."),
    topic: str = argument("TOPIC", "Made when it is missing."),
    rate: float | None = option(
        "N", "Elements a second.", min=0.1, show_default="as fast as it goes", default=None
    ),
    stalls: float = option(
        "FRACTION",
        "Stand still for about 20 ms before so many of the elements; what has queued "
        "goes out at once then. Needs --rate.",
        min=0,
        max=1,
        default=0.0,
    ),
    congested: list[str] | None = option(
        "FROM-UNTIL",
        "Let a thousand elements a second through at the most, between these seconds "
        "from the start; may be repeated. Needs --rate.",
        default=None,
    ),
    seed: Seed = 1,
    partitions: Partitions = 1,
    incarnation: int = option(
        "N",
        "Of a replica that starts over: higher than before, since it lost its memory.",
        min=0,
        default=0,
    ),
    joining_at: int | None = option(
        "TIME",
        "From which time on the incarnation is correct.",
        show_default="the beginning",
        default=None,
    ),
    format_: _Format = option(
        "DIALECT",
        "wire, debezium, flink, openclose or upserts; see docs/dialects.md.",
        "--format",
        default="wire",
    ),
    key: list[str] | None = option(
        "FIELD",
        "Of the payload, for the key of a dialect's rows; may be repeated.",
        show_default="the payload",
        default=None,
    ),
    *,
    kafka: KafkaOptions,
) -> None:
    """Publish an element file to a replica's topic, at a steady rate, or as if it were disturbed.

    Example: `lmerge publish jan/a.ndjson flights.a --rate 2000`
    """
    import asyncio

    from lmerge_service.kafka.publish import on_the_wire
    from lmerge_service.kafka.publish import publish as send

    check_topic(topic)
    if joining_at is not None and not incarnation:
        raise ConfigurationError(
            "--joining-at belongs to a replica that starts over: give --incarnation, 1 or higher"
        )
    written = on_the_wire if format_ == "wire" else _in_dialect(format_, key or [])
    if key and format_ in ("wire", "openclose"):
        raise ConfigurationError(f"--key is for rows, of which --format {format_} has none")
    due = _due(rate, stalls, congested or [], seed)
    with reading([source]) as (stream,):
        sent = asyncio.run(
            send(
                kafka.connection(),
                topic,
                (element for _, element in stream),
                due=due,
                partitions=partitions,
                incarnation=incarnation,
                joining_at=START if joining_at is None else joining_at,
                written=written,
            )
        )
    typer.echo(f"{sent:,} elements of {label(source)} are in {topic}", err=True)


def _due(
    rate: float | None, stalls: float, congested: Sequence[str], seed: int
) -> "Iterator[float] | None":
    from lmerge_service.workloads.pace import due

    if rate is None:
        if stalls or congested:
            raise ConfigurationError("--stalls and --congested disturb a --rate: give one")
        return None
    return due(rate, stalls=stalls, congested=list(map(_span, congested)), seed=seed)


def _span(text: str) -> tuple[float, float]:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text)
    if found is None or float(found[1]) >= float(found[2]):
        raise ConfigurationError(f"--congested takes seconds from the start, as in 5-7.5: {text}")
    return float(found[1]), float(found[2])


def _in_dialect(name: str, key: Sequence[str]) -> "Callable[[Element], Sequence[Written]]":
    from lmerge_service.formats.dialects import writer

    if any(not part for field in key for part in field.split(".")):
        raise ConfigurationError("--key names a field, with dots between the names of nested ones")
    return writer(name, key).write
