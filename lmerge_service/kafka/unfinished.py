"""Finishes a transaction that its coordinator takes for finished, though its markers are missing.

Theory
    A coordinator that has decided a transaction writes a marker into each of its partitions, and
    only then takes it for complete. A broker of Kafka 4.3 or 4.4 skips a partition that has no
    leader at that instant, as if it were deleted, which is what comes of killing and restarting a
    lone broker while markers are under way: the records are neither committed nor aborted, their
    readers wait for ever, and the next owner of the transactional.id gets no error.

        before fencing     what did the coordinator decide last?         (DescribeTransactions)
        after it           which partitions have an open transaction?    (last stable offset)
        then               a transaction of ours with these partitions and no record, which ends
                           as was decided: its markers end the open one too, since both have the
                           same producer id

    It does not touch another producer's open transaction: markers are about one producer.

Invariants
    U1  What was decided stays decided: a commit that its owner got acknowledged is never undone.
    U2  An owner that died before it wrote anything leaves no decision; then an open transaction is
        one of before, and committed, as all but those are that a fence or a timeout has ended.
"""

from collections.abc import Collection
from functools import partial

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    NodeNotReadyError,
    NoError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from lmerge_service.kafka.clients import Client
from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import Connection, bounded, close_bounded, patient
from lmerge_service.kafka.ends import high_watermarks, last_stable_offsets
from lmerge_service.kafka.starting import started

__all__ = ("take_over",)

log = structlog.get_logger()

_SECONDS = 90.0
"""For the coordinator to end what an earlier owner left open."""
_NOT_FOUND = 105


async def take_over(
    producer: AIOKafkaProducer,
    connection: Connection,
    partitions: Collection[TopicPartition],
    doing: str,
) -> None:
    """Starts a transactional producer, which fences every earlier owner of its transactional.id
    and waits until Kafka has ended what that left open; then ends what is open nevertheless in
    these partitions. `doing` begins error messages. If it fails, the producer is closed.

    Raises:
        FencedError: another instance has taken over meanwhile.
        RefusedError: our user may not use this transactional.id, or not write there.
        TransportError: Kafka cannot be reached, or does not answer in time.
    """
    name = producer._txn_manager.transactional_id
    commit = await _was_committed(connection, name, doing)
    await started(producer.start(), partial(stop, producer), connection, doing, _SECONDS)
    at = f"{doing} {connection.bootstrap}"
    try:
        found = await patient(lambda: _open(producer.client, partitions), at)
        await bounded(_end_transaction(producer, found, commit), at, _SECONDS, "Write")
    except BaseException:
        await stop(producer)
        raise
    if found:
        log.info(
            "transaction found open",
            partitions=[f"{tp.topic}-{tp.partition}" for tp in found],
            committed=commit,
            transactional_id=name,
        )


async def _end_transaction(
    producer: AIOKafkaProducer, partitions: Collection[TopicPartition], commit: bool
) -> None:
    """Writes markers of this producer into these partitions, and nothing else."""
    await producer.begin_transaction()
    for tp in partitions:
        producer._txn_manager.maybe_add_partition_to_txn(tp)
    await (producer.commit_transaction() if commit else producer.abort_transaction())


# --- what was decided -----------------------------------------------------------------------------


async def _was_committed(connection: Connection, transactional_id: str, doing: str) -> bool:
    """Whether a transactional.id's last transaction was decided to be committed; true too where
    nothing is known of one (U2)."""
    client = Client(**connection.arguments)

    async def close() -> None:
        await close_bounded(client.close())

    await started(client.bootstrap(), close, connection, doing)
    try:
        at = f"{doing} {connection.bootstrap}"
        state = await patient(lambda: _state(client, transactional_id), at)
    finally:
        await close()
    return state is None or state == "Empty" or state.endswith("Commit")


async def _state(client: Client, transactional_id: str) -> str | None:
    """As the coordinator names it; None: it knows of no such id, or is older than the request."""
    kind = CoordinationType.TRANSACTION
    try:
        node = await client.coordinator_lookup(kind, transactional_id)
    except TransactionalIdAuthorizationFailed as refused:  # the client does not name the id
        raise TransactionalIdAuthorizationFailed(transactional_id) from refused
    request = _DescribeTransactions([transactional_id])
    try:
        response = await client.send(node, request, group=ConnectionGroup.COORDINATION)
    except IncompatibleBrokerVersion:
        return None
    (described,) = response.transactions
    code, _, state, *_ = described
    if code == _NOT_FOUND:
        return None
    if (error := for_code(code)) is not NoError:
        raise error(transactional_id)
    return str(state)


# --- what is open ---------------------------------------------------------------------------------


async def _open(client: Client, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    """Those in which somebody's transaction is open; a topic that is not there has none."""
    for tp in partitions:
        client.add_topic(tp.topic)
    if not await client.force_metadata_update():
        raise NodeNotReadyError("no broker returns the topics' metadata")
    there = [tp for tp in partitions if client.cluster.partitions_for_topic(tp.topic)]
    ends = await high_watermarks(client, there)  # before what is compared with it, which may rise
    return [tp for tp, at in (await last_stable_offsets(client, there)).items() if at < ends[tp]]


# --- the request ----------------------------------------------------------------------------------


class _DescribeTransactionsResponse(Response):  # type: ignore[misc]
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("started_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _DescribeTransactionsStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = _DescribeTransactionsResponse
    SCHEMA = Schema(
        ("transactional_ids", CompactArray(CompactString("utf-8"))),
        ("tags", TaggedFields),
    )


class _DescribeTransactions(Request[_DescribeTransactionsStruct]):  # type: ignore[misc]
    """The client has no request of this kind (KIP-664)."""

    API_KEY = 65

    def __init__(self, transactional_ids: list[str]):
        self._transactional_ids = transactional_ids

    def build(
        self, request_struct_class: type[_DescribeTransactionsStruct]
    ) -> _DescribeTransactionsStruct:
        return request_struct_class(self._transactional_ids, {})
