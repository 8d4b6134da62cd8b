"""`lmerge query run`: a query by one of its plans, from topics to a topic, exactly once."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

from lmerge_service.cli.options import (
    HttpPort,
    KafkaOptions,
    Partitions,
    check_topic,
    flag,
    option,
)
from lmerge_service.cli.query_target import QueryTarget
from lmerge_service.cli.run import log_to_stderr
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.config.topology import Http
    from lmerge_service.queries.physical import PhysicalPlan
    from lmerge_service.queries.plan import Query

__all__ = ("Plan", "plan_of", "run", "topics_of")

_RESTART = "Starting over"
_LIMITS = "Limits"

Plan: TypeAlias = Annotated[
    int, option("K", "By which plan; `lmerge query list` numbers them.", min=1)
]


def run(
    target: QueryTarget,
    to: str = option("TOPIC", "Where to publish; made if missing."),
    plan: Plan = 1,
    topic: list[str] = option(
        "SOURCE=TOPIC",
        "Read a source from this topic. [default: the topic of its name]",
        default=[],
        show_default=False,
    ),
    partitions: Partitions = 1,
    feedback: str | None = option(
        "TOPIC", "A merge's output: leave out what is final there.", default=None
    ),
    name: str | None = option(
        "NAME", "What the merge calls this replica. [default: --to]", default=None
    ),
    since: int | None = option(
        "TIME",
        "Begin a new incarnation with the facts from this time on, unless it is the one that goes "
        "on.",
        show_default="the first fact",
        default=None,
        panel=_RESTART,
    ),
    rejoin: bool = flag(
        "Begin a new incarnation with the facts of now, unless the topic is empty.",
        "--rejoin",
        panel=_RESTART,
    ),
    resume: bool = flag(
        "When the state is lost, go on from what --to holds: its own output, or a jumpstart's "
        "beginning.",
        "--resume",
        panel=_RESTART,
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

    from lmerge_service.queries.properties import partition_columns
    from lmerge_service.replicas.request import ReplicaRequest
    from lmerge_service.replicas.serving import run_replica

    if rejoin and since is not None:
        raise ConfigurationError("--since and --rejoin are two ways to start over: give one")
    if resume and (rejoin or since is not None):
        raise ConfigurationError("--resume continues, --since and --rejoin start over: give one")
    query = target.query()
    request = ReplicaRequest(
        name=target.target,
        query=query.plan,
        plan=plan_of(query, target.target, plan),
        columns=partition_columns(query.plan),
        number=str(plan),
        connection=kafka.connection(),
        to=to,
        topics=topics_of(query, topic),
        partitions=partitions,
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
    for each in (to, *map(request.topic_of, request.sources), *([feedback] if feedback else [])):
        check_topic(each)
    log_to_stderr(as_json=as_json)
    asyncio.run(run_replica(request))


def plan_of(query: "Query", target: str, number: int) -> "PhysicalPlan":
    """The plan of that number.

    Raises:
        ConfigurationError: the query has none.
    """
    from lmerge_service.queries.plan_numbering import numbered_plans

    plans = numbered_plans(query)
    if number > len(plans):
        raise ConfigurationError(
            f"{target} has no plan {number}: there are {len(plans)} (`lmerge query list`)"
        )
    return plans[number - 1]


def topics_of(query: "Query", given: list[str]) -> dict[str, str]:
    """The topics that are named for sources, as `SOURCE=TOPIC`.

    Raises:
        ConfigurationError: one is not, or two sources would be one topic.
    """
    from lmerge_service.queries import logical

    sources, found = logical.sources(query.plan), dict[str, str]()
    for each in given:
        name, equals, topic = each.partition("=")
        if not equals:
            raise ConfigurationError(f"--topic {each}: give SOURCE=TOPIC")
        if name not in sources:
            there = ", ".join(sources)
            raise ConfigurationError(f"--topic {each}: the query reads {there}, not {name}")
        found[name] = topic
    topics = [found.get(name, name) for name in sources]
    if len(set(topics)) < len(topics):
        raise ConfigurationError("--topic: two sources cannot be one topic")
    return found


def _http(port: int | None) -> "Http":
    from lmerge_service.config.topology import Http

    return Http(port=port or 0)
