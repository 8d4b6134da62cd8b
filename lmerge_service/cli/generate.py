"""`lmerge generate`: the paper's workload at scale, by Spark."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from lmerge_service.cli.jobs import Memory, session, stored_stream
from lmerge_service.cli.options import TOPIC, KafkaOptions, check_topic, flag, option
from lmerge_service.cli.streams import label
from lmerge_service.cli.variations import given_of, with_variation
from lmerge_service.errors import ConfigurationError
from lmerge_service.workloads.presentation import Variation

if TYPE_CHECKING:
    from lmerge_service.spark.io.places import Sink

__all__ = ("WorkloadOptions", "generate")

Make: TypeAlias = Callable[[Any], Any]
"""A frame of elements, of a session."""

_EVENTS: Final = "Which events there are (times are in milliseconds)"
_PRESENTED: Final = "How they are presented"
_WHERE: Final = "Where to"

_USUAL: Final = Variation(disorder=0.2)
_NOT_IN_SLICES: Final = ("ends", "stable_every", "stable_probability", "repeated_stables")
"""What cannot be made in slices, and what --stable-freq is for."""


def _amount(
    text: str, panel: str, least: int = 0, most: int | None = None, default: Any = ...
) -> Any:
    return option("N", text, panel=panel, min=least, max=most, default=default)


@dataclass(frozen=True)
class WorkloadOptions:
    """The paper's workload; the fields are those of `spark.generator.workload`."""

    events: Annotated[int, _amount("How many events.", _EVENTS, 1)] = 200_000
    seed: Annotated[int, option("N", "Equal seeds give equal events.", panel=_EVENTS)] = 1
    max_gap: Annotated[int, _amount("MaxGap: between two starts at the most.", _EVENTS, 1)] = 20_000
    event_duration: Annotated[
        int | None,
        _amount(
            "EventDuration, of each. [default: such that 10,000 are alive at any time]", _EVENTS, 1
        ),
    ] = None
    payload_bytes: Annotated[
        int, _amount("Length of the random string in the payload, 16 or more.", _EVENTS)
    ] = 1000


@with_variation(_USUAL, _NOT_IN_SLICES)
def generate(
    output: str = option(
        "PATH", "A folder that is not there yet, or kafka:TOPIC.", "--output", "-o", panel=_WHERE
    ),
    of: str | None = option(
        "SOURCE",
        "Instead, the inserts of a stream that is stored: kafka:TOPIC, a folder of "
        "Parquet, a file of lines. Of the options of this group none counts then.",
        panel=_EVENTS,
        default=None,
    ),
    presentation: int = option(
        "N", "Which presentation of these events; all mean the same.", panel=_PRESENTED, default=0
    ),
    logical: bool = flag(
        "The logical stream itself: inserts in order, one stable at the end. Other "
        "options of presentation are ignored.",
        "--logical",
        panel=_PRESENTED,
    ),
    stable_freq: float = option(
        "FRACTION",
        "StableFreq: the fraction of elements that are stables.",
        min=0,
        max=1,
        panel=_PRESENTED,
        default=0.01,
    ),
    format_: Literal["parquet", "ndjson"] = option(
        "FORMAT", "Of files: parquet or ndjson.", "--format", panel=_WHERE, default="parquet"
    ),
    partitions: int = _amount("Of a topic that is made here.", _WHERE, 1, 1000, default=1),
    key: list[str] | None = option(
        "FIELD",
        "Of the payload, for the key of records; may be repeated.",
        show_default="the payload",
        panel=_WHERE,
        default=None,
    ),
    tasks: int | None = _amount(
        "In how many pieces it is made; the stream is the same.", _WHERE, 1, default=None
    ),
    memory: Memory = "1g",
    *,
    workload: WorkloadOptions,
    kafka: KafkaOptions,
    **variation: Any,
) -> None:
    """Make the paper's workload (VI-B), up to hundreds of millions of elements, with Spark.

    Equal options give equal streams, whatever the number of cores. Streams that differ in how
    they are presented, or in --presentation, mean the same.

    Example: `lmerge generate --events 1000000 --payload-bytes 100 -o a.parquet`

    Example: `lmerge generate --presentation 1 --provisional 0.3 -o kafka:replica.b`
    """
    from lmerge_service.spark.io.elements import write_elements

    presented = _Presented(f"{presentation}", logical, stable_freq, variation, tasks)
    if of is None:
        make, in_kafka = _generated(presented, workload), False
    else:
        make, in_kafka = _stored(presented, of, kafka)
    to_kafka = output.startswith(TOPIC)
    topic = output.removeprefix(TOPIC)
    sink = _topic(topic, key or (), partitions, kafka) if to_kafka else _files(output, format_)
    with (
        nullcontext() if to_kafka else _whole(Path(output)),
        session(f"generating {label(output)}", memory, kafka=in_kafka or to_kafka) as spark,
    ):
        write_elements(make(spark), sink, order=["offset"] if to_kafka else None)
    typer.echo(f"{label(output)}: written", err=True)


@dataclass(frozen=True, slots=True)
class _Presented:
    """How the events are presented, by the options."""

    seed: str
    logical: bool
    stable_freq: float
    given: Mapping[str, Any]
    tasks: int | None

    def variation(self, length: int) -> Variation:
        """`length` is an event's usual one."""
        if self.logical:
            return Variation()
        given, chance = given_of(self.given, length), _after_each(self.stable_freq)
        return replace(_USUAL, **given, stable_probability=chance)


def _generated(presented: _Presented, options: WorkloadOptions) -> Make:
    from lmerge_service.spark.generator.job import generated
    from lmerge_service.spark.generator.slices import Presentation
    from lmerge_service.spark.generator.workload import Workload

    try:
        workload = Workload(**asdict(options))
        variation = presented.variation(workload.duration)
        made = Presentation(workload, variation, seed=presented.seed)
    except ValueError as error:
        raise ConfigurationError(_as_options(str(error))) from None
    return lambda spark: generated(spark, made, tasks=presented.tasks)


def _stored(presented: _Presented, of: str, kafka: KafkaOptions) -> tuple[Make, bool]:
    """The presentation of a stored stream, and whether that is in Kafka."""
    from lmerge_service.spark.generator.stored import inserts_of, mean_length
    from lmerge_service.spark.generator.stored import presented as present
    from lmerge_service.spark.io.elements import read_elements

    source, in_kafka = stored_stream(of, kafka.bootstrap, kafka.kafka_config)
    presented.variation(1)  # mistakes are reported before Spark starts

    def make(spark: Any) -> Any:
        events = inserts_of(read_elements(spark, source, keys="none"))
        variation = presented.variation(mean_length(events))
        return present(events, variation, presented.seed, tasks=presented.tasks)

    return make, in_kafka


def _after_each(frequency: float) -> float:
    """With which probability a stable is due behind an element, so that so many are stables.

    >>> _after_each(0.2)
    0.25
    """
    return frequency / (1 - frequency) if frequency < 0.5 else 1.0


def _as_options(message: str) -> str:
    """The names of options as they are written.

    >>> _as_options("payload_bytes must be at least 16, got 3")
    '--payload-bytes must be at least 16, got 3'
    """
    name, space, rest = message.partition(" ")
    known = any(name == each.name for each in (*fields(WorkloadOptions), *fields(Variation)))
    return f"--{name.replace('_', '-')}{space}{rest}" if known else message


def _topic(topic: str, key: Sequence[str], partitions: int, kafka: KafkaOptions) -> "Sink":
    from lmerge_service.spark.io.elements import existing_offsets
    from lmerge_service.spark.io.places import WrittenTopic

    check_topic(topic)
    place = kafka.place()
    if any(end for _, end in (existing_offsets(place, topic) or {}).values()):
        raise ConfigurationError(f"kafka:{topic} holds records already: choose another topic")
    return WrittenTopic(place, topic, key, partitions)


def _files(output: str, kind: str) -> "Sink":
    from lmerge_service.spark.io.places import JsonFiles, ParquetFiles

    if not output:
        raise ConfigurationError("the name of a folder is empty (a variable that is not set?)")
    if Path(output).exists():
        unfinished = Path(output, "_temporary").exists()
        advice = " and was not finished: remove it, or choose" if unfinished else ": choose"
        raise ConfigurationError(f"{label(output)} is there already{advice} another folder")
    _check_writable(output)
    return JsonFiles(output) if kind == "ndjson" else ParquetFiles(output)


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Removes what was made of a folder that does not become whole: it can be made again."""
    try:
        yield
    except ConfigurationError:  # nothing was made, or by somebody else meanwhile
        raise
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise


def _check_writable(output: str) -> None:
    """Refuses a folder that cannot be made, before a stream is made for it."""
    if ":/" in output:
        return
    above = next(each for each in Path(output).absolute().parents if each.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        why = "may not be written to" if above.is_dir() else "is no folder"
        raise ConfigurationError(f"cannot write {label(output)}: {label(str(above))} {why}")
