"""Topics: which exist, which they are, how wide, and the making of our own.

The merge makes its output and dead-letter topics when they are missing; replica topics belong to
their replicas and may appear at any time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from lmerge_service.errors import ConfigurationError, RefusedError, TransportError
from lmerge_service.kafka.client import (
    CONNECT_SECONDS,
    Connection,
    bounded,
    close_bounded,
    lacking,
    patient,
)
from lmerge_service.kafka.metadata import TopicsRequest
from lmerge_service.kafka.starting import started

__all__ = ("TopicInfo", "Topics")

_COPIES = 3


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that exists."""

    id: str | None
    """Another one when the topic was deleted and made anew; None if the brokers tell none."""
    partitions: int
    """How many."""


class Topics:
    """Asks and makes; use as `async with`."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self.refused: set[str] = set()
        """Topics that were asked for, and that our user may not see."""
        self._admin = AIOKafkaAdminClient(**connection.arguments)

    async def __aenter__(self) -> "Topics":
        await started(self._admin.start(), self._close, self._connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await close_bounded(self._admin.close())

    async def describe(
        self, names: Iterable[str], *, seconds: float = CONNECT_SECONDS
    ) -> dict[str, TopicInfo]:
        """Those of the topics that exist; one request."""
        answer = await bounded(
            self._admin._send_request(TopicsRequest(list(names))),
            "asking which topics there are",
            seconds,
        )
        found = answer.to_object()["topics"]
        for topic in found:
            refused = topic["error_code"] == TopicAuthorizationFailedError.errno
            (self.refused.add if refused else self.refused.discard)(str(topic["topic"]))
        return {
            str(topic["topic"]): TopicInfo(topic.get("topic_id"), len(topic["partitions"]))
            for topic in found
            if topic["error_code"] == 0 and topic["partitions"]
        }

    async def partitions(
        self, names: Iterable[str], *, seconds: float = CONNECT_SECONDS
    ) -> dict[str, int]:
        """The number of partitions of each topic that exists."""
        found = await self.describe(names, seconds=seconds)
        return {name: topic.partitions for name, topic in found.items()}

    async def width(self, name: str) -> int | None:
        """The number of partitions of a topic; None if there is no such topic.

        Raises:
            RefusedError: our user may not see it.
        """
        width = (await self.partitions([name])).get(name)
        if name in self.refused:
            needed = lacking("Describe (Read and Write imply it)", f"topic {name}")
            raise RefusedError(f"asking for topic {name}: {needed}")
        return width

    async def ensure(
        self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> int:
        """Makes a topic unless it exists, on three brokers, or on as many as there are.

        Returns the number of partitions it has.

        Raises:
            TransportError: the broker refuses.
        """
        if (width := await self.width(name)) is not None:
            return width
        cluster = await bounded(self._admin.describe_cluster(), "asking which brokers there are")
        copies = min(_COPIES, len(cluster["brokers"]))
        wanted = NewTopic(name, partitions, copies, topic_configs=config or {})
        response = await bounded(self._admin.create_topics([wanted]), f"making topic {name}")
        for topic, code, *message in response.topic_errors:
            error = for_code(code)
            if error is TopicAuthorizationFailedError:
                needed = lacking("Create", f"topic {topic}")
                raise RefusedError(f"making topic {topic}: {needed}")
            if code and error is not TopicAlreadyExistsError:
                said = message[0] if message else error.__name__
                raise TransportError(f"making topic {topic}: {said}", retriable=False)
        return await patient(lambda: self._visible(name), f"waiting for topic {name}")

    async def _visible(self, name: str) -> int:
        """A topic that was just made may not be known everywhere yet."""
        if (width := await self.width(name)) is None:
            raise LeaderNotAvailableError(name)
        return width

    async def delete(self, *names: str) -> None:
        await bounded(self._admin.delete_topics(list(names)), "deleting topics")

    async def require(self, name: str, key: str, holds: Callable[[str], bool], must: str) -> None:
        """Refuses a topic whose configuration is not as it must be, which `must` says in words.

        Raises:
            ConfigurationError: the key's value does not meet the condition.
            TransportError: the broker does not tell.
        """
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={key: ""})
        doing = f"asking for {name}'s configuration"
        for response in await bounded(self._admin.describe_configs([resource]), doing):
            for code, said, _, _, entries in response.resources:
                if code == TopicAuthorizationFailedError.errno:
                    needed = lacking("DescribeConfigs", f"topic {name}")
                    raise RefusedError(f"{doing}: {needed}")
                if code:
                    raise TransportError(f"{doing}: {said}", retriable=False)
                for found, value, *_ in entries:
                    if found == key and not holds(value):
                        raise ConfigurationError(f"topic {name} has {key}={value}; it {must}")
