"""Correcting a replica: facts that its output rests on were wrong, and it is final.

Theory
    As long as the stable point is below, a correction is a fact like any other. Below the stable
    point nothing of a stream can be said anew. So the replica begins its next incarnation, correct
    from the time of the earliest correction on, for which the facts from there are read once more,
    and as many before them as the plan needs: the topic is the archive, the query is replayed.

        facts        ─────────┬─ need(T) ── T: was 75, is 72 ───────────── now
        incarnation 0         │  ins …  stable ……………………………………………… stable │
        incarnation 1         └─▶ joining at T:   ins … (of 72)  stable …………│ goes on

    A merge that has published what was wrong as final keeps that: what is final is not revised. The
    incarnation may therefore begin in a topic of its own, which takes the replica's place, and from
    which the merge starts over (`lmerge restart-output`).

    All that it takes is one commit record, in one transaction: the incarnation, where its inputs
    begin, and the corrections, which inputs apply from then on. `lmerge query run` goes on from it,
    whatever happened, as from any other.

    Corrections that are there already are not made again, so that a command whose answer was lost
    can be repeated. Which fact a correction is about is looked up before anything is written, and
    one that is not there is refused; so is one for which facts would be needed that are gone.

What happens on a crash at each await
    Before the commit: nothing has changed, but that a process that runs is fenced. After it: the
    incarnation has begun.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.partitions_sink import PartitionsOutbox, PartitionsSink
from lmerge_service.kafka.source import Source
from lmerge_service.kafka.tails import next_incarnation, tails
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.commit_record import COMMIT_KEY
from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.properties import required_history
from lmerge_service.queries.rows import Row
from lmerge_service.replicas.commit_record import Correction, ReplicaCommit, state_topic
from lmerge_service.replicas.corrections import AskedCorrection, written
from lmerge_service.replicas.recovery import QueryRecovery
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.running import QueryReplica, dead_letter_topic
from lmerge_service.replicas.starting import Anew, check_same, last_commit
from lmerge_service.replicas.topic_archive import TopicArchive, archives_of

__all__ = ("Corrected", "correct", "correct_from")


@dataclass(frozen=True, slots=True)
class Corrected:
    """What became of corrections."""

    commit: ReplicaCommit
    """The last commit record by now."""
    made: int
    """How many corrections are new; none: the incarnation goes on."""
    since: int
    """The facts from that time on are read once more; START: all."""
    read: int
    """Ranges of the archive that were read to find what is corrected."""


def correct_from(plan: Node, corrections: Sequence[Correction]) -> int:
    """From when on output has to be computed anew: the time of the earliest correction, or what a
    plan that moves events back makes of it."""
    earliest = min(correction.start for correction in corrections)
    return max(START + 1, earliest - _backwards(plan))


def _backwards(node: Node) -> int:
    """How far below the start of an event the ends of what it makes can be."""
    below = max(map(_backwards, logical.children(node)), default=0)
    match node:
        case logical.Lifetime(function="shift", arguments=(by,)) if by < 0:
            return below - by
        case logical.Lifetime(function="hop", arguments=(every, _)):
            return below + every
        case logical.GroupApply(plan=plan):
            return below + _backwards(plan)
    return below


async def correct(
    request: ReplicaRequest, asked: Sequence[AskedCorrection], into: str | None = None
) -> Corrected:
    """Begins an incarnation of a replica with corrected facts: in its topic, or `into` another, in
    which nothing is yet.

    Raises:
        ConfigurationError: there is nothing of this query to be corrected, no such fact, or
            something in the other topic.
        ReplayError: facts that it takes are gone.
        StateError: the state cannot be read.
        FencedError: a process of the replica has been started meanwhile.
        TransportError: Kafka cannot be reached, or refuses.
    """
    widths, ids, width = await _topics(request)
    known = await last_commit(request, settled=False)
    if known is None:
        raise ConfigurationError(
            f"{request.to} has nothing to be corrected: no replica of {request.name} has run"
        )
    check_same(request, known, widths)
    async with Source(request.connection, max_record_bytes=request.max_record_bytes) as source:
        topics = {name: request.topic_of(name) for name in request.sources}
        headroom = logical.headroom(request.query)
        archives = archives_of(source, request.sources, topics, widths, headroom)
        goal = request if into is None else replace(request, to=into, partitions=width)
        begun = known if into is None else await _begun(goal)
        new = await _new(asked, archives, (begun or known).corrections)
        read = sum(archive.read for archive in archives.values())
        if begun is not None and not new:
            return Corrected(begun, 0, START, read)
        if into is not None and begun is not None:
            raise ConfigurationError(
                f"{into} has a replica already: correct that one (--to {into})"
            )
        joining_at = correct_from(request.plan.plan, new or known.corrections)
        since = await _since(request, joining_at, archives)
        if into is not None:
            await QueryReplica(goal).prepare()
        start = Anew(0, joining_at, None if since == START else since, (*known.corrections, *new))
        recovery = QueryRecovery(goal, widths, ids, width, source)
        record = await _begin(goal, known, start, recovery)
    return Corrected(record, len(new), since, read)


async def _begun(goal: ReplicaRequest) -> ReplicaCommit | None:
    """What another topic has already."""
    async with Topics(goal.connection) as topics:
        found = await topics.describe([goal.to, state_topic(goal.to)])
    if state_topic(goal.to) in found:
        return await last_commit(goal, settled=False)
    if goal.to in found and await tails(goal.connection, goal.to, found[goal.to].partitions):
        raise ConfigurationError(f"{goal.to} has elements of somebody else: choose another topic")
    return None


async def _begin(
    goal: ReplicaRequest, known: ReplicaCommit, start: Anew, recovery: QueryRecovery
) -> ReplicaCommit:
    """Commits where the incarnation begins; whoever wrote to the topic before is fenced."""
    async with PartitionsSink(
        goal.connection,
        output=goal.to,
        partitions=recovery.width,
        dead_letters=dead_letter_topic(goal.to),
        state=state_topic(goal.to),
        max_record_bytes=goal.max_record_bytes,
    ) as sink:
        commit = await last_commit(goal, settled=True) or known
        if commit.corrections != known.corrections:
            raise StateError(f"{goal.to} was corrected by somebody else: try again")
        tail = await tails(goal.connection, goal.to, recovery.width)
        incarnation = max(commit.incarnation + 1, next_incarnation(tail))
        begun = (await recovery.run(replace(start, incarnation=incarnation))).commit
        record = msgspec.structs.replace(
            begun, plan=commit.plan, since=commit.since, transaction=commit.transaction + 1
        )
        await sink.commit(PartitionsOutbox(state=[(COMMIT_KEY, record.encoded())]))
    return record


async def _since(
    request: ReplicaRequest, joining_at: int, archives: Mapping[str, TopicArchive]
) -> int:
    """The time from which on facts are needed; that they are there is looked up."""
    needed = required_history(request.plan.plan, joining_at)
    for name, archive in archives.items():
        await archive.first(needed[name])
    least = min(needed[name] for name in archives)
    longest = max(logical.longest(archive.facts) for archive in archives.values())
    return START if least == START or longest == INFINITY else least - longest


async def _topics(request: ReplicaRequest) -> tuple[dict[str, int], dict[str, str | None], int]:
    """The widths and ids of the inputs' topics, and the width of the output's."""
    names = {name: request.topic_of(name) for name in request.sources}
    async with Topics(request.connection) as topics:
        found = await topics.describe([*names.values(), request.to])
    for topic in (*names.values(), request.to):
        if topic not in found:
            raise ConfigurationError(f"there is no topic {topic}")
    widths = {name: found[topic].partitions for name, topic in names.items()}
    return widths, {n: found[topic].id for n, topic in names.items()}, found[request.to].partitions


async def _new(
    asked: Sequence[AskedCorrection],
    archives: Mapping[str, TopicArchive],
    known: Sequence[Correction],
) -> list[Correction]:
    """What is asked for and not made yet: each about one fact, as those before have left it."""
    unclaimed, new = list(known), list[Correction]()
    for each in asked:
        made = next((c for c in unclaimed if _is_made(each, c)), None)
        if made is not None:
            unclaimed.remove(made)
        elif each.time is None:
            new.append(written(each.revision(None)))
        else:
            archive = archives[each.source.name]
            here = await archive.scan(each.time, each.time + 1)
            events = Counter((e.entry.payload, e.entry.vs, e.entry.ve) for e in here)
            left = _corrected(events, [*known, *new], each)
            matching = [key for key in left if each.matches(Insert(*key))]
            new.append(written(each.revision(Insert(*_only(matching, each, archive)))))
    return new


def _is_made(asked: AskedCorrection, made: Correction) -> bool:
    if asked.source.name != made.source or (asked.time is None) != (made.old is None):
        return False
    old = None if made.old is None else Insert(*made.old)
    return (old is None or asked.matches(old)) and written(asked.revision(old)) == made


def _corrected(
    events: Counter[tuple[Row, int, int]], made: Sequence[Correction], asked: AskedCorrection
) -> Counter[tuple[Row, int, int]]:
    """The events of one time, as corrections leave them."""
    left = events.copy()
    for each in made:
        if each.source != asked.source.name:
            continue
        if each.old is not None and each.old[1] == asked.time:
            left[each.old] -= 1
        if each.new is not None and each.new[1] == asked.time:
            left[each.new] += 1
    return +left


def _only(
    matching: Sequence[tuple[Row, int, int]], asked: AskedCorrection, archive: TopicArchive
) -> tuple[Row, int, int]:
    if not matching:
        raise ConfigurationError(
            f"{asked.at}: {archive.topic} has no such fact of time {asked.time} that counts"
        )
    if len(matching) > 1:
        raise ConfigurationError(
            f"{asked.at}: {len(matching)} different facts are meant by that; give more of what it "
            "was"
        )
    return matching[0]
