"""LMerge in the consumer: n merged or replica topics, read as the one stream that they all mean.

Theory
    Two services that merge the same replicas write two topics. A consumer that merges these once
    more lives through the loss of either, without a pause: the paper's LMerge "located at the
    consumer" (II-1). The elements that it gets are a legal stream, with no event lost, doubled or
    contradicted, whichever topic is ahead, behind, missing or wrong.

        async with read_merged(connection, ["flights.merged.a", "flights.merged.b"]) as reader:
            async for element in reader:
                ...

    Topics are read as `read_committed`, each partition from its first record, or from the latest
    snapshot of the merge that publishes it (`beginnings`), by explicit positions and in no group.
    The stable point of a topic is the minimum over its partitions.

Who owns what
    A reader owns a consumer and an admin client, from `async with` on, and no task: nothing is
    read, merged or looked at but while the consumer waits for its next element. So a consumer
    that does not ask is not flooded; what is held is one fetch per partition, one batch, and the
    events that may still change.

What happens on a crash at each await
    Nothing: the reader has no state but in memory and in tokens. A wait that is cancelled, by a
    timeout for instance, has lost nothing: the next one goes on.

When Kafka goes away
    At the start: a TransportError at once. Later: the reader waits, `status().unreachable` has the
    reason, and after `patience` seconds without an answer it raises a TransportError. Its token is
    as good as before.

When a topic starts over
    As a merge treats a replica: what the former incarnation published counts no more, and what was
    final stays. If the new one is correct only from a time beyond the stream's stable point, and no
    other topic covers what is between, that is a gap: `status().gap`. The stream waits there unless
    `accept_gaps` has it go on, correct from the end of the gap.

When a transaction is left open
    Nothing behind it can be read. `status()` shows where and for how long; the other topics flow.
    Without `follow` the end is behind it: if it is open for longer than `patience` a TransportError
    is raised, since what was read until then is not all there was.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmerge_service.config.engines import engine_setting
from lmerge_service.core import Breach, Case, Gap, LMerge, Policy, lmerge
from lmerge_service.core.batches import as_batch
from lmerge_service.core.engine import EngineSetting
from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.errors import ConfigurationError, RefusedError, StateError, TransportError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.payload import DEEPEST
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import CONNECT_SECONDS, Connection
from lmerge_service.kafka.source import Batches, Source, TopicPartition
from lmerge_service.kafka.topics import TopicInfo, Topics
from lmerge_service.merge.snapshots.beginnings import PartitionStart, beginnings_of, state_topic
from lmerge_service.reader.inlets import Inlets, StartedOver, TopicStatus
from lmerge_service.reader.token import Token

__all__ = ("MergedReader", "ReaderStatus", "StartAt", "read_merged")

StartAt: TypeAlias = Literal["beginning", "snapshot"]

_POLL_SECONDS = 0.5
_LOOK_SECONDS = 2.0
_NOBODY: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """What a reader has merged, and from where; as of the last element that was waited for."""

    stable: int
    """The merged stream's stable point; START before the first."""
    correct_from: int
    """Every event that ends at this time or later is in the stream; START: every event is."""
    live_events: int
    """Events that are not final, and what a token's size goes by."""
    leader: str | None
    """The topic that moved the stable point last."""
    switches: int
    """How often that was another one than before."""
    topics: list[TopicStatus]
    unreachable: str | None
    """Why Kafka does not answer at the moment."""
    gap: Gap | None
    """What no topic covers, so that the stream waits."""
    lost: tuple[Gap, ...]
    """The gaps that this reader has gone on without."""


def read_merged(
    connection: Connection,
    topics: Sequence[str],
    *,
    case: Case | str = Case.R3,
    policy: Policy = Policy(),
    start: StartAt = "beginning",
    token: bytes | None = None,
    follow: bool = True,
    joining_at: Mapping[str, int] = _NOBODY,
    nfc: bool = False,
    drop_nulls: bool = False,
    batch_records: int = 20_000,
    patience: float = 60.0,
    on_dead: Callable[[DeadLetter], object] = lambda _: None,
    on_breach: Callable[[Breach], object] = lambda _: None,
    accept_gaps: bool = False,
    on_start_over: Callable[[StartedOver], object] = lambda _: None,
    on_gap: Callable[[Gap], object] = lambda _: None,
    engine: EngineSetting = "auto",
) -> "MergedReader":
    """A reader of the one stream that `topics` mean, to be used as `async with`.

    Payloads are canonical JSON, as bytes. The stream ends after stable(INFINITY); without
    `follow` also where the topics that exist ended when the reader was opened; what was in an open
    transaction then is waited for, `patience` seconds. A topic that does not exist is waited for,
    and the others flow.

    With `start="snapshot"` the topics are outputs of merges, and each is read from the latest
    snapshot in its state topic on: the stream begins with inserts of all events that are live
    there, its first stable is the time from which on it is correct, and what ended before is not in
    it. A topic without a snapshot is read from its first record.

    With `token`, from `MergedReader.token`, the reader goes on behind what had been handed out
    then; `case`, `policy`, `nfc` and `drop_nulls` must be as they were, `topics` may be others. Of
    a topic whose beginning is gone `joining_at` gives from when on it is correct. Records that are
    no elements go to `on_dead` (`replica` is the topic), what a topic does wrong goes to
    `on_breach`; either is called between two batches and must return soon.

    A topic that starts over is reported to `on_start_over`. With `accept_gaps` the stream goes on
    without a range of time that no topic covers any more, once all topics are there: it goes to
    `on_gap`, before the first element behind it, and `status().correct_from` is its end.

    `engine` merges, unless the environment's `LMERGE_ENGINE` names another; the stream is the same
    by either, and so are tokens.

    Raises:
        ConfigurationError: no topics, or one twice; a quorum that so few cannot make; a snapshot
            in case R0 to R2; a token of another case, policy, nfc or drop_nulls; an engine that
            cannot be had.
        StateError: the token is damaged, or of another version.
    """
    if not topics or len(set(topics)) < len(topics):
        raise ConfigurationError("read_merged needs topics, at least one, each once")
    try:
        policy.check_inputs(len(topics))
        engine = engine_setting(engine)
        merge = lmerge(case, policy, engine=engine)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if start == "snapshot" and merge.live_output() is None:
        raise ConfigurationError(f"to begin at a snapshot takes case R3 or R4, not {merge.case}")
    saved = None if token is None else Token.unsealed(token)
    if saved is not None:
        merge = _resumed(saved, merge, engine, nfc=nfc, drop_nulls=drop_nulls)
    native = as_batch(merge.empty()) is not None
    decoder = WireDecoder(
        nfc=nfc, drop_nulls=drop_nulls, max_record_bytes=1 << 30, max_depth=DEEPEST, native=native
    )
    places = {} if saved is None else saved.places
    return MergedReader(
        connection,
        merge,
        Inlets(merge, topics, decoder, joining_at, places),
        [] if saved is None else saved.elements(),
        start=start,
        correct_from=START if saved is None else saved.correct_from,
        nfc=nfc,
        drop_nulls=drop_nulls,
        follow=follow,
        batch_records=batch_records,
        patience=patience,
        on_dead=on_dead,
        on_breach=on_breach,
        accept_gaps=accept_gaps,
        on_start_over=on_start_over,
        on_gap=on_gap,
        native=native,
    )


def _resumed(
    saved: Token, requested: LMerge, engine: EngineSetting, *, nfc: bool, drop_nulls: bool
) -> LMerge:
    merge = saved.merge(engine)
    for what, was, now in (
        ("case", merge.case, requested.case),
        ("policy", merge.policy, requested.policy),
        ("nfc", saved.nfc, nfc),
        ("drop_nulls", saved.drop_nulls, drop_nulls),
    ):
        if was != now:
            raise ConfigurationError(f"the token is of a reader with {what} {was}, not {now}")
    return merge


class MergedReader:
    """Made by `read_merged`; an async iterator of elements."""

    def __init__(
        self,
        connection: Connection,
        merge: LMerge,
        inlets: Inlets,
        waiting: list[Element],
        *,
        start: StartAt,
        correct_from: int,
        nfc: bool,
        drop_nulls: bool,
        follow: bool,
        batch_records: int,
        patience: float,
        on_dead: Callable[[DeadLetter], object],
        on_breach: Callable[[Breach], object],
        accept_gaps: bool,
        on_start_over: Callable[[StartedOver], object],
        on_gap: Callable[[Gap], object],
        native: bool,
    ):
        self._connection = connection
        self._merge = merge
        self._inlets = inlets
        self._waiting = waiting[::-1]  # the next one is the last
        self._start, self._correct_from = start, correct_from
        self._begun: list[Element] = []
        """What topics that were begun in their middle have added, and was not handed out."""
        self._nfc, self._drop_nulls = nfc, drop_nulls
        self._follow = follow
        self._batch_records, self._native = batch_records, native
        self._patience = patience
        self._on_dead, self._on_breach = on_dead, on_breach
        self._accepts_gaps, self._on_gap = accept_gaps, on_gap
        self._on_start_over = on_start_over
        self._lost: list[Gap] = []
        self._upto: dict[TopicPartition, int] = {}
        self._assigned = False  # what is read is what is to be read
        self._unreachable: str | None = None

    async def __aenter__(self) -> "MergedReader":
        """Raises TransportError when Kafka cannot be reached."""
        async with AsyncExitStack() as stack:
            self._topics = await stack.enter_async_context(Topics(self._connection))
            source = Source(self._connection, native=self._native)
            self._source = await stack.enter_async_context(source)
            self._answered = self._looked = self._polled = asyncio.get_running_loop().time()
            await self._look(CONNECT_SECONDS)
            if not self._follow:
                self._upto = await self._high_watermarks(CONNECT_SECONDS)
            self._opened = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    # --- elements -----------------------------------------------------------------------------

    def __aiter__(self) -> "MergedReader":
        return self

    async def __anext__(self) -> Element:
        """Raises TransportError when Kafka has been away for longer than `patience`."""
        if not self._waiting:
            self._waiting = (await self._next_batch())[::-1]
            if not self._waiting:
                raise StopAsyncIteration
        return self._waiting.pop()

    async def batches(self) -> AsyncIterator[list[Element]]:
        """The same stream, in the lists in which it is merged: a quicker way through much of it.

        A token that is taken while a list is worked on is behind the whole of it.
        """
        while True:
            batch, self._waiting = self._waiting[::-1], []
            batch = batch or await self._next_batch()
            if not batch:
                return
            yield batch

    async def _next_batch(self) -> list[Element]:
        """The next elements to emit; none when the stream is over."""
        clock = asyncio.get_running_loop().time
        while self._begun or not self._is_over():
            if clock() - self._looked >= _LOOK_SECONDS:
                await self._look_again()
                self._looked = clock()
            out = self._take_begun() or self._take(await self._poll())
            if out:
                return out
            self._require_readable()
        return []

    def _require_readable(self) -> None:
        """Raises TransportError where the end is behind a transaction that is left open."""
        now = asyncio.get_running_loop().time()
        for each in self._inlets.open():
            upto = self._upto.get(TopicPartition(each.topic, each.partition), 0)
            if each.offset < upto and each.age(now) > self._patience:
                raise TransportError(
                    f"{each.words(now)}: wait for its writer, or abort it "
                    "(`kafka-transactions.sh abort`)"
                )

    async def _poll(self) -> Batches:
        clock = asyncio.get_running_loop().time
        try:
            batches = await self._source.poll(_POLL_SECONDS, self._batch_records)
        except TransportError as error:
            self._bear(error, self._polled)
            await asyncio.sleep(_POLL_SECONDS)
            return {}
        self._polled = clock()
        return batches

    def _take(self, batches: Batches) -> list[Element]:
        """Never awaits, so that records are taken altogether or not at all."""
        out: list[Element] = []
        dead: list[DeadLetter] = []
        for tp, records in batches.items():
            self._inlets.take(tp, records, out, dead)
        for tp in self._inlets.positions():
            if (position := self._source.position(tp)) is not None:
                self._inlets.advance(tp, position)
        self._leave_out_lost()
        for letter in dead:
            self._on_dead(letter)
        for breach in self._merge.breaches():
            self._on_breach(breach)
        restarts, self._inlets.started_over = self._inlets.started_over, []
        for each in restarts:
            self._on_start_over(each)
        return self._correct(out) + self._behind_gaps()

    def _behind_gaps(self) -> list[Element]:
        """What comes behind the gaps that are accepted now."""
        out: list[Element] = []
        settled = self._accepts_gaps and self._inlets.all_found
        while settled and self._merge.gap is not None:
            gap, elements = self._merge.accept_gap()
            self._correct_from = max(self._correct_from, gap.end)
            self._lost.append(gap)
            self._on_gap(gap)
            out += self._correct(elements)
        return out

    def _take_begun(self) -> list[Element]:
        out, self._begun = self._begun, []
        return self._correct(out)

    def _correct(self, out: list[Element]) -> list[Element]:
        """Without stables from before the stream is correct: partitions begin at different times,
        and of what is between some have nothing."""
        below = self._correct_from
        return out if below == START else [e for e in out if type(e) is not Stable or e.vc >= below]

    def _is_over(self) -> bool:
        if self._merge.max_stable == INFINITY:
            return True
        if self._follow:
            return False
        positions = self._inlets.positions()
        return all(positions.get(tp, end) >= end for tp, end in self._upto.items())

    # --- topics -------------------------------------------------------------------------------

    async def _look_again(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            await self._look(_LOOK_SECONDS)
        except TransportError as error:
            self._bear(error, self._answered)
        else:
            self._unreachable, self._answered = None, clock()

    def _bear(self, error: TransportError, since: float) -> None:
        """Continues without an answer, the last of which was at `since`; not for ever."""
        self._unreachable = str(error)
        self._inlets.unknown()
        if asyncio.get_running_loop().time() - since > self._patience:
            lasting = f"Kafka has not answered for {self._patience:g} s: {error}"
            raise TransportError(lasting) from error

    async def _look(self, seconds: float) -> None:
        """Takes in topics that came or widened, lets go those that went, measures the lag."""
        inlets = self._inlets
        found = await self._topics.describe(inlets.topics, seconds=seconds)
        if inlets.forget(found):
            self._assigned = False
        if unplaced := inlets.unplaced(found):
            snapshots = await self._snapshots(found, seconds)
            beginnings = await self._source.beginnings(unplaced)
            ends = await self._source.ends(unplaced, seconds=seconds)
            self._begun += inlets.admit(found, beginnings, ends, snapshots)
            while snapshots and self._merge.max_stable == START and self._merge.gap is not None:
                gap, out = self._merge.accept_gap()
                self._begun += out
                self._correct_from = max(self._correct_from, gap.end)
            self._assigned = False
        if not self._assigned:
            self._source.assign(inlets.positions())
            self._assigned = True
        now = asyncio.get_running_loop().time()
        ends = await self._high_watermarks(seconds)
        stable = await self._source.ends(list(ends), seconds=seconds) if ends else {}
        inlets.measure(ends, stable, now)

    async def _snapshots(
        self, found: Mapping[str, TopicInfo], seconds: float
    ) -> dict[str, list[PartitionStart]]:
        """Where topics begin that are to be read from a snapshot, and are not read yet."""
        unread = self._inlets.unread(found) if self._start == "snapshot" else {}
        if not unread:
            return {}
        states = await self._topics.describe(map(state_topic, unread), seconds=seconds)
        merged = {topic: width for topic, width in unread.items() if state_topic(topic) in states}
        if not merged:
            return {}
        begun = {}
        async with Source(self._connection) as source:  # a search moves its positions
            for topic, width in merged.items():
                try:
                    begun[topic] = await beginnings_of(source, topic, width)
                except (ConfigurationError, RefusedError, StateError) as error:
                    self._inlets.leave_out(topic, f"cannot be begun at a snapshot: {error}")
        return begun

    async def _high_watermarks(self, seconds: float) -> dict[TopicPartition, int]:
        read = list(self._inlets.positions())
        return await self._source.high_watermarks(read, seconds=seconds) if read else {}

    def _leave_out_lost(self) -> None:
        lost, self._source.lost = self._source.lost, {}
        for tp, why in lost.items():
            self._inlets.leave_out(tp.topic, f"partition {tp.partition}: {why}")
        if lost:
            self._source.assign(self._inlets.positions())

    # --- where it stands ------------------------------------------------------------------------

    def token(self) -> bytes:
        """What `read_merged(token=…)` goes on from, behind the last element handed out. Its size
        is that of the live events and of the rest of the batch; it costs as much to make."""
        waiting = self._waiting[::-1] + self._correct(self._begun)
        return Token.of(
            self._merge,
            self._inlets.places(),
            waiting,
            correct_from=self._correct_from,
            nfc=self._nfc,
            drop_nulls=self._drop_nulls,
        ).sealed()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that is read; elements of what is before may still
        wait to be handed out."""
        return self._inlets.positions()

    def status(self) -> ReaderStatus:
        """How far the reader and each of its topics are, without a request to Kafka."""
        stats = self._merge.stats()
        return ReaderStatus(
            stable=self._merge.max_stable,
            correct_from=self._correct_from,
            live_events=len(self._merge),
            leader=stats.leader,
            switches=stats.switches,
            topics=self._inlets.status(),
            unreachable=self._unreachable,
            gap=self._merge.gap,
            lost=tuple(self._lost),
        )
