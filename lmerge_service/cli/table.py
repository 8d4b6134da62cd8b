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
    from lmerge_service.spark.table.manifests import Manifest
    from lmerge_service.spark.table.read import Known

__all__ = ("app",)

app = typer.Typer(
    no_args_is_help=True, help="A stream's events as a table: what was true when, what was known."
)

_STEP: Final = 2_000_000
_RETAIN_SECONDS: Final = 3600.0

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
    from lmerge_service.spark.table.manifests import Table
    from lmerge_service.spark.table.update import update_table

    Table(place).check_place()  # mistakes are reported before Spark starts
    found, kafka = stored_stream(source, bootstrap, kafka_config)

    def report(manifest: "Manifest") -> None:
        if not json:
            typer.echo(f"{label(place)}: {_standing(manifest)}", err=True)

    with session(f"updating {label(place)}", memory, kafka=kafka) as spark:
        done = update_table(
            spark, found, place, step=step, rule=Rule(nfc=nfc, drop_nulls=drop_nulls), told=report
        )
    if json:
        print_json({"steps": done.steps, "records": done.records, **_document(done.manifest)})
    elif not done.steps:
        typer.echo(f"{label(place)}: nothing new, {_standing(done.manifest)}", err=True)


@app.command("compact")
def compact(
    place: _Place,
    retain: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="What was replaced so long ago is removed: no reader is as slow, no step of an "
            "update takes as long.",
        ),
    ] = _RETAIN_SECONDS,
    memory: Memory = "2g",
    json: Json = False,
) -> None:
    """Make few files of many, laid out by valid time; no answer changes.

    Readers, and an update, may go on meanwhile.

    Example: `lmerge table compact flights.table`
    """
    from lmerge_service.spark.table.compact import compact as compacted
    from lmerge_service.spark.table.manifests import Table

    Table(place).existing()  # before a JVM is started for it
    with session(f"compacting {label(place)}", memory, kafka=False) as spark:
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
    from lmerge_service.spark.table.manifests import Table
    from lmerge_service.spark.table.read import answer

    if known is not None and known_offset is not None:
        raise ConfigurationError("give --known or --known-offset, not both")
    reached = Table(place).existing().reached
    asked: Known = None
    if known is not None:
        asked = _moment(known)
    elif known_offset is not None:
        asked = _offsets(known_offset, reached)
    manifest, batches = answer(place, valid, asked)
    events = (row for batch in batches for row in batch.to_pylist())
    final = valid is not None and asked is None and valid < manifest.stable
    if json:
        stable = finite(manifest.stable)
        documents = [_event(row) for row in events]
        print_json({"valid": valid, "final": final, "stable": stable, "events": documents})
        return
    count = itertools.count()
    counted = (row for row, _ in zip(events, count, strict=False))
    shown = nsmallest(most, counted, key=lambda row: (row["vs"], row["payload"], row["ve"]))
    for row in shown:
        typer.echo(f"[{row['vs']}, {point(row['ve'])}) {shortened(row['payload'])}")
    found = next(count)
    typer.echo(_summary(found, found - len(shown), manifest, valid, final, asked), err=True)


@app.command("show")
def show(place: _Place, json: Json = False) -> None:
    """Show how far a table has come, and what it consists of.

    Example: `lmerge table show flights.table`
    """
    from lmerge_service.spark.table.manifests import Table

    manifest = Table(place).existing()
    if json:
        print_json(_document(manifest))
        return
    typer.echo(f"{label(place)}: a table of {manifest.source}, {_standing(manifest)}")
    for number, reached in sorted(manifest.reached.items()):
        typer.echo(
            f"  partition {number}: read to offset {reached.next}, "
            f"stable at {point(reached.stable)}"
        )
    for name, files in (("history", manifest.history), ("live", manifest.live)):
        size = sum(each.bytes for each in files)
        rows = sum(each.rows for each in files)
        typer.echo(f"  {name}: {rows:,} versions in {len(files):,} files, {size:,} bytes")


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
    count: int, more: int, manifest: "Manifest", valid: int | None, final: bool, asked: object
) -> str:
    summary = f"{count:,} events"
    if more:
        summary += f", {more:,} of them not shown (--most shows more)"
    if valid is not None and asked is None:
        summary += "; final" if final else f"; may change, stable at {point(manifest.stable)}"
    first = min((each.min_time for each in manifest.files), default=START)
    if isinstance(asked, int) and asked < first:
        began = datetime.fromtimestamp(first / 1000, UTC).isoformat(timespec="seconds")
        summary += f"; nothing was known yet: the first record is of {began}"
    return summary


def _standing(manifest: "Manifest") -> str:
    read = sum(each.next for each in manifest.reached.values())
    rows = sum(each.rows for each in manifest.files)
    return f"{rows:,} versions, read to offset {read:,} in all, stable at {point(manifest.stable)}"


def _document(manifest: "Manifest") -> dict[str, Any]:
    return {
        "source": manifest.source,
        "stable": finite(manifest.stable),
        "ended": manifest.stable == INFINITY,
        "incarnation": max(0, manifest.incarnation),
        "partitions": {
            f"{number}": {
                "next_offset": each.next,
                "stable": finite(each.stable),
                "time": None if each.time == START else each.time,
            }
            for number, each in sorted(manifest.reached.items())
        },
        "history": _size(manifest.history),
        "live": _size(manifest.live),
    }


def _size(files: Any) -> dict[str, int]:
    return {
        "files": len(files),
        "versions": sum(each.rows for each in files),
        "bytes": sum(each.bytes for each in files),
    }
