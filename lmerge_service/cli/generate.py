"""`lmerge generate`: the paper's workload at scale, by Spark."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from lmerge_service.cli.jobs import Memory, kafka_place, session, stored_stream
from lmerge_service.cli.options import TOPIC, Bootstrap, KafkaConfig, check_topic
from lmerge_service.cli.streams import label
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.spark.generator.slices import Presentation
    from lmerge_service.spark.io.places import Sink
    from lmerge_service.workloads.presentation import Variation

__all__ = ("generate",)

Make: TypeAlias = Callable[[Any], Any]
"""A frame of elements, of a session."""

_EVENTS: Final = "Which events there are (times are in milliseconds)"
_PRESENTED: Final = "How they are presented (fractions are of all events or elements)"
_WHERE: Final = "Where to"

_OF_WORKLOAD: Final = ("events", "seed", "max_gap", "event_duration", "payload_bytes")
_OF_VARIATION: Final = (
    "disorder",
    "displacement",
    "stable_lag",
    "lead",
    "pace",
    "provisional",
    "revisions",
    "spread",
    "endless",
    "reinserted",
    "phantoms",
    "doubled",
    "closed",
)


def _fraction(text: str, name: str | None = None) -> Any:
    return typer.Option(
        *([name] if name else []),
        min=0,
        max=1,
        metavar="FRACTION",
        help=text,
        rich_help_panel=_PRESENTED,
    )


def _amount(text: str, panel: str, least: int = 0, most: int | None = None) -> Any:
    return typer.Option(min=least, max=most, metavar="N", help=text, rich_help_panel=panel)


def generate(
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A folder that is not there yet, or kafka:TOPIC.",
            rich_help_panel=_WHERE,
        ),
    ],
    events: Annotated[int, _amount("How many events.", _EVENTS, 1)] = 200_000,
    seed: Annotated[
        int,
        typer.Option(metavar="N", help="Equal seeds give equal events.", rich_help_panel=_EVENTS),
    ] = 1,
    max_gap: Annotated[
        int, _amount("MaxGap: between two starts at the most.", _EVENTS, 1)
    ] = 20_000,
    event_duration: Annotated[
        int | None,
        _amount(
            "EventDuration, of each. [default: such that 10,000 are alive at any time]",
            _EVENTS,
            1,
        ),
    ] = None,
    payload_bytes: Annotated[
        int, _amount("Length of the random string in the payload, 16 or more.", _EVENTS)
    ] = 1000,
    of: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Instead, the inserts of a stream that is stored: kafka:TOPIC, a folder of "
            "Parquet, a file of lines. Of the options of this group none counts then.",
            rich_help_panel=_EVENTS,
        ),
    ] = None,
    presentation: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Which presentation of these events; all mean the same.",
            rich_help_panel=_PRESENTED,
        ),
    ] = 0,
    logical: Annotated[
        bool,
        typer.Option(
            "--logical",
            help="The logical stream itself: inserts in order, one stable at the end. Other "
            "options of presentation are ignored.",
            rich_help_panel=_PRESENTED,
        ),
    ] = False,
    stable_freq: Annotated[
        float, _fraction("StableFreq: the fraction of elements that are stables.")
    ] = 0.01,
    stable_lag: Annotated[
        int, _amount("How long stables stay behind what is certain.", _PRESENTED)
    ] = 0,
    disorder: Annotated[
        float, _fraction("Disorder: the fraction of elements that are delayed.")
    ] = 0.2,
    displacement: Annotated[
        int | None, _amount("By how long at the most. [default: EventDuration]", _PRESENTED, 1)
    ] = None,
    lead: Annotated[int, _amount("Inserts come so long before the start.", _PRESENTED)] = 0,
    pace: Annotated[
        Literal["eager", "late", "anytime"],
        typer.Option(
            metavar="PACE",
            help="Revisions come eager, late or anytime.",
            rich_help_panel=_PRESENTED,
        ),
    ] = "anytime",
    provisional: Annotated[float, _fraction("Published with made-up ends first.")] = 0,
    revisions: Annotated[int, _amount("Made-up ends at the most.", _PRESENTED, 1)] = 1,
    spread: Annotated[
        int | None,
        _amount(
            "How far these lie below or above the final end. [default: EventDuration]",
            _PRESENTED,
            1,
        ),
    ] = None,
    endless: Annotated[float, _fraction("Of the made-up ends, those at infinity.")] = 0,
    reinserted: Annotated[float, _fraction("Inserted, removed, and inserted again.")] = 0,
    phantoms: Annotated[float, _fraction("Further events, which are later removed.")] = 0,
    doubled: Annotated[float, _fraction("There twice for a while (case R4 only).")] = 0,
    closed: Annotated[
        bool,
        typer.Option(
            "--closed/--open", help="End with stable(infinity), or not.", rich_help_panel=_PRESENTED
        ),
    ] = True,
    format_: Annotated[
        Literal["parquet", "ndjson"],
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Of files: parquet or ndjson.",
            rich_help_panel=_WHERE,
        ),
    ] = "parquet",
    partitions: Annotated[int, _amount("Of a topic that is made here.", _WHERE, 1, 1000)] = 1,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Of the payload, for the key of records; may be repeated.",
            show_default="the payload",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        _amount("In how many pieces it is made; the stream is the same.", _WHERE, 1),
    ] = None,
    memory: Memory = "1g",
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Make the paper's workload (VI-B), up to hundreds of millions of elements, with Spark.

    Equal options give equal streams, whatever the number of cores. Streams that differ in how
    they are presented, or in --presentation, mean the same.

    Example: `lmerge generate --events 1000000 --payload-bytes 100 -o a.parquet`

    Example: `lmerge generate --presentation 1 --provisional 0.3 -o kafka:replica.b`
    """
    given = dict(locals())
    from lmerge_service.spark.io.elements import write_elements

    make, in_kafka = _stored(given) if of is not None else (_generated(given), False)
    topic = output.removeprefix(TOPIC) if output.startswith(TOPIC) else None
    sink = _sink(output, format_, topic, key or (), partitions, bootstrap, kafka_config)
    kafka = in_kafka or topic is not None
    with (
        nullcontext() if topic is not None else _whole(Path(output)),
        session(f"generating {label(output)}", memory, kafka=kafka) as spark,
    ):
        write_elements(make(spark), sink, order=None if topic is None else ["offset"])
    typer.echo(f"{label(output)}: written", err=True)


def _generated(given: Mapping[str, Any]) -> Make:
    from lmerge_service.spark.generator.job import generated

    made = _presentation(given)
    return lambda spark: generated(spark, made, tasks=given["tasks"])


def _stored(given: Mapping[str, Any]) -> "tuple[Make, bool]":
    """The presentation of a stored stream, and whether that is in Kafka."""
    from lmerge_service.spark.generator.stored import inserts_of, mean_length, presented
    from lmerge_service.spark.io.elements import read_elements

    source, in_kafka = stored_stream(given["of"], given["bootstrap"], given["kafka_config"])
    _variation(given, 1)  # mistakes are reported before Spark starts

    def make(spark: Any) -> Any:
        events = inserts_of(read_elements(spark, source, keys="none"))
        variation = _variation(given, mean_length(events))
        return presented(events, variation, f"{given['presentation']}", tasks=given["tasks"])

    return make, in_kafka


def _presentation(given: Mapping[str, Any]) -> "Presentation":
    """What the options ask for."""
    from lmerge_service.spark.generator.slices import Presentation
    from lmerge_service.spark.generator.workload import Workload

    try:
        workload = Workload(**{name: given[name] for name in _OF_WORKLOAD})
        variation = _variation(given, workload.duration)
        return Presentation(workload, variation, seed=f"{given['presentation']}")
    except ValueError as error:
        raise ConfigurationError(_as_options(str(error))) from None


def _variation(given: Mapping[str, Any], length: int) -> "Variation":
    """Its presentation; `length` is an event's usual one."""
    from lmerge_service.workloads.presentation import Variation

    if given["logical"]:
        return Variation()
    asked = {name: given[name] for name in _OF_VARIATION if given[name] is not None}
    usual = {"spread": length, "displacement": length}
    return Variation(**usual | asked, stable_probability=_after_each(given["stable_freq"]))


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
    for name in (*_OF_WORKLOAD, *_OF_VARIATION):
        if message.startswith(f"{name} "):
            return message.replace(name, "--" + name.replace("_", "-"), 1)
    return message


def _sink(
    output: str,
    kind: str,
    topic: str | None,
    key: "list[str] | tuple[str, ...]",
    partitions: int,
    bootstrap: str | None,
    kafka_config: Path | None,
) -> "Sink":
    from lmerge_service.spark.io.elements import existing_offsets
    from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, Topic

    if topic is not None:
        check_topic(topic)
        kafka = kafka_place(bootstrap, kafka_config)
        found = existing_offsets(kafka, topic) or {}
        if any(end for _, end in found.values()):
            raise ConfigurationError(f"{output} holds records already: choose another topic")
        return Topic(kafka, topic, key, partitions)
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
