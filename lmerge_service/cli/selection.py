"""`lmerge query readings` and `select`: one query by two plans of opposite costs."""

import re
from typing import TYPE_CHECKING

import typer

from lmerge_service.cli.options import Json, KafkaOptions, Seed, argument, check_topic, option
from lmerge_service.cli.replicas import conclude, stop_on_sigterm
from lmerge_service.cli.streams import watched
from lmerge_service.cli.words import fields_of, finite, point, report
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.demo.selection import Selection

__all__ = ("readings", "select")


def readings(
    topic: str = argument("TOPIC", "Must be new."),
    count: int = option("N", "So many.", min=1, default=200_000),
    batch: str = option(
        "FROM-UNTIL", "How many have low x, then high x, then low again.", default="10000-30000"
    ),
    seed: Seed = 1,
    *,
    kafka: KafkaOptions,
) -> None:
    """Publish readings for `lmerge query select`: all there are, in one transaction.

    Example: `lmerge query readings forward.readings --count 20000 --batch 1000-3000`
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
    to: str = option("TOPIC", "Where to write; made if missing."),
    plan: int = option(
        "K",
        "By which plan; `lmerge query explain lmerge_service.demo.whole_readings:whole`.",
        min=1,
    ),
    readings: str = option("TOPIC", "What `lmerge query readings` made."),
    feedback: str | None = option(
        "TOPIC", "A merge's output: leave out what is final there.", default=None
    ),
    name: str | None = option("NAME", "What the merge calls this replica.", default=None),
    cheap: float = option("MS", "What a cheap reading takes.", min=0, max=1000, default=0.1),
    expensive: float = option(
        "MS", "What an expensive one takes.", "--dear", min=0, max=1000, default=1.5
    ),
    as_json: Json = False,
    *,
    kafka: KafkaOptions,
) -> None:
    """Keep the readings that came whole, by one of several plans that mean the same.

    Ends with the readings, or on SIGTERM. A restart begins again, as the next incarnation.

    Example: `lmerge query select --plan 1 --readings forward.readings --to forward.udf0`
    """
    import asyncio

    from lmerge_service.demo.selection import SelectionReplica
    from lmerge_service.demo.selection import select as run
    from lmerge_service.demo.whole_readings import Costs, whole
    from lmerge_service.queries.plan_numbering import numbered_plans

    for topic in (readings, to, *([feedback] if feedback else [])):
        check_topic(topic)
    if (name is None) != (feedback is None):
        raise ConfigurationError("--name is whose feedback is used: give --feedback and --name")
    plans = numbered_plans(whole)
    if plan > len(plans):
        raise ConfigurationError(f"there is no plan {plan}: there are {len(plans)}")
    replica = SelectionReplica(
        plan=plans[plan - 1],
        connection=kafka.connection(),
        readings=readings,
        to=to,
        feedback=feedback,
        name=name or "",
        costs=Costs(cheap / 1000, expensive / 1000),
    )

    def begun(incarnation: int) -> None:
        uses = f", uses feedback of {feedback}" if feedback else ""
        line = f"plan {plan} from {readings} to {to}, incarnation {incarnation}{uses}"
        document = {"plan": plan, "to": to, "incarnation": incarnation}
        report({"replica": document}, line, as_json=as_json, err=True)

    with stop_on_sigterm() as stopped:
        running = run(
            replica,
            begun=begun,
            report=lambda each: _report(each, as_json=as_json),
            stopped=stopped,
        )
        conclude(to, asyncio.run(running).ended, as_json=as_json)


def _report(selection: "Selection", *, as_json: bool) -> None:
    document = {
        **fields_of(selection, "cheap", "skipped", "kept", "point"),
        "dear": selection.expensive,
        "stable": finite(selection.at),
    }
    line = (
        f"{selection.cheap:,} cheap, {selection.expensive:,} expensive, "
        f"{selection.skipped:,} left out; "
        f"stable at {point(selection.at)}, feedback at {point(selection.point)}"
    )
    report({"readings": document}, line, as_json=as_json, err=True)
