"""Topics: which exist, which they are, how wide; the making of our own, and their trimming.

The merge makes its output and dead-letter topics when they are missing; replica topics belong to
their replicas and may appear at any time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    LeaderNotAvailableError,
    NotControllerError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.commit import OffsetFetchRequest

from lmerge_service.errors import ConfigurationError, RefusedError, TransportError
from lmerge_service.kafka import clients
from lmerge_service.kafka.connection import (
    CONTROLLER_SECONDS,
    Connection,
    bounded,
    close_bounded,
    lacking,
    patient,
)
from lmerge_service.kafka.metadata import TOPIC_IDS_VERSION, TopicsRequest
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.starting import started

__all__ = ("TopicDetails", "TopicInfo", "Topics")

_BROKERS_DEFAULT: Final = -1
"""As many replicas as the brokers' `default.replication.factor`, however many are up now."""
_CHANGE_MS: Final = 4_000
"""How long brokers may take to make or delete a topic; less than one is asked for."""
_NO_LEADER: Final = -1
_GROUP: Final = 0
"""Kafka's kind of coordinator."""
_OPERATIONS: Final = {3: "Read", 4: "Write", 6: "Delete", 8: "Describe"}
"""Kafka's bits among a topic's authorized operations."""
_MAY_WRITE = 1 << 4
_RIGHTS_UNKNOWN = -(2**31)
"""What brokers answer who were not asked for rights."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that exists."""

    id: str | None
    """Another one when the topic was deleted and recreated; None if the brokers return none."""
    partitions: int
    """How many."""
    leaderless: tuple[int, ...] = ()
    """Those that no broker leads, so that nobody can write or read them."""
    writable: bool = True
    """False: our user may not write it; only known where rights were asked for."""


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """More about a topic that exists."""

    partitions: int
    """How many."""
    leaderless: tuple[int, ...]
    """Those that no broker leads."""
    replication: int
    """The least number of replicas that any of them has."""
    rights: frozenset[str] | None
    """Which operations our user may do with it (`Read`, `Write`, …); None: brokers return none."""


class Topics:
    """Asks and makes; use as `async with`."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self.refused: set[str] = set()
        """Topics that were asked for, and that our user may not see."""
        self._admin = clients.admin(connection)

    async def __aenter__(self) -> "Topics":
        await started(self._admin.start(), self._close, self._connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await close_bounded(self._admin.close())

    async def describe(
        self, names: Iterable[str], *, seconds: float | None = None, rights: bool = False
    ) -> dict[str, TopicInfo]:
        """Those of the topics that exist; one request. Who asks now and then gives the `seconds`
        that it may take: each broker is asked once. Else they are asked until one answers.
        `rights`: also whether we may write."""
        found = await self._existing(names, seconds=seconds, rights=rights)
        return {str(topic["topic"]): _info(topic) for topic in found}

    async def details(self, names: Iterable[str]) -> dict[str, TopicDetails]:
        """More about those of the topics that exist and that our user may see."""
        found = await self._existing(names, rights=True)
        return {str(topic["topic"]): _details(topic) for topic in found}

    async def _existing(
        self, names: Iterable[str], *, seconds: float | None = None, rights: bool = False
    ) -> list[dict[str, Any]]:
        """Those of the topics that exist, as the brokers describe them; notes the refused ones."""
        asked = TopicsRequest(list(names), rights=rights)
        doing = "asking which topics there are"
        if seconds is None:
            answer = await patient(lambda: self._client.ask(asked), doing)
        else:
            answer = await bounded(self._client.ask(asked), doing, seconds)
        for topic in answer.to_object()["topics"]:
            refused = topic["error_code"] == TopicAuthorizationFailedError.errno
            (self.refused.add if refused else self.refused.discard)(str(topic["topic"]))
        return _described(answer)

    async def brokers(self) -> list[int]:
        """The ids of the brokers that are up."""
        answer = await patient(
            lambda: self._client.ask(TopicsRequest([])), "asking which brokers there are"
        )
        return sorted(int(broker["node_id"]) for broker in answer.to_object()["brokers"])

    async def return_ids(self) -> bool:
        """Whether brokers know topics by their ids: those from Kafka 2.8 on do."""
        answer = await patient(
            lambda: self._client.ask(TopicsRequest([])), "asking for the brokers' version"
        )
        return bool(answer.API_VERSION >= TOPIC_IDS_VERSION)

    async def partitions(
        self, names: Iterable[str], *, seconds: float | None = None
    ) -> dict[str, int]:
        """The number of partitions of each topic that exists."""
        found = await self.describe(names, seconds=seconds)
        return {name: topic.partitions for name, topic in found.items()}

    async def width(self, name: str) -> int | None:
        """The number of partitions of a topic; None if there is no such topic.

        Raises:
            RefusedError: our user may not see it.
        """
        width = await self._known_width(name)
        if name in self.refused:
            needed = lacking("Describe (Read and Write imply it)", f"topic {name}")
            raise RefusedError(f"asking for topic {name}: {needed}")
        return width

    async def _known_width(self, name: str) -> int | None:
        """As any broker knows it: one that stood still for a while lacks what is new."""
        if (width := (await self.partitions([name])).get(name)) is not None:
            return width
        for node in self._client.nodes():
            with suppress(KafkaError):
                for topic in _described(await self._client.ask(TopicsRequest([name]), of=[node])):
                    return len(topic["partitions"])
        return None

    async def ensure(
        self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> int:
        """Makes a topic unless it exists, with the brokers' default replication.

        Returns the number of partitions it has.

        Raises:
            TransportError: the broker refuses.
        """
        if (width := await self.width(name)) is not None:
            return width
        making = partial(self._make, name, partitions, config or {})
        await patient(making, f"making topic {name}", CONTROLLER_SECONDS)
        return await patient(lambda: self._visible(name), f"waiting for topic {name}")

    async def _make(self, name: str, partitions: int, config: dict[str, str]) -> None:
        new: tuple[Any, ...] = (name, partitions, _BROKERS_DEFAULT, [], list(config.items()))
        response = await self._change(CreateTopicsRequest([new], _CHANGE_MS, False))
        for topic, code, *message in response.topic_errors:
            error = for_code(code)
            if error is TopicAuthorizationFailedError:
                needed = lacking("Create", f"topic {topic}")
                raise RefusedError(f"making topic {topic}: {needed}")
            if code and error.retriable:
                raise error(*message)
            if code and error is not TopicAlreadyExistsError:
                why = message[0] if message else error.__name__
                raise TransportError(f"making topic {topic}: {why}", retriable=False)

    async def _change(self, request: Any) -> Any:
        """Any broker passes it on to the one that controls; older ones refuse, so that one is asked
        first."""
        controller = self._client.cluster.controller
        return await self._client.ask(request, of=[] if controller is None else [controller.nodeId])

    async def _visible(self, name: str) -> int:
        """A topic that was just made may not be known everywhere yet."""
        if (width := await self.width(name)) is None:
            raise LeaderNotAvailableError(name)
        return width

    async def delete(self, *names: str) -> None:
        """Deletes topics; those that are not there, or that may not be deleted, are left.

        Raises:
            TransportError: Kafka cannot be reached.
        """
        await patient(lambda: self._delete(list(names)), "deleting topics", CONTROLLER_SECONDS)

    async def _delete(self, names: list[str]) -> None:
        response = await self._change(DeleteTopicsRequest(names, _CHANGE_MS))
        for _, code, *_ in response.topic_error_codes:
            if for_code(code) is NotControllerError:
                raise NotControllerError

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Deletes the records before an offset of each partition, which then begins there, or
        where it has begun already if that is later.

        Raises:
            RefusedError: our user may not.
            TransportError: Kafka cannot be reached, or refuses.
        """
        await patient(lambda: self._trim(before), "deleting records")

    async def _trim(self, before: Mapping[TopicPartition, int]) -> None:
        answer = await self._client.ask(TopicsRequest(sorted({tp.topic for tp in before})))
        leaders = {
            TopicPartition(topic["topic"], each["partition"]): each["leader"]
            for topic in _described(answer)
            for each in topic["partitions"]
        }
        led: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for tp, offset in before.items():
            if (leader := leaders.get(tp, _NO_LEADER)) == _NO_LEADER:
                raise LeaderNotAvailableError(tp)
            led[leader][tp.topic].append((tp.partition, offset))
        for leader, topics in led.items():
            request = DeleteRecordsRequest(list(topics.items()), _CHANGE_MS)
            response = await self._client.ask(request, of=[leader])
            for topic, partitions, *_ in response.topics:
                for _partition, _begins, code, *_rest in partitions:
                    if (error := for_code(code)) is TopicAuthorizationFailedError:
                        needed = lacking("Delete", f"topic {topic}")
                        raise RefusedError(f"deleting records: {needed}")
                    if code:
                        raise error(topic)

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The offsets that a consumer group has committed, of those partitions of which it has.

        Raises:
            RefusedError: our user may not see them.
            TransportError: Kafka cannot be reached.
        """
        doing = f"asking for the offsets of group {group}"
        return await patient(lambda: self._committed(group, partitions), doing)

    async def _committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        wanted: dict[str, list[int]] = defaultdict(list)
        for tp in partitions:
            wanted[tp.topic].append(tp.partition)
        try:
            coordinator = await self._client.coordinator_lookup(_GROUP, group)
            asked = OffsetFetchRequest(group, list(wanted.items()))
            response = await self._client.ask(asked, of=[coordinator])
            if getattr(response, "error_code", 0):
                raise for_code(response.error_code)(group)
        except GroupAuthorizationFailedError as error:
            needed = lacking("Describe", f"group {group}")
            raise RefusedError(f"asking for its offsets: {needed}") from error
        return {
            TopicPartition(topic, partition): offset
            for topic, found in response.topics
            for partition, offset, _, code in found
            if offset >= 0 and not code
        }

    async def require(self, name: str, key: str, holds: Callable[[str], bool], must: str) -> None:
        """Refuses a topic whose configuration is not as it must be, which `must` has in words.

        Raises:
            ConfigurationError: the key's value does not meet the condition.
            TransportError: the broker does not return it.
        """
        value = await self.config(name, key)
        if value is not None and not holds(value):
            raise ConfigurationError(f"topic {name} has {key}={value}; it {must}")

    async def config(self, name: str, key: str) -> str | None:
        """A topic's value of a configuration key; None if it has no such key.

        Raises:
            TransportError: the broker does not return it.
        """
        return (await self.configs(name, [key])).get(key)

    async def configs(self, name: str, keys: Sequence[str]) -> dict[str, str]:
        """A topic's values of those of the configuration keys that it has.

        Raises:
            TransportError: the broker does not return them.
        """
        doing = f"asking for {name}'s configuration"
        return await patient(lambda: self._configs(name, keys, doing), doing)

    async def _configs(self, name: str, keys: Sequence[str], doing: str) -> dict[str, str]:
        asked = DescribeConfigsRequest([(ConfigResourceType.TOPIC, name, list(keys))])
        ((code, message, _, _, entries),) = (await self._client.ask(asked)).resources
        error = for_code(code)
        if error is TopicAuthorizationFailedError:
            needed = lacking("DescribeConfigs", f"topic {name}")
            raise RefusedError(f"{doing}: {needed}")
        if code and error.retriable:  # a topic that is new is not known to every broker yet
            raise error(message)
        if code:
            raise TransportError(f"{doing}: {message}", retriable=False)
        return {found: value for found, value, *_ in entries if found in keys}

    # --- asking ---------------------------------------------------------------------------------

    @property
    def _client(self) -> clients.Client:
        return self._admin._client  # type: ignore[no-any-return]


def _described(answer: Any) -> list[dict[str, Any]]:
    """The topics of an answer that exist."""
    found = answer.to_object()["topics"]
    return [each for each in found if each["error_code"] == 0 and each["partitions"]]


def _details(topic: dict[str, Any]) -> TopicDetails:
    info, mask = _info(topic), topic.get("authorized_operations", _RIGHTS_UNKNOWN)
    rights = None
    if mask != _RIGHTS_UNKNOWN:
        rights = frozenset(name for bit, name in _OPERATIONS.items() if mask & (1 << bit))
    return TopicDetails(
        info.partitions,
        info.leaderless,
        min(len(each["replicas"]) for each in topic["partitions"]),
        rights,
    )


def _info(topic: dict[str, Any]) -> TopicInfo:
    """Of a topic as the brokers describe it."""
    partitions = topic["partitions"]
    rights = topic.get("authorized_operations", _RIGHTS_UNKNOWN)
    return TopicInfo(
        topic.get("topic_id"),
        len(partitions),
        tuple(sorted(each["partition"] for each in partitions if each["leader"] < 0)),
        rights == _RIGHTS_UNKNOWN or bool(rights & _MAY_WRITE),
    )
