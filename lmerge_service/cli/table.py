"""`lmerge table`: the temporal database of a stream as a table, brought up to date and asked."""

import itertools
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from heapq import nsmallest
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from lmerge_service.cli.jobs import Memory, session, stored_stream
from lmerge_service.cli.options import Bootstrap, DropNulls, Json, KafkaConfig, Nfc
from lmerge_service.cli.streams import label
from lmerge_service.cli.words import finite, point, print_json, shortened
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.spark.table.delta import Size, Snapshot
    from lmerge_service.spark.table.read import Known

__all__ = ("app",)

app = typer.Typer(
    no_args_is_help=True, help="A stream's events as a table: what was true when, what was known."
)

_STEP: Final = 2_000_000
_RETAIN_HOURS: Final = 7 * 24

_Place = Annotated[str, typer.Argument(metavar="TABLE", help="The folder of the table.")]


@app.command("update")
def update(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="kafka:TOPIC, a folder of Parquet that was written from one, or a file of lines.",
        ),
    ],
    place: _Place,
    step: Annotated[
        int, typer.Option(min=1, metavar="N", help="Records at a time; each step is committed.")
    ] = _STEP,
    memory: Memory = "2g",
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    nfc: Nfc = False,
    drop_nulls: DropNulls = False,
    json: Json = False,
) -> None:
    """Take into the table what its stream has now; make the table if it is missing.

    Each record counts once, also after a kill: the table itself records how far it has read.

    Example: `lmerge table update kafka:flights.merged flights.table`
    """
    from lmerge_service.formats.bulk import Rule
    from lmerge_service.spark.table.delta import newest
    from lmerge_service.spark.table.update import update_table

    newest(place)  # mistakes are reported before Spark starts
    found, kafka = stored_stream(source, bootstrap, kafka_config)

    def report(table: "Snapshot") -> None:
        if not json:
            typer.echo(f"{label(place)}: {_standing(table)}", err=True)

    with session(f"updating {label(place)}", memory, kafka=kafka, delta=True) as spark:
        done = update_table(
            spark, found, place, step=step, rule=Rule(nfc=nfc, drop_nulls=drop_nulls), notify=report
        )
    if json:
        print_json({"steps": done.steps, "records": done.records, **_document(done.table)})
    elif not done.steps:
        typer.echo(f"{label(place)}: nothing new, {_standing(done.table)}", err=True)


@app.command("compact")
def compact(
    place: _Place,
    retain: Annotated[
        int,
        typer.Option(
            min=0,
            max=876_000,
            metavar="HOURS",
            help="Files that were replaced longer ago than this are removed; earlier versions of "
            "the table, and readers that take longer, fail from then on.",
        ),
    ] = _RETAIN_HOURS,
    memory: Memory = "2g",
    json: Json = False,
) -> None:
    """Make few files of many, laid out by valid time (OPTIMIZE, VACUUM); no answer changes.

    Readers may go on meanwhile.

    Example: `lmerge table compact flights.table`
    """
    from lmerge_service.spark.table.compact import compact as compacted
    from lmerge_service.spark.table.delta import existing

    existing(place)  # before a JVM is started for it
    with session(f"compacting {label(place)}", memory, kafka=False, delta=True) as spark:
        done = compacted(spark, place, retain=retain)
    if json:
        print_json({"rewritten": done.rewritten, "made": done.made, "removed": done.removed})
    else:
        typer.echo(
            f"{label(place)}: {done.rewritten:,} files made into {done.made:,}, "
            f"{done.removed:,} old ones removed",
            err=True,
        )


@app.command("at")
def at(
    place: _Place,
    valid: Annotated[
        int | None,
        typer.Option(
            min=START,
            max=INFINITY,
            metavar="T",
            help="What was true at this time, in the stream's unit.",
            show_default="at any",
        ),
    ] = None,
    known: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="As it was known then: milliseconds since the epoch, or 2013-01-31T12:00:00Z.",
            show_default="now",
        ),
    ] = None,
    known_offset: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSETS",
            help="As it was known at this offset, or at those: 120, or 0:120,1:97 by partition.",
        ),
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show so many events at the most.")
    ] = 20,
    json: Json = False,
) -> None:
    """Ask the table: what was true at T, and what did we know at TIME?

    With --json all events are printed.

    Example: `lmerge table at flights.table --valid 1357056000000`
    """
    from lmerge_service.spark.table.delta import existing
    from lmerge_service.spark.table.read import answer

    if known is not None and known_offset is not None:
        raise ConfigurationError("give --known or --known-offset, not both")
    asked: Known = None
    if known is not None:
        asked = _moment(known)
    elif known_offset is not None:
        asked = _offsets(known_offset, existing(place).reached)
    table, batches = answer(place, valid, asked)
    events = (row for batch in batches for row in batch.to_pylist())
    final = valid is not None and asked is None and valid < table.stable
    if json:
        stable = finite(table.stable)
        documents = [_event(row) for row in events]
        print_json({"valid": valid, "final": final, "stable": stable, "events": documents})
        return
    count = itertools.count()
    counted = (row for row, _ in zip(events, count, strict=False))
    shown = nsmallest(most, counted, key=lambda row: (row["vs"], row["payload"], row["ve"]))
    for row in shown:
        typer.echo(f"[{row['vs']}, {point(row['ve'])}) {shortened(row['payload'])}")
    found = next(count)
    typer.echo(_summary(found, found - len(shown), table, valid, final, asked), err=True)


@app.command("show")
def show(place: _Place, json: Json = False) -> None:
    """Show how far a table has come, and what it consists of.

    Example: `lmerge table show flights.table`
    """
    from lmerge_service.spark.table.delta import existing

    table = existing(place)
    if json:
        print_json(_document(table))
        return
    typer.echo(f"{label(place)}: a table of {table.source}, {_standing(table)}")
    for number, reached in sorted(table.reached.items()):
        typer.echo(
            f"  partition {number}: read to offset {reached.next}, "
            f"stable at {point(reached.stable)}"
        )
    for state, size in _sizes(table).items():
        typer.echo(
            f"  {state}: {size.versions:,} versions in {size.files:,} files, {size.bytes:,} bytes"
        )


def _moment(text: str) -> int:
    """Milliseconds since the epoch."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--known takes milliseconds or a date and time as 2013-01-31T12:00:00Z, not {text!r}"
        ) from None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _offsets(text: str, partitions: Mapping[int, Any]) -> dict[int, int]:
    """An offset for each partition that is named; of one number, for all."""
    if re.fullmatch(r"\d{1,18}", text):
        return dict.fromkeys(partitions, int(text))
    if not re.fullmatch(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*", text):
        raise ConfigurationError(
            f"--known-offset takes an offset, or one by partition as 0:120,1:97, not {text!r}"
        )
    found = {int(at): int(offset) for at, offset in (each.split(":") for each in text.split(","))}
    if missing := sorted(set(found) - set(partitions)):
        there = ", ".join(map(str, sorted(partitions))) or "none"
        raise ConfigurationError(
            f"--known-offset: there is no partition {missing[0]} (those of the table: {there})"
        )
    return found


def _event(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "payload": msgspec.Raw(row["payload"].encode()),
        "vs": row["vs"],
        "ve": finite(row["ve"]),
        "partition": row["partition"],
        "known_from": row["known_from"],
        "known_to": finite(row["known_to"]),
    }


def _summary(
    count: int, more: int, table: "Snapshot", valid: int | None, final: bool, asked: object
) -> str:
    summary = f"{count:,} events"
    if more:
        summary += f", {more:,} of them not shown (--most shows more)"
    if valid is not None and asked is None:
        summary += "; final" if final else f"; may change, stable at {point(table.stable)}"
    begun = (each.begun_time for each in table.progress if each.begun_offset >= 0)
    first = min(begun, default=START)
    if isinstance(asked, int) and asked < first:
        began = datetime.fromtimestamp(first / 1000, UTC).isoformat(timespec="seconds")
        summary += f"; nothing was known yet: the first record is of {began}"
    return summary


def _standing(table: "Snapshot") -> str:
    read = sum(each.next for each in table.reached.values())
    rows = sum(each.versions for each in _sizes(table).values())
    return f"{rows:,} versions, read to offset {read:,} in all, stable at {point(table.stable)}"


def _document(table: "Snapshot") -> dict[str, Any]:
    sizes = {state: msgspec.structs.asdict(size) for state, size in _sizes(table).items()}
    return {
        "source": table.source,
        "version": table.version,
        "stable": finite(table.stable),
        "ended": table.stable == INFINITY,
        "incarnation": max(0, table.incarnation),
        "partitions": {
            f"{number}": {
                "next_offset": each.next,
                "stable": finite(each.stable),
                "time": None if each.time == START else each.time,
            }
            for number, each in sorted(table.reached.items())
        },
        **sizes,
    }


def _sizes(table: "Snapshot") -> dict[str, "Size"]:
    from lmerge_service.spark.table.versions import HISTORY, LIVE

    return {state: table.size(state) for state in (HISTORY, LIVE)}
