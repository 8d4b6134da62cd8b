"""`lmerge query correct`: a replica's next incarnation, with facts that were wrong corrected."""

import sys
from pathlib import Path

from lmerge_service.cli.options import Json, KafkaOptions, argument, check_topic, option
from lmerge_service.cli.planned_query import PlannedQuery
from lmerge_service.cli.query_target import QueryTarget
from lmerge_service.cli.streams import check_files
from lmerge_service.cli.words import finite, report, since

__all__ = ("correct",)


def correct(
    target: QueryTarget,
    corrections: str = argument(
        "CORRECTIONS",
        'A line each: {"was": {…}, "is": {…}}, of which one may be missing; - is stdin.',
    ),
    to: str = option("TOPIC", "The replica's topic."),
    into: str | None = option(
        "TOPIC",
        "Begin in this new topic instead, beside the replica as it is.",
        default=None,
        show_default="--to",
    ),
    topic: list[str] | None = option(
        "SOURCE=TOPIC",
        "Where it reads a source from. [default: the topic of its name]",
        default=None,
        show_default=False,
    ),
    as_json: Json = False,
    *,
    kafka: KafkaOptions,
) -> None:
    """Correct facts that a replica's output rests on, also where it is final.

    `was` names the fact by its time and as many columns as it takes, `is` gives what is otherwise:
    both are a replacement, `was` alone a deletion, `is` alone a late insertion. The replica begins
    its next incarnation, correct from the earliest correction on; `lmerge query run` goes on with
    it. One that runs is fenced, and ends with 5 at its next commit. Made again, nothing changes.

    A merge keeps what is final in it. Where that is wrong, begin --into a new topic, have the merge
    read that one, and start it over by `lmerge restart-output`.

    Example: `lmerge query correct flights.py:delays corrections.jsonl --to delays.a`
    """
    import asyncio

    from lmerge_service.queries import logical
    from lmerge_service.queries.physical import physical
    from lmerge_service.queries.properties import partition_columns
    from lmerge_service.replicas.correcting import correct as begin
    from lmerge_service.replicas.corrections import read_corrections
    from lmerge_service.replicas.request import ReplicaRequest

    query = target.query()
    check_files([corrections])
    lines = (
        sys.stdin.buffer.read() if corrections == "-" else Path(corrections).read_bytes()
    ).splitlines()
    request = ReplicaRequest(
        name=target.target,
        query=query.plan,
        plan=physical(query),
        columns=partition_columns(query.plan),
        number="",
        connection=kafka.connection(),
        to=to,
        topics=PlannedQuery(target, to, topic=topic).topics(query),
    )
    for each in (to, *map(request.topic_of, request.sources), *([into] if into else [])):
        check_topic(each)
    asked = read_corrections(
        lines, request.sources, headroom=logical.headroom(query.plan), name=corrections
    )
    found = asyncio.run(begin(request, asked, into))
    to = into or to
    commit = found.commit
    document = {
        "topic": to,
        "corrections": found.made,
        "incarnation": commit.incarnation,
        "joining_at": finite(commit.joining_at),
        "since": finite(found.since),
    }
    if not found.made:
        report(
            document,
            f"{to}: all of that is corrected already, in incarnation {commit.incarnation}",
            as_json=as_json,
        )
        return
    noun = "correction" if found.made == 1 else "corrections"
    report(
        document,
        f"{to}: incarnation {commit.incarnation}, correct from {since(commit.joining_at)}, with "
        f"{found.made} {noun}",
        f"facts from {since(found.since)} are read once more: lmerge query run … --to {to}",
        as_json=as_json,
    )
