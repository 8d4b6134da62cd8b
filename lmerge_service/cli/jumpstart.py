"""`lmerge jumpstart`: a replica that begins with a checkpoint, attached from its time on.

What happens when it is interrupted: the beginning is in the topic whole or not at all, since it is
one transaction; only then is the replica attached.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmerge_service.cli.asking import asking
from lmerge_service.cli.control import Name, other_fields
from lmerge_service.cli.options import (
    Bootstrap,
    Json,
    KafkaConfig,
    Nfc,
    check_topic,
    connection,
    silence_kafka_client,
)
from lmerge_service.cli.streams import label, reading
from lmerge_service.cli.words import printable, say_json
from lmerge_service.errors import ConfigurationError, DecisionRefusedError

if TYPE_CHECKING:
    from lmerge_service.cli.workers import Worker

__all__ = ("jumpstart",)


@asking
def jumpstart(
    worker: "Worker",
    name: Name,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Its own, empty; made when it is missing.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="FILE", help="A recorded stream, as `lmerge read` writes it.",
            show_default=False,
        ),
    ],
    joining_at: Annotated[
        int | None,
        typer.Option(metavar="TIME", help="Refuse a file whose last stable is another one."),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Of a topic that is made here.")
    ] = 1,
    attach: Annotated[
        bool,
        typer.Option("--attach/--no-attach", help="Whether a worker is asked to attach it."),
    ] = True,
    more: Annotated[
        str | None, typer.Option(metavar="JSON", help="Other fields of a topology's replica.")
    ] = None,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    nfc: Nfc = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Begin a replica with what a recorded stream holds, and attach it from its last stable on.

    The query then goes on in the same topic from there. Nothing is written or attached if the
    file is damaged.

    Example: `lmerge jumpstart d flights.d --from flights.ndjson`
    """
    import asyncio

    from lmerge_service.kafka.publish import seed
    from lmerge_service.offline.checkpoint import beginning, checkpoint

    check_topic(topic)
    fields = other_fields(more)
    with reading([source], nfc=nfc) as (stream,):
        tdb = checkpoint(label(source), stream)
    if joining_at is not None and joining_at != tdb.stable:
        raise ConfigurationError(
            f"{label(source)} ends with stable({tdb.stable}), not {joining_at}: it is another one, "
            "or cut short"
        )
    if attach:
        _check_free(worker, name, topic)
    silence_kafka_client()
    elements = list(beginning(tdb))
    count = len(elements) - 1
    asyncio.run(seed(connection(bootstrap, kafka_config), topic, elements, partitions=partitions))
    said: dict[str, Any] = {
        "topic": topic, "events": count, "joining_at": tdb.stable, "attached": None,
    }  # fmt: skip
    if not as_json:
        typer.echo(f"{topic} begins with {count:,} events, correct from {tdb.stable} on")
    if attach:
        said["attached"] = _attach(worker, name, topic, tdb.stable, fields)
    if as_json:
        say_json(said)
    elif attach:
        typer.echo(printable(f"version {said['attached']['version']}: attach {name}"))


def _check_free(worker: "Worker", name: str, topic: str) -> None:
    """Refuses what could not be attached, before anything is written."""
    for each in worker.get("/v1/replicas").get("replicas", ()):
        if each.get("state") != "detached" and name == each.get("name"):
            raise DecisionRefusedError(f"replica {name} is {each['state']}")
        if each.get("state") != "detached" and topic == each.get("topic"):
            raise DecisionRefusedError(f"{topic} is the topic of replica {each['name']}")


def _attach(
    worker: "Worker", name: str, topic: str, joining_at: int, fields: dict[str, Any]
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
