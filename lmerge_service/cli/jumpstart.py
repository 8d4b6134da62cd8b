"""`lmerge jumpstart`: a replica that begins with a checkpoint, attached from its time on.

What happens when it is interrupted: the beginning is in the topic whole or not at all, since it is
one transaction; only then is the replica attached.
"""

import json
from typing import Any

import typer

from lmerge_service.cli.checkpoints import checkpoint_in
from lmerge_service.cli.control import More, Name, other_fields
from lmerge_service.cli.options import (
    EqualityOptions,
    Json,
    KafkaOptions,
    Partitions,
    argument,
    check_topic,
    flag,
    option,
)
from lmerge_service.cli.streams import label
from lmerge_service.cli.words import print_json, printable
from lmerge_service.cli.workers import WorkerClient
from lmerge_service.errors import ConfigurationError, DecisionRefusedError

__all__ = ("jumpstart",)


def jumpstart(
    name: Name,
    topic: str = argument("TOPIC", "Its own, empty; made when it is missing."),
    source: str = option(
        "FILE",
        "A recorded stream (JSON lines, or Parquet), a table, or an exported state.",
        "--from",
        show_default=False,
    ),
    joining_at: int | None = option(
        "TIME", "Refuse a file that is correct from another time on.", default=None
    ),
    partitions: Partitions = 1,
    attach: bool = flag(
        "Whether a worker is asked to attach it.", "--attach/--no-attach", default=True
    ),
    more: More = None,
    as_json: Json = False,
    *,
    kafka: KafkaOptions,
    equality: EqualityOptions,
    worker: WorkerClient,
) -> None:
    """Begin a replica with what a checkpoint holds, and attach it from its time on.

    The query then goes on in the same topic from there. FILE is what `lmerge read`, `table update`
    or `state export` has written, or elements in Parquet. Nothing is written or attached if it is
    damaged.

    Example: `lmerge jumpstart d flights.d --from flights.ndjson`
    """
    import asyncio

    from lmerge_service.kafka.publish import seed

    check_topic(topic)
    fields = other_fields(more)
    found = checkpoint_in(source, nfc=equality.nfc, drop_nulls=equality.drop_nulls)
    if joining_at is not None and joining_at != found.correct_from:
        raise ConfigurationError(
            f"{label(source)} is correct from {found.correct_from} on, not {joining_at}: it is "
            "another one, or cut short"
        )
    if attach:
        _check_free(worker, name, topic)
    asyncio.run(seed(kafka.connection(), topic, found.beginning(), partitions=partitions))
    count = len(found.events)
    if not as_json:
        goes_on = f", to go on from {found.stable}" if found.stable < found.correct_from else ""
        typer.echo(
            f"{topic} begins with {count:,} events, correct from {found.correct_from} on{goes_on}"
        )
    document: dict[str, Any] = {
        "topic": topic,
        "events": count,
        "stable": found.stable,
        "joining_at": found.correct_from,
        "attached": None,
    }
    if attach:
        document["attached"] = _attach(worker, name, topic, found.correct_from, fields)
    if as_json:
        print_json(document)
    elif attach:
        typer.echo(printable(f"version {document['attached']['version']}: attach {name}"))


def _check_free(worker: WorkerClient, name: str, topic: str) -> None:
    """Refuses what could not be attached, before anything is written."""
    for each in worker.get("/v1/replicas").get("replicas", ()):
        if each.get("state") != "detached" and name == each.get("name"):
            raise DecisionRefusedError(f"replica {name} is {each['state']}")
        if each.get("state") != "detached" and topic == each.get("topic"):
            raise DecisionRefusedError(f"{topic} is the topic of replica {each['name']}")


def _attach(
    worker: WorkerClient, name: str, topic: str, joining_at: int, fields: dict[str, Any]
) -> dict[str, Any]:
    body = {**fields, "topic": topic, "joining_at": joining_at}
    try:
        return worker.decide(f"/v1/replicas/{name}/attach", body)
    except DecisionRefusedError as error:
        again = f"lmerge attach {name} {topic} --joining-at {joining_at}"
        more = f" --more '{json.dumps(fields)}'" if fields else ""
        raise DecisionRefusedError(
            f"{error}; {topic} has its beginning: `{again}{more}` attaches it"
        ) from None
