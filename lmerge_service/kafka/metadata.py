"""The metadata request whose answer has topic ids, which the client's own does not know.

A topic that was deleted and recreated has the same name and another id, however many records it
contains by now. Brokers return ids from version 10 of the request on (Kafka 2.8), the client stops
at 5; so version 10 is defined here, with the client's own schema classes, and the client chooses
per connection the version that both sides know.
"""

import base64
import uuid
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v4, MetadataRequest_v5
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

__all__ = ("TOPIC_IDS_VERSION", "TopicsRequest", "Uuid")

TOPIC_IDS_VERSION: Final = 10
"""Of the request, from which on answers have ids."""

_ANY = b"\0" * 16  # Kafka's zero id: none is given


class Uuid(AbstractType[str | None]):  # type: ignore[misc]
    """A topic id, as Kafka's tools print it: 22 characters of URL-safe base64; None is no id."""

    @classmethod
    def encode(cls, value: str | None) -> bytes:
        """The 16 bytes of an id; zeros for None."""
        return _ANY if value is None else base64.urlsafe_b64decode(f"{value}==")

    @classmethod
    def decode(cls, data: BytesIO) -> str | None:
        """Reads 16 bytes; zeros are None. Raises ValueError if there are fewer."""
        raw = uuid.UUID(bytes=data.read(16)).bytes  # refuses what is cut short
        return None if raw == _ANY else base64.urlsafe_b64encode(raw).decode().rstrip("=")


class _Response(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = TOPIC_IDS_VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _Request(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = TOPIC_IDS_VERSION
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),  # brokers take names only in this version
                ("topic", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[MetadataRequest_v4 | MetadataRequest_v5 | _Request]):  # type: ignore[misc]
    """Asks for topics by name, without making those that are missing; older brokers return no ids.

    The client's own describe_topics would make them where brokers may do that.
    """

    API_KEY = 3

    def __init__(self, names: Sequence[str], *, rights: bool = False) -> None:
        """`rights`: also what our user may do with each topic."""
        self._names = list(names)
        self._rights = rights

    def build(self, version: type[Any]) -> Any:
        """The request of this version of the protocol; only the latest asks for ids and rights."""
        if version is not _Request:
            return version(self._names, False)
        names: list[Any] = [(None, name, {}) for name in self._names]
        return _Request(names, False, False, self._rights, {})
