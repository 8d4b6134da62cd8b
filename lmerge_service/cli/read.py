"""`lmerge read`: topics that mean the same, as one stream of elements on standard output."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from lmerge_service.cli.options import (
    TOPIC,
    EqualityOptions,
    Json,
    KafkaOptions,
    argument,
    check_topic,
    flag,
    option,
)
from lmerge_service.cli.words import finite, point, print_json, since
from lmerge_service.core import Case
from lmerge_service.elements import START
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.wire import encode
from lmerge_service.signals import cancelled_by_signal

if TYPE_CHECKING:
    from lmerge_service.core import Gap
    from lmerge_service.reader.inlets import StartedOver
    from lmerge_service.reader.read_merged import MergedReader, ReaderStatus

__all__ = ("read",)


def read(
    topics: list[str] = argument("TOPIC", "Merged or replica topics, at least one."),
    case: Case = option("CASE", "What the topics may do; as for `lmerge merge`.", default=Case.R3),
    follow: bool = flag(
        "Go on with what comes, until the stream ends or SIGINT or SIGTERM.", "--follow", "-f"
    ),
    start: Literal["beginning", "snapshot"] = option(
        "WHERE",
        "beginning: with the first record; snapshot: with what the merges that publish the topics "
        "hold by their latest snapshots, correct from a time that is reported at the end.",
        "--from",
        default="beginning",
    ),
    token: Path | None = option(
        "FILE",
        "Continue where the reading that wrote FILE ended, if it exists, and replace it "
        "at the end: what is written before and after is one stream.",
        default=None,
    ),
    accept_gaps: bool = flag(
        "Go on where a topic has started over, and what is before it is correct is in no other: "
        "that is lost.",
        "--accept-gaps",
    ),
    json: Json = False,
    *,
    kafka: KafkaOptions,
    equality: EqualityOptions,
) -> None:
    """Read topics that mean the same as one stream, a JSON element a line on standard output.

    No event is lost, doubled or contradicted, whichever of the topics is ahead, missing or dead.
    Without --follow the reading ends where the topics end now. What was read from where is reported
    on standard error at the end. An output that has lost its beginning is read `--from snapshot`.

    Example: `lmerge read flights.merged.a flights.merged.b --follow`
    """
    import asyncio

    from lmerge_service.reader.read_merged import read_merged

    names = [topic.removeprefix(TOPIC) for topic in topics]
    for name in names:
        check_topic(name)
        if names.count(name) > 1:
            raise ConfigurationError(f"kafka:{name} is named twice: a topic is one of the copies")
    if token is not None and not token.parent.is_dir():
        raise ConfigurationError(f"cannot write {token}: there is no folder {token.parent}")
    saved = token.read_bytes() if token is not None and token.exists() else None
    try:
        reading = read_merged(
            kafka.connection(),
            names,
            case=case,
            start=start,
            token=saved,
            follow=follow,
            nfc=equality.nfc,
            drop_nulls=equality.drop_nulls,
            accept_gaps=accept_gaps,
            on_start_over=lambda each: typer.echo(_started_over(each), err=True),
            on_gap=lambda each: typer.echo(f"warning: {_gap(each)} is lost", err=True),
        )
    except StateError as error:  # of the token: nothing has been read
        raise StateError(f"{token}: {error}") from error
    status = asyncio.run(_read(reading, must_exist=not follow, token=token))
    if json:
        print_json(_document(status), err=True)
        return
    for line in _lines(status):
        typer.echo(line, err=True)


async def _read(reading: "MergedReader", *, must_exist: bool, token: Path | None) -> "ReaderStatus":
    import asyncio

    async with reading as reader:
        opened = reader.status().topics
        missing = [each.topic for each in opened if each.state == "missing"]
        if must_exist and all(each.state == "left out" for each in opened):
            raise ConfigurationError("; ".join(each.why or "" for each in opened))
        if missing and must_exist:
            raise ConfigurationError(
                f"kafka:{missing[0]}: there is no such topic (--follow waits for it)"
            )
        writing = asyncio.create_task(_write(reader))
        with cancelled_by_signal(writing):  # until the token is there, too
            await asyncio.wait({writing})
            failure = None if writing.cancelled() else writing.exception()
            if token is not None and not isinstance(failure, OSError):  # what was taken is written
                _leave(token, reader.token())
        if failure is not None:
            raise failure
        return reader.status()


async def _write(reader: "MergedReader") -> None:
    """Never awaits between taking a batch and having written it, so that it ends behind one."""
    async for batch in reader.batches():
        sys.stdout.buffer.write(b"".join(encode(element) + b"\n" for element in batch))
        sys.stdout.buffer.flush()


def _leave(token: Path, saved: bytes) -> None:
    """The file is always whole: the old one or the new one."""
    partial = token.with_name(f"{token.name}.partial")
    partial.write_bytes(saved)
    partial.replace(token)


def _started_over(each: "StartedOver") -> str:
    was = "nowhere" if each.stable == START else f"to {point(each.stable)}"
    return (
        f"warning: {each.topic} has started over: incarnation {each.incarnation}, correct from "
        f"{since(each.correct_from)}; the one before was read {was}"
    )


def _gap(gap: "Gap") -> str:
    return f"[{point(gap.start)}, {point(gap.end)})"


def _lines(status: "ReaderStatus") -> Iterator[str]:
    for each in status.topics:
        if each.why is not None:
            yield f"warning: {each.why}"
            continue
        stable = "never published" if each.stable is None else f"stable at {point(each.stable)}"
        yield (
            f"{each.topic}: {stable}, first with {each.first:,} events, "
            f"{sum(each.breaches.values()):,} breaches, {each.dead:,} records that are no elements"
        )
    if (gap := status.gap) is not None:
        yield (
            f"warning: the reading waits: no topic has what ends in {_gap(gap)}; --accept-gaps "
            f"goes on without it, from where {gap.input} is correct"
        )
    line = f"merged: stable at {point(status.stable)}, {status.live_events:,} live"
    correct = status.correct_from
    yield line if correct == START else f"{line}, correct from {point(correct)} on"


def _document(status: "ReaderStatus") -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(status) | {
        name: finite(getattr(status, name)) for name in ("stable", "correct_from")
    }
    for gap in filter(None, (document["gap"], *document["lost"])):
        gap |= {name: finite(gap[name]) for name in ("start", "end")}
    for each in document["topics"]:
        for name in ("stable", "correct_from"):
            each[name] = None if each[name] is None else finite(each[name])
    return document
