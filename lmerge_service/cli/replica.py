"""`lmerge replica`: continuous queries over the flights, each by several plans, as Spark jobs."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lmerge_service.cli.jobs import Master, Memory, spark_for
from lmerge_service.cli.options import (
    App,
    Json,
    KafkaOptions,
    Partitions,
    Seed,
    argument,
    check_topic,
    flag,
    option,
)
from lmerge_service.cli.present import months_of
from lmerge_service.cli.streams import watched
from lmerge_service.cli.words import finite, point, report
from lmerge_service.elements import START
from lmerge_service.errors import ConfigurationError
from lmerge_service.signals import orderly_end

if TYPE_CHECKING:
    from lmerge_service.replicas.beginnings import Beginning
    from lmerge_service.spark.queries.identity import Identity, QueryReplica
    from lmerge_service.spark.queries.plain import Plain
    from lmerge_service.spark.queries.plans import Batch
    from lmerge_service.workloads.facts import Fact

__all__ = ("Feedback", "To", "app", "conclude", "stop_on_sigterm")

To: TypeAlias = Annotated[str, option("TOPIC", "Where to write; made if missing.")]
Feedback: TypeAlias = Annotated[
    str | None,
    option("TOPIC", "A merge's output: leave out what is final there."),
]

app = App(
    no_args_is_help=True,
    help="Continuous queries over flights, each by several plans, as Spark jobs: feed, list, run. "
    "And a selection by two plans that use feedback: readings, select.",
)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show the queries and the plans that each can be run by."""
    from lmerge_service.spark.queries.catalogue import QUERIES

    document = {
        query.name: {
            "summary": query.summary,
            "key": query.key,
            "plans": {name: plan.summary for name, plan in query.plans.items()},
        }
        for query in QUERIES.values()
    }
    lines = []
    for query in QUERIES.values():
        lines.append(f"{query.name}: {query.summary}")
        lines += [f"  {name:<13} {plan.summary}" for name, plan in query.plans.items()]
    report(document, *lines, as_json=as_json)


@app.command()
def feed(
    topic: str = argument("TOPIC", "Must be new."),
    flights: str = option(
        "MONTHS", "The flights that left New York in 2013: 1 or 1,2 or year.", default="1"
    ),
    partitions: Partitions = 1,
    rate: float | None = option(
        "N", "Facts a second.", min=0.1, show_default="as fast as it goes", default=None
    ),
    late: float = option("FRACTION", "Facts that come late.", min=0, max=1, default=0.0),
    late_by: int = option("SECONDS", "By how much at the most.", min=1, default=600),
    seed: Seed = 1,
    open_: bool = flag("Do not end the topic: more may follow.", "--open"),
    *,
    kafka: KafkaOptions,
) -> None:
    """Publish what becomes known of flights and weather, in the order in which it does.

    It is what the queries are about: schedules, cancellations, departures, arrivals, measurements.

    Example: `lmerge replica feed flights.facts --flights 1 --rate 5000`
    """
    import asyncio

    from lmerge_service.kafka.feed import feed as send
    from lmerge_service.workloads.facts import disordered, facts

    check_topic(topic)
    months = months_of(flights)

    def disordered_facts() -> "Iterator[Fact]":  # once the topic is found to be new
        found = facts(months)
        yield from disordered(found, late, late_by * 1000, seed) if late else found

    stream = watched(topic, disordered_facts())
    sending = send(
        kafka.connection(), topic, stream, rate=rate, partitions=partitions, ended=not open_
    )
    sent = asyncio.run(sending)
    typer.echo(f"{sent:,} facts are in {topic}", err=True)


@app.command()
def run(
    to: To,
    query: str = argument("QUERY", "See `lmerge replica list`."),
    plan: str = option("PLAN", "By which of the query's plans."),
    facts: str = option("TOPIC", "What `lmerge replica feed` made."),
    partitions: Partitions = 1,
    checkpoint: Path | None = option(
        "FOLDER",
        "What a restart goes on from; without it the replica starts over. By default "
        "replicas/TOPIC in $LMERGE_HOME, else in ~/.local/state/lmerge.",
        default=None,
    ),
    lateness: int = option(
        "SECONDS", "How late a fact may be and count. Equal for all plans.", min=0, default=900
    ),
    since: int | None = option(
        "TIME",
        "Start over with the facts from this time on (ms), in a higher incarnation.",
        show_default="the first fact",
        default=None,
    ),
    rejoin: bool = flag(
        "Start over, when state is lost, with the facts of now: merged again once its "
        "windows have filled.",
        "--rejoin",
    ),
    resume: bool = flag(
        "When state is lost, continue from what --to holds: its own output, or a "
        "jumpstart's beginning.",
        "--resume",
    ),
    feedback: Feedback = None,
    name: str | None = option(
        "NAME", "What the merge calls this replica. [default: --to]", default=None
    ),
    batch: int | None = option(
        "N", "Facts per micro-batch. [default: the plan's]", min=1, default=None
    ),
    plain: bool = flag(
        "Without Spark and without a checkpoint: each start begins again, or resumes.", "--plain"
    ),
    master: Master = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
    *,
    kafka: KafkaOptions,
) -> None:
    """Run a query by one of its plans, from a topic of facts to a topic of elements.

    Ends with the facts, or on SIGTERM. Restart it whenever you like, kill -9 included: it goes on
    from its checkpoint. If that is lost, it starts over and reports it.

    Example: `lmerge replica run delays --plan speculative --facts flights.facts --to delays.a`
    """
    from lmerge_service.local.broker import default_directory
    from lmerge_service.spark.queries.catalogue import plan_of, query_of

    chosen = query_of(query)
    by = plan_of(chosen, plan)
    for topic in (facts, to, *([feedback] if feedback else [])):
        check_topic(topic)
    if rejoin and since is not None:
        raise ConfigurationError("--since and --rejoin are two ways to start over: give one")
    if resume and (rejoin or since is not None):
        raise ConfigurationError("--resume continues, --since and --rejoin start over: give one")
    shared: dict[str, Any] = {
        "query": chosen,
        "facts": facts,
        "to": to,
        "lateness": lateness * 1000,
        "partitions": partitions,
        "since": since,
        "rejoin": rejoin,
        "resume": resume,
        "batch": batch,
    }
    if plain:
        from lmerge_service.spark.queries.plain import Plain

        for given, value in (("--checkpoint", checkpoint), ("--feedback", feedback)):
            if value is not None:
                raise ConfigurationError(f"{given} needs Spark, and --plain is without")
        _run_plain(Plain(plan=by, connection=kafka.connection(), **shared), as_json=as_json)
        return
    from lmerge_service.spark.queries.identity import QueryReplica

    folder = checkpoint or default_directory("replicas") / to
    replica = QueryReplica(
        plan=plan, kafka=kafka.place(), checkpoint=folder, feedback=feedback, name=name, **shared
    )
    _run(replica, {"master": master, "driver_memory": driver_memory}, as_json=as_json)


def _run(replica: "QueryReplica", session: dict[str, Any], *, as_json: bool) -> None:
    import msgspec

    from lmerge_service.spark.queries.running import follow, start

    with spark_for(f"replica {replica.to}", **session) as spark, stop_on_sigterm() as stopped:
        identity, query = start(spark, replica)
        what = f"{identity.query} ({identity.plan}) from {identity.facts} to {identity.to}"
        document = msgspec.to_builtins(identity)
        _introduce(what, identity, document, resumed=identity.resumed, as_json=as_json)
        ended = follow(query, lambda batch: _report(batch, as_json=as_json), stopped)
        conclude(replica.to, ended, as_json=as_json)


def _run_plain(plain: "Plain", *, as_json: bool) -> None:
    import asyncio
    from dataclasses import asdict, replace

    from lmerge_service.spark.queries.plain import run_plain

    def begun(begins: "Beginning") -> None:
        what = f"{plain.query.name} from {plain.facts} to {plain.to}"
        document = {"to": plain.to, **asdict(begins)}
        _introduce(what, begins, document, resumed=plain.resume, as_json=as_json)

    with stop_on_sigterm() as stopped:
        running = run_plain(
            replace(plain, stopped=stopped), begun, lambda batch: _report(batch, as_json=as_json)
        )
        conclude(plain.to, asyncio.run(running), as_json=as_json)


def _introduce(
    what: str,
    begun: "Identity | Beginning",
    document: dict[str, Any],
    *,
    resumed: bool,
    as_json: bool,
) -> None:
    text = f"{what}, incarnation {begun.incarnation}"
    if begun.joining_at != START:
        text += f", correct from {begun.joining_at} on"
    if resumed and begun.since is not None:
        text += f", resumes with the facts from {point(begun.since)} on"
    document |= {"joining_at": finite(begun.joining_at)}
    report({"replica": document}, text, as_json=as_json, err=True)


def conclude(to: str, ended: bool, *, as_json: bool) -> None:
    """Reports how a replica's run ended: with its input, or by a signal."""
    line = f"{to}: {'ended' if ended else 'stopped'}"
    report({"ended": ended}, line, as_json=as_json, err=True)


@contextmanager
def stop_on_sigterm() -> Iterator[Any]:
    """A function: has SIGTERM come? From then on another one does not interrupt what is left."""
    signals: list[int] = []
    with orderly_end(signals.append, [signal.SIGTERM]):
        yield lambda: bool(signals)


def _report(batch: "Batch", *, as_json: bool) -> None:
    from dataclasses import asdict

    document = asdict(batch) | {
        "mark": finite(batch.watermark),
        "point": finite(batch.point),
        "ended": batch.ended,
    }
    skipped = f", {batch.skipped:,} left out" if batch.skipped else ""
    refused = f", {batch.refused:,} are no facts" if batch.refused else ""
    line = (
        f"batch {batch.number}: {batch.facts:,} facts ({batch.late:,} late{refused}), "
        f"{batch.records:,} records{skipped}; all is known up to {point(batch.watermark)}; "
        f"{batch.seconds:.1f} s"
    )
    report({"batch": document}, line, as_json=as_json, err=True)
