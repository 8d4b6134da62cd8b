"""Producers that are closed while their broker is away leave nothing behind that would go on."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import CLOSE_SECONDS
from lmerge_service.local.broker import LocalBroker

KINDS: tuple[dict[str, Any], ...] = (
    {"transactional_id": "closing"},
    {"enable_idempotence": True},
    {},
)


@pytest.mark.full
def test_nothing_of_them_goes_on(tmp_path: Path) -> None:
    async def run(broker: LocalBroker) -> None:
        idle = asyncio.all_tasks()
        producers = [AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **kind) for kind in KINDS]
        for producer in producers:
            await producer.start()
            if producer._txn_manager is not None and producer._txn_manager.transactional_id:
                await producer.begin_transaction()
            await producer.send_and_wait("lost", b"1", partition=0)
        broker.kill()
        under_way = [
            await producer.send("lost", b"2", partition=number)
            for producer in producers
            for number in range(2)
        ]
        for producer in producers:
            began = time.monotonic()
            await stop(producer)
            assert time.monotonic() - began < 3 * CLOSE_SECONDS
        assert asyncio.all_tasks() == idle
        assert not any(each.done() and not each.exception() for each in under_way)

    settings = {"auto.create.topics.enable": "true", "num.partitions": "2"}
    with LocalBroker(tmp_path / "kafka", settings=settings) as broker:
        asyncio.run(run(broker))
