"""`lmerge replica readings` and `select`: one query by two plans of opposite costs."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from lmerge_service.cli.options import Json, KafkaOptions, Seed, check_topic
from lmerge_service.cli.replica import Feedback, To, conclude, stop_on_sigterm
from lmerge_service.cli.streams import watched
from lmerge_service.cli.words import finite, point, print_json
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.demo.selection import Selection

__all__ = ("readings", "select")


def readings(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Must be new.")],
    count: Annotated[int, typer.Option(min=1, metavar="N", help="So many.")] = 200_000,
    batch: Annotated[
        str,
        typer.Option(
            metavar="FROM-UNTIL", help="How many have low x, then high x, then low again."
        ),
    ] = "10000-30000",
    seed: Seed = 1,
    *,
    kafka: KafkaOptions,
) -> None:
    """Publish readings for `lmerge replica select`: all there are, in one transaction.

    Example: `lmerge replica readings forward.readings --count 20000 --batch 1000-3000`
    """
    import asyncio

    from lmerge_service.kafka.publish import seed as send
    from lmerge_service.workloads.readings import elements_of
    from lmerge_service.workloads.readings import readings as drawn

    check_topic(topic)
    elements = elements_of(drawn(count, batch=_sizes(batch), seed=seed))
    asyncio.run(send(kafka.connection(), topic, watched(topic, elements)))
    typer.echo(f"{count:,} readings are in {topic}", err=True)


def _sizes(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigurationError(
            f"--batch takes the least size and the largest, as in 10-30: {text}"
        )
    return int(found[1]), int(found[2])


def select(
    plan: Annotated[
        str, typer.Option(metavar="PLAN", help="udf0: expensive for small x; udf1: for large x.")
    ],
    readings: Annotated[
        str, typer.Option(metavar="TOPIC", help="What `lmerge replica readings` made.")
    ],
    to: To,
    feedback: Feedback = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the merge calls this replica. [default: PLAN]"),
    ] = None,
    cheap: Annotated[
        float, typer.Option(min=0, max=1000, metavar="MS", help="What a cheap reading takes.")
    ] = 0.1,
    expensive: Annotated[
        float,
        typer.Option("--dear", min=0, max=1000, metavar="MS", help="What an expensive one takes."),
    ] = 1.5,
    as_json: Json = False,
    *,
    kafka: KafkaOptions,
) -> None:
    """Keep the readings that came whole, by one of two plans that mean the same.

    Ends with the readings, or on SIGTERM. A restart begins again, as the next incarnation.

    Example: `lmerge replica select --plan udf0 --readings forward.readings --to forward.udf0`
    """
    import asyncio

    from lmerge_service.demo.selection import Costs, Plan, Replica
    from lmerge_service.demo.selection import select as run

    if plan not in [*Plan]:
        raise ConfigurationError(f"no plan {plan!r}: choose one of {', '.join(Plan)}")
    for topic in (readings, to, *([feedback] if feedback else [])):
        check_topic(topic)
    if name is not None and feedback is None:
        raise ConfigurationError("--name is whose feedback is used: give --feedback")
    replica = Replica(
        plan=Plan(plan),
        connection=kafka.connection(),
        readings=readings,
        to=to,
        feedback=feedback,
        name=name or plan,
        costs=Costs(cheap / 1000, expensive / 1000),
    )

    def begun(incarnation: int) -> None:
        if as_json:
            print_json({"replica": {"plan": plan, "to": to, "incarnation": incarnation}})
        else:
            uses = f", uses feedback of {feedback}" if feedback else ""
            typer.echo(f"{plan} from {readings} to {to}, incarnation {incarnation}{uses}", err=True)

    with stop_on_sigterm() as stopped:
        running = run(
            replica,
            begun=begun,
            report=lambda each: _report(each, as_json=as_json),
            stopped=stopped,
        )
        conclude(to, asyncio.run(running).ended, as_json=as_json)


def _report(selection: "Selection", *, as_json: bool) -> None:
    counts: dict[str, int | None] = {
        "cheap": selection.cheap,
        "dear": selection.expensive,
        "skipped": selection.skipped,
        "kept": selection.kept,
    }
    if as_json:
        ends = {"stable": finite(selection.at), "point": finite(selection.point)}
        print_json({"readings": counts | ends})
        return
    typer.echo(
        f"{selection.cheap:,} cheap, {selection.expensive:,} expensive, "
        f"{selection.skipped:,} left out; "
        f"stable at {point(selection.at)}, feedback at {point(selection.point)}",
        err=True,
    )
