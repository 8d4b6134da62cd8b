"""Membership: the workers of a merge share its tasks out among themselves.

Theory
    Workers are members of one Kafka group. Partition p of the state topic stands for merge task p,
    so that Kafka's own tools show who merges what (`kafka-consumer-groups --describe`), but
    nothing is fetched and no offset is stored through the group. One member, the leader that the
    broker chose, shares the tasks out (`assignor`) from each member's metadata in its join request.

    The name of the protocol that all members must share identifies their merge (`GroupKind`): the
    output, and how many tasks it has. So the broker itself rejects members of another merge that
    has been given the same name, whoever comes first and whoever leads, without any effect on the
    members that are there. A rejected member looks up who they are and reports it.

    The client's consumer uses the same protocol, but it also fetches, resets positions, leaves
    the group when nobody polls, and has one callback for a rebalance and a lost session. So the
    five requests are sent here, over the client's connections.

    ```
                ┌──────── rebalance, rebalance() ────────┐
                ▼                                        │
    coordinator ─▶ JoinGroup ─▶ (leader: share) ─▶ SyncGroup ─▶ Heartbeat …
        ▲              ▲                                 │
        │              └── unknown member: all is lost ──┤
        └───────── not there, not it, no answer ─────────┘
    ```

Invariants
    G1  `assignment` is what the group gave last. A rebalance under way changes nothing: what makes
        it safe to go on meanwhile is that the next owner of a task fences this one.
    G2  It becomes empty when, and only when, the group answers that it does not know this member
        any more: others may have had its tasks since. The member then joins again.
    G3  While the brokers are away it stays as it is, `unreachable` has the reason, and asking goes
        on.
    G4  `confirmed` returns only with an assignment that the group has acknowledged by a request
        that was sent after the call: nobody else has the tasks of it by a later sharing.
    G5  A member that leaves properly sends a leave request, and the others share again at once.
    G6  All members are of one `GroupKind`. Who is not ends, once a session is over: members that
        were killed are gone by then. An output that was deleted and recreated is the same to the
        group, since its workers live through that.

Who owns what, and what happens on a crash
    `Members` owns one client; only `run` sends requests to the group, in the caller's task group. A
    killed member is missed by the broker after `session_timeout_ms`, and so is one whose event loop
    stands still for so long; it finds out by its first heartbeat when it goes on. A leader that
    dies in the middle of sharing is missed in the same way, and the others join again. Nothing is
    written anywhere, so nothing is left over.

Cost
    A heartbeat each 0.3 s; on a rebalance, two requests by each member.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog
from aiokafka import errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from lmerge_service.errors import ConfigurationError, RefusedError, TransportError
from lmerge_service.kafka.assignor import Member, Share, share
from lmerge_service.kafka.clients import Client
from lmerge_service.kafka.connection import (
    CONNECT_SECONDS,
    Connection,
    bounded,
    close_bounded,
    kafka_errors,
    lacking,
    patient,
)
from lmerge_service.kafka.metadata import TopicsRequest

__all__ = ("KEPT_OUT_SECONDS", "Assignment", "GroupKind", "Members")

log = structlog.get_logger()

_PROTOCOL: Final = "lmerge-2"
"""Names the assignor; members of another version are refused by the broker."""

KEPT_OUT_SECONDS: Final = 1.0
"""How long, beyond a session, one waits for members of another merge to be gone."""

_HEARTBEAT_SECONDS: Final = 0.3
"""The others learn by their next heartbeat that a member came or went."""

_BACKOFF_SECONDS: Final = (0.1, 1.0)  # at first, and at the most
_AGAIN: Final = (errors.RebalanceInProgressError, errors.IllegalGenerationError)
_REFUSED: Final = {
    errors.InvalidSessionTimeoutError: "the brokers allow no such session timeout; it must be "
    "between their group.min.session.timeout.ms and group.max.session.timeout.ms",
}


@dataclass(frozen=True, slots=True)
class GroupKind:
    """Which merge the members of a group are of.

    >>> GroupKind("flights.merged", 2).protocol
    'lmerge-2 2 flights.merged'
    >>> GroupKind.of("lmerge-2 2 flights.merged")
    GroupKind(output='flights.merged', tasks=2)
    >>> GroupKind.of("range") is None
    True
    """

    output: str
    tasks: int

    @property
    def protocol(self) -> str:
        """The name under which the broker compares members; Kafka's tools show it."""
        return f"{_PROTOCOL} {self.tasks} {self.output}"

    @classmethod
    def of(cls, protocol: str) -> "GroupKind | None":
        """None: it is not of this version, or no worker's."""
        match protocol.split(" "):
            case [version, tasks, output] if version == _PROTOCOL:
                return cls(output, int(tasks))
        return None

    def refusal(self, group: str, other: "GroupKind | None", workers: str) -> ConfigurationError:
        """Why one of this kind is kept out by `workers` of another; None: of none that is known."""
        if other is None:
            who = f"members of another kind, or of another version ({workers})"
            return ConfigurationError(
                f"group {group} has {who}: stop them, or give this merge another name"
            )
        if other.output == self.output:
            return ConfigurationError(
                f"workers of this merge are running ({workers}) that know output {self.output} "
                f"with {other.tasks} partitions, not {self.tasks}: stop them first (group {group})"
            )
        return ConfigurationError(
            f"another merge of this name is running ({workers}), with output {other.output}, not "
            f"{self.output}: give this one another name, or stop that one first (group {group})"
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the group gave this member."""

    active: frozenset[int] = frozenset()
    """Tasks to merge."""
    standby: frozenset[int] = frozenset()
    """Tasks to follow; never one of `active`."""
    promised: frozenset[int] = frozenset()
    """Those of `standby` that are to become active: call `Members.rebalance` once one is warm."""
    owners: Mapping[int, str] = field(default_factory=dict)
    """The worker that merges each task; empty while nothing is known."""
    generation: int = -1
    """Rises with each sharing; -1: in no group."""


class _Given(msgspec.Struct, frozen=True):
    """What the leader sends a member beside its partitions."""

    standby: list[int]
    promised: list[int]
    owners: dict[str, list[int]]


class Members:
    """This worker among the members of a group; use as `async with`, with `run` beside.

    >>> async def work(connection: Connection) -> None:
    ...     async with (
    ...         Members(connection, "g", "state", output="out", worker="w", warm=dict) as members,
    ...         asyncio.TaskGroup() as tasks,
    ...     ):
    ...         tasks.create_task(members.run())
    ...         async for assignment in members.changes():
    ...             print(assignment.active)

    `worker` names it for people. `warm` gives, whenever the group shares, the tasks that this
    worker could take over at once, with how far behind it is: a number in any unit that all
    workers share. `standbys` and `topic` must be the same for all; who has another `output` is
    kept out.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        topic: str,
        *,
        output: str,
        worker: str,
        warm: Callable[[], Mapping[int, int]],
        standby_only: bool = False,
        standbys: int = 1,
        session_timeout_ms: int = 6000,
    ):
        self.assignment = Assignment()
        self.unreachable: str | None = None
        """Why the group does not answer; None while it does."""
        self._connection = connection
        self._group = group
        self._topic = topic
        self._output = output
        self._worker = worker
        self._warm = warm
        self._standby_only = standby_only
        self._standbys = standbys
        self._session_ms = session_timeout_ms
        self._heartbeat_seconds = min(_HEARTBEAT_SECONDS, session_timeout_ms / 5000)
        self._client: Client = None  # type: ignore[assignment]
        self._tasks = 0
        self._kept_out_since: float | None = None
        self._coordinator: int | None = None
        self._member = JoinGroupRequest.UNKNOWN_MEMBER_ID
        self._generation = -1
        self._joining = asyncio.Event()  # set: join again before the next heartbeat
        self._changed = asyncio.Event()  # a new one for each change
        self._sent = self._acknowledged = 0  # requests; the last that has confirmed the assignment
        self._acknowledgement = asyncio.Event()  # a new one for each acknowledgement

    async def __aenter__(self) -> "Members":
        # A join is answered when all members have joined, at the latest after a session.
        self._client = Client(
            **self._connection.arguments,
            client_id=self._worker,
            request_timeout_ms=self._session_ms + 2000,
        )
        try:
            doing = f"connecting to {self._connection.bootstrap}"
            await bounded(self._client.bootstrap(), doing)
            self._tasks = await patient(
                self._width, f"asking for topic {self._topic}", CONNECT_SECONDS
            )
        except BaseException:
            await close_bounded(self._client.close())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._member != JoinGroupRequest.UNKNOWN_MEMBER_ID and self._coordinator is not None:
            await close_bounded(self._leave(self._coordinator))
        await close_bounded(self._client.close())

    async def changes(self) -> AsyncIterator[Assignment]:
        """Each assignment from now on, beginning with the present one if there is any; of several
        that came while the caller was busy, the last."""
        seen = Assignment()
        while True:
            changed = self._changed
            if self.assignment != seen:
                seen = self.assignment
                yield seen
            else:
                await changed.wait()

    def rebalance(self) -> None:
        """Has the group share again: what is warm here has changed."""
        self._joining.set()

    async def confirmed(self) -> Assignment:
        """The assignment, once the group has acknowledged it after this call; waits while the
        group does not answer, or while this member is in none."""
        since = self._sent
        while self._acknowledged <= since or self.assignment.generation < 0:
            await self._acknowledgement.wait()
        return self.assignment

    def _acknowledge(self, request: int) -> None:
        self._acknowledged = request
        self._acknowledgement.set()
        self._acknowledgement = asyncio.Event()

    # --- one life in the group -----------------------------------------------------------------

    async def run(self) -> None:
        """Is a member until it is cancelled.

        Raises:
            ConfigurationError: the members are of another merge.
            TransportError: the brokers refuse; trying again would not help.
        """
        wait, most = _BACKOFF_SECONDS
        while True:
            try:
                with kafka_errors(f"as a member of {self._group}"):
                    await self._live()
            except TransportError as error:
                if not error.retriable:
                    raise
                wait = min(most, 2 * wait) if self.unreachable else _BACKOFF_SECONDS[0]
                self._note(str(error))
            await asyncio.sleep(wait)

    def _note(self, unreachable: str | None) -> None:
        if unreachable is not None:
            self._coordinator = None
            if self.unreachable is None:
                log.warning(
                    "the group of workers cannot be reached", group=self._group, error=unreachable
                )
        elif self.unreachable is not None:
            log.info("the group of workers answers again", group=self._group)
        self.unreachable = unreachable

    async def _live(self) -> None:
        """Joins whenever that is needed, and else shows that it is alive; until an error."""
        while True:
            if self._generation < 0 or self._joining.is_set():
                await self._join()
            else:
                await self._beat()

    async def _beat(self) -> None:
        try:
            async with asyncio.timeout(self._heartbeat_seconds):
                await self._joining.wait()
        except TimeoutError:
            heartbeat = HeartbeatRequest(self._group, self._generation, self._member)
            request = self._sent + 1
            if await self._ask(heartbeat) is not None:
                self._acknowledge(request)

    async def _join(self) -> None:
        self._joining.clear()  # changes from here on need another round
        try:
            joined = await self._ask(self._join_request())
            if joined is not None:
                self._kept_out_since = None
                self._member, self._generation = joined.member_id, joined.generation_id
                leads = joined.leader_id == joined.member_id
                await self._sync(self._shared(joined.members) if leads else [])
        except BaseException:
            self._joining.set()
            raise

    def _join_request(self) -> JoinGroupRequest:
        protocols = [(self._kind.protocol, self._metadata())]
        kind, session = ConsumerProtocol.PROTOCOL_TYPE, self._session_ms
        return JoinGroupRequest(self._group, session, session, self._member, None, kind, protocols)

    async def _sync(self, shares: list[tuple[str, bytes]]) -> None:
        request = SyncGroupRequest(self._group, self._generation, self._member, None, shares)
        number = self._sent + 1
        if (synced := await self._ask(request)) is not None:
            self._assign(self._read(synced.member_assignment))
            self._acknowledge(number)

    async def _ask(self, request: Any) -> Any:
        """The answer of the group's coordinator; None if this member must join again.

        Raises:
            KafkaError: there is no answer, or one that joining again does not resolve.
        """
        if self._coordinator is None:
            self._coordinator = await self._looked_up()
        self._sent += 1
        answer = await self._client.send(
            self._coordinator, request, group=ConnectionGroup.COORDINATION
        )
        error = errors.for_code(answer.error_code)
        if error.retriable:  # the coordinator is another one, or not ready
            raise error
        self._note(unreachable=None)
        if error is errors.NoError:
            return answer
        if error is errors.MemberIdRequired:
            self._member = answer.member_id
        elif error is errors.UnknownMemberIdError:
            self._lose()
        elif error is errors.GroupAuthorizationFailedError:
            raise self._unauthorized()
        elif error is errors.InconsistentGroupProtocolError:
            await self._outwait(self._coordinator)
        elif error in _REFUSED:
            raise TransportError(f"group {self._group}: {_REFUSED[error]}", retriable=False)
        elif error not in _AGAIN:
            raise error
        self._joining.set()
        return None

    async def _looked_up(self) -> int:
        try:
            group = CoordinationType.GROUP
            return int(await self._client.coordinator_lookup(group, self._group))
        except errors.GroupAuthorizationFailedError:
            raise self._unauthorized() from None

    def _unauthorized(self) -> RefusedError:
        needed = lacking("Read", f"group {self._group}")
        return RefusedError(f"joining the workers of this merge: {needed}")

    @property
    def _kind(self) -> GroupKind:
        return GroupKind(self._output, self._tasks)

    async def _outwait(self, coordinator: int) -> None:
        """Waits for members of another merge to be gone, as they are if they were killed.

        Raises:
            ConfigurationError: they live.
        """
        now = asyncio.get_running_loop().time()
        first = self._kept_out_since is None
        since = self._kept_out_since = now if self._kept_out_since is None else self._kept_out_since
        if (others := await self._others(coordinator)) is not None:
            refusal = self._kind.refusal(self._group, *others)
            if now - since > self._session_ms / 1000 + KEPT_OUT_SECONDS:
                raise refusal
            if first:
                log.warning("kept out of the workers", group=self._group, why=str(refusal))
        await asyncio.sleep(self._heartbeat_seconds)

    async def _others(self, coordinator: int) -> tuple[GroupKind | None, str] | None:
        """Of which merge the members are, and who they are; None while they share, or are gone."""
        request = DescribeGroupsRequest([self._group])
        group = ConnectionGroup.COORDINATION
        answer = await self._client.send(coordinator, request, group=group)
        _, _, state, _, protocol, members, *_ = answer.groups[0]
        if state != "Stable":
            return None
        return GroupKind.of(protocol), ", ".join(sorted(client for _, client, *_ in members))

    def _lose(self) -> None:
        """The group goes on without this member: others may have had its tasks (G2)."""
        self._member = JoinGroupRequest.UNKNOWN_MEMBER_ID
        self._generation = -1
        if self.assignment != Assignment():
            log.warning("this worker was taken for dead; it joins anew", group=self._group)
            self._assign(Assignment())

    def _assign(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self._changed.set()
        self._changed = asyncio.Event()

    # --- metadata and assignments --------------------------------------------------------------

    def _metadata(self) -> bytes:
        now = self.assignment
        member = Member(
            self._worker,
            self._standby_only,
            now.generation,
            set(now.active),
            set(now.standby),
            set(now.promised),
            dict(self._warm()),
        )
        metadata = ConsumerProtocol.METADATA(0, [self._topic], msgspec.json.encode(member))
        return bytes(metadata.encode())

    def _shared(self, joined: list[tuple[Any, ...]]) -> list[tuple[str, bytes]]:
        """As the leader: the assignment of each member."""
        members = {
            id_: msgspec.json.decode(ConsumerProtocol.METADATA.decode(data).user_data, type=Member)
            for id_, *_, data in joined
        }
        shares = share(members, self._tasks, self._standbys)
        owners: dict[str, list[int]] = {}
        for id_, mine in shares.items():
            owners.setdefault(members[id_].worker, []).extend(mine.active)
        log.info("sharing tasks out", group=self._group, generation=self._generation, owners=owners)
        return [(id_, self._encoded(mine, owners)) for id_, mine in shares.items()]

    def _encoded(self, mine: Share, owners: dict[str, list[int]]) -> bytes:
        given = msgspec.json.encode(_Given(mine.standby, mine.promised, owners))
        return bytes(ConsumerProtocol.ASSIGNMENT(0, [(self._topic, mine.active)], given).encode())

    def _read(self, encoded: bytes) -> Assignment:
        assignment = ConsumerProtocol.ASSIGNMENT.decode(encoded)
        given = msgspec.json.decode(assignment.user_data, type=_Given)
        return Assignment(
            frozenset(tp.partition for tp in assignment.partitions()),
            frozenset(given.standby),
            frozenset(given.promised),
            {task: worker for worker, tasks in given.owners.items() for task in tasks},
            self._generation,
        )

    # --- beginning and end ---------------------------------------------------------------------

    async def _width(self) -> int:
        request = TopicsRequest([self._topic])
        answer = await self._client.ask(request)
        (topic,) = answer.to_object()["topics"]
        if topic["error_code"]:
            raise errors.for_code(topic["error_code"])(self._topic)
        return len(topic["partitions"])

    async def _leave(self, coordinator: int) -> None:
        """Over another connection: a join that waits for an answer blocks its own."""
        await self._client.send(coordinator, LeaveGroupRequest(self._group, self._member))
