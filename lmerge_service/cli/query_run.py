"""`lmerge query run`: a query by one of its plans, from topics to a topic, exactly once."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from lmerge_service.cli.options import (
    HttpPort,
    KafkaOptions,
    check_topic,
    flag,
    option,
)
from lmerge_service.cli.planned_query import PlannedQuery
from lmerge_service.cli.run import log_to_stderr
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.config.http import Http

__all__ = ("RESTART", "Feedback", "Rejoin", "ReplicaName", "Since", "check_restart", "run")

RESTART = "Starting over"
_LIMITS = "Limits"

Feedback: TypeAlias = Annotated[
    str | None, option("TOPIC", "A merge's output: leave out what is final there.")
]
ReplicaName: TypeAlias = Annotated[
    str | None,
    option("NAME", "What the merge calls this replica. [default: --to]", show_default=False),
]
Since: TypeAlias = Annotated[
    int | None,
    option(
        "TIME",
        "Begin a new incarnation with the facts from this time on, unless it is the one that goes "
        "on.",
        show_default="the first fact",
        panel=RESTART,
    ),
]
Rejoin: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--rejoin",
        help="Begin a new incarnation with the facts of now, unless the topic is empty.",
        rich_help_panel=RESTART,
    ),
]


def run(
    planned: PlannedQuery,
    feedback: Feedback = None,
    name: ReplicaName = None,
    since: Since = None,
    rejoin: Rejoin = False,
    resume: bool = flag(
        "When the state is lost, go on from what --to holds: its own output, or a jumpstart's "
        "beginning.",
        "--resume",
        panel=RESTART,
    ),
    batch: int = option("N", "Facts at once, at the most.", min=1, default=10_000, panel=_LIMITS),
    skew: int = option(
        "TIME",
        "Do not read on a partition that is so far ahead of others (in the facts' unit).",
        min=1,
        default=3_600_000,
        panel=_LIMITS,
    ),
    snapshot_seconds: float = option(
        "SECONDS", "Between two snapshots of the state.", min=0.1, default=60.0, panel=_LIMITS
    ),
    max_state_bytes: int = option(
        "BYTES",
        "Stop when the state is larger (by what a snapshot of it has).",
        min=1,
        default=1 << 30,
        panel=_LIMITS,
    ),
    replay: bool = flag(
        "Keep of windows over facts nothing but the facts, and compute them anew: less memory for "
        "more work.",
        "--replay",
        panel=_LIMITS,
    ),
    max_record_bytes: int = option(
        "BYTES", "The largest record of an input.", min=64, default=1 << 20, panel=_LIMITS
    ),
    http_port: HttpPort = None,
    as_json: bool = flag("Log as JSON, one object a line.", "--json"),
    *,
    kafka: KafkaOptions,
) -> None:
    """Run a query by one of its plans: from its topics to a topic of elements, exactly once.

    Ends with the facts, or on SIGTERM. Restart it whenever you like, kill -9 included: the same
    command goes on where the last commit ended, and nothing is published twice.

    Example: `lmerge query run flights.py:delays --plan 2 --to delays.b`

    Example: `lmerge query run flights.py --sql 'SELECT carrier FROM departed' --to carriers.a`
    """
    import asyncio

    from lmerge_service.merge.tuning import without_garbage_collector

    with without_garbage_collector():  # what is imported stays
        from lmerge_service.queries.physical import replayed
        from lmerge_service.queries.properties import partition_columns
        from lmerge_service.replicas.request import ReplicaRequest
        from lmerge_service.replicas.serving import run_replica

    check_restart(since=since, rejoin=rejoin, resume=resume)
    query = planned.target.query()
    request = ReplicaRequest(
        name=planned.target.target,
        query=query.plan,
        plan=replayed(planned.physical(query)) if replay else planned.physical(query),
        columns=partition_columns(query.plan),
        number=str(planned.plan),
        connection=kafka.connection(),
        to=planned.to,
        topics=planned.topics(query),
        partitions=planned.partitions,
        since=since,
        rejoin=rejoin,
        resume=resume,
        feedback=feedback,
        replica=name,
        batch=batch,
        skew=skew,
        snapshot_seconds=snapshot_seconds,
        max_state_bytes=max_state_bytes,
        max_record_bytes=max_record_bytes,
        http=_http(http_port),
    )
    for each in (
        request.to,
        *map(request.topic_of, request.sources),
        *([feedback] if feedback else []),
    ):
        check_topic(each)
    log_to_stderr(as_json=as_json)
    asyncio.run(run_replica(request))


def check_restart(*, since: int | None, rejoin: bool, resume: bool) -> None:
    """Checks that the options of a start do not contradict each other.

    Raises:
        ConfigurationError: two of them are given that do.
    """
    if rejoin and since is not None:
        raise ConfigurationError("--since and --rejoin are two ways to start over: give one")
    if resume and (rejoin or since is not None):
        raise ConfigurationError("--resume continues, --since and --rejoin start over: give one")


def _http(port: int | None) -> "Http":
    from lmerge_service.config.http import Http

    return Http(port=port or 0)
