"""Where a replica begins: what its topics hold, and what that comes to.

Theory
    | state of | topic holds | asked for | it |
    |---|---|---|---|
    | this query and plan | | | goes on, in the same incarnation |
    | this query, another plan | | | goes on: the new plan takes the output over |
    | | | `--since`, of another time than before; `--rejoin` | begins the next incarnation |
    | another query | | neither | refused |
    | none | nothing | | begins with the first facts, or with those of `--since` |
    | none | elements | `--resume` | goes on from what the topic holds |
    | none | elements | none of them | refused |

    What another query's state refuses is found before other writers are fenced (`preview`), so that
    a mistake disturbs nobody; all is decided afterwards, when nothing can change any more and no
    transaction of a process that was killed is open.

What happens on a crash: nothing is written here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.state import last_with_key
from lmerge_service.kafka.tails import Tail, next_incarnation, tails
from lmerge_service.merge.commit_record import COMMIT_KEY
from lmerge_service.queries import logical
from lmerge_service.queries.properties import has_exact_starts, joining_at
from lmerge_service.replicas.beginnings import present_watermark
from lmerge_service.replicas.commit_record import Correction, ReplicaCommit, state_topic
from lmerge_service.replicas.request import ReplicaRequest

__all__ = (
    "Anew",
    "Continue",
    "Resume",
    "Start",
    "check_same",
    "decide",
    "last_commit",
    "preview",
)


@dataclass(frozen=True, slots=True)
class Anew:
    """An incarnation that begins with these facts."""

    incarnation: int
    joining_at: int
    since: int | None
    corrections: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True)
class Continue:
    """The same incarnation, from its last commit record."""

    commit: ReplicaCommit


@dataclass(frozen=True, slots=True)
class Resume:
    """The same incarnation, from the output alone; with a commit record, that of another plan, up
    to where this had come."""

    commit: ReplicaCommit | None


Start = Anew | Continue | Resume


async def preview(request: ReplicaRequest, widths: Mapping[str, int]) -> Continue | None:
    """What is committed by now, if it goes on with it; None: `decide` will find out.

    Raises:
        ConfigurationError: the topic is another query's, or was made with other inputs.
        StateError: its state cannot be read.
        TransportError: Kafka cannot be reached, or refuses.
    """
    commit = await last_commit(request, settled=False)
    if commit is None or _begins_anew(request, commit):
        return None
    check_same(request, commit, widths)
    return Continue(commit)


async def decide(request: ReplicaRequest, widths: Mapping[str, int], partitions: int) -> Start:
    """What it is from now on; `widths` are those of the inputs' topics.

    Raises:
        ConfigurationError: the topic is another query's, or was made with other inputs.
        StateError: there is no state to go on from.
        TransportError: Kafka cannot be reached, or refuses.
    """
    commit = await last_commit(request, settled=True)
    if commit is None:
        return await _without_state(request, widths, partitions)
    if _begins_anew(request, commit):
        return await _anew(request, widths, partitions, commit)
    check_same(request, commit, widths)
    same = commit.plan == request.plan.fingerprint
    if not same and not any(each.records for each in commit.output):
        # nothing is published yet in this incarnation: any plan may begin it
        commit = msgspec.structs.replace(commit, plan=request.plan.fingerprint, snapshots=())
        return Continue(commit)
    return Continue(commit) if same or commit.has_ended else Resume(commit)


def _begins_anew(request: ReplicaRequest, commit: ReplicaCommit) -> bool:
    other = request.since is not None and request.since != commit.since
    return request.rejoin or other


async def last_commit(request: ReplicaRequest, *, settled: bool) -> ReplicaCommit | None:
    """The last commit record. `settled`: nothing that is open is left out; a transaction of a
    process that was killed stays open until the next owner ends it.

    Raises:
        StateError: it is of something else, or of another version.
        TransportError: Kafka cannot be reached, or refuses.
    """
    place = TopicPartition(state_topic(request.to), 0)
    async with Source(request.connection) as source:
        end = (await (source.settled([place]) if settled else source.ends([place])))[place]
        record = await last_with_key(source, place, COMMIT_KEY, end=end)
    if record is None:
        return None
    try:
        return ReplicaCommit.of(record.value)
    except StateError as error:
        raise StateError(f"{place.topic}, offset {record.offset}: {error}") from error


def check_same(request: ReplicaRequest, commit: ReplicaCommit, widths: Mapping[str, int]) -> None:
    """
    Raises:
        ConfigurationError: the record is of another query, or of other inputs.
    """
    if commit.query != request.fingerprint:
        raise ConfigurationError(
            f"{request.to} has the elements of another query than {request.name}: choose another "
            "topic, or begin a new incarnation with --rejoin or --since"
        )
    for name, width in widths.items():
        known, topic = commit.inputs[name], request.topic_of(name)
        if known.topic != topic:
            raise ConfigurationError(
                f"{request.to} was made from the topic {known.topic}, not {topic}: choose another "
                "topic, or begin a new incarnation with --rejoin or --since"
            )
        if len(known.partitions) != width:
            raise ConfigurationError(
                f"{topic} had {len(known.partitions)} partitions and has {width}: which facts are "
                "late goes by partition; begin a new incarnation with --rejoin or --since"
            )


async def _without_state(
    request: ReplicaRequest, widths: Mapping[str, int], partitions: int
) -> Start:
    tail = await tails(request.connection, request.to, partitions)
    if request.resume and tail:
        return Resume(None)
    if tail and not (request.rejoin or request.since is not None):
        raise StateError(
            f"{request.to} has elements, and {state_topic(request.to)} has no state to go on from: "
            "--resume goes on from what the topic has, --rejoin or --since begin a new incarnation"
        )
    return await _begin(request, widths, tail, next_incarnation(tail))


async def _anew(
    request: ReplicaRequest, widths: Mapping[str, int], partitions: int, known: ReplicaCommit
) -> Anew:
    tail = await tails(request.connection, request.to, partitions)
    incarnation = max(known.incarnation + 1, next_incarnation(tail))
    begun = await _begin(request, widths, tail, incarnation)
    same = known.query == request.fingerprint
    return replace(begun, corrections=known.corrections if same else ())


async def _begin(
    request: ReplicaRequest, widths: Mapping[str, int], tail: list[Tail], incarnation: int
) -> Anew:
    since = request.since
    if request.rejoin and (tail or incarnation):
        places = [
            (request.topic_of(name), widths[name], source.lateness)
            for name, source in request.sources.items()
            if isinstance(source, logical.Source)
        ]
        since = await present_watermark(request.connection, places)
    if since is None:
        return Anew(incarnation, START, None)
    begins = {
        name: since if isinstance(source, logical.Source) else START
        for name, source in request.sources.items()
    }
    correct_from = joining_at(request.plan.plan, begins)
    if correct_from == INFINITY and since != INFINITY:
        exact = has_exact_starts(request.plan.plan)
        why = "" if exact else ", as its rows may have begun at any time"
        raise ConfigurationError(
            f"{request.name}: this query needs all facts there ever were{why}, so that it can't "
            f"begin with those of {since}"
        )
    # only an incarnation after the first can have a time from which on it is correct
    return Anew(max(incarnation, 1), min(correct_from, INFINITY - 1), since)
