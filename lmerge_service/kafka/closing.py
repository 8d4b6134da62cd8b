"""Closes a producer or a consumer, whatever its broker does.

Theory
    A producer that stops first delivers what it holds, and asks again for as long as there is no
    answer. Given up on, it would go on so in the background: reconnect when the broker is back,
    and write what no caller waits for any more. So what is given up is taken apart: its tasks are
    cancelled, then its connections closed. The client keeps no list of its tasks; they are known
    by whose methods they run. Pinned and tested with aiokafka.

    A consumer closes its connections last, and not at all if what it awaits before that is
    cancelled: its own tasks while the broker is away, or all of it when it takes too long. So they
    are closed in any case.

What happens on a crash
    What a producer held is Kafka's to clean up.
"""

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from lmerge_service.kafka.connection import CLOSE_SECONDS, close_bounded

__all__ = ("abandon", "stop", "stop_consumer")


async def stop(producer: AIOKafkaProducer) -> None:
    """Delivers what it holds and closes it; past `CLOSE_SECONDS` it is abandoned."""
    try:
        await close_bounded(producer.stop())
    finally:
        await abandon(producer)


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Closes it and its connections; past `CLOSE_SECONDS` nothing of it is waited for."""
    await close_bounded(_stopped(consumer))


async def _stopped(consumer: AIOKafkaConsumer) -> None:
    try:
        await consumer.stop()
    finally:
        await consumer._client.close()


async def abandon(producer: AIOKafkaProducer) -> None:
    """Closes a producer without delivering anything more; one that is closed stays so."""
    producer._closed = True
    tasks = [task for task in asyncio.all_tasks() if _works_for(producer, task)]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
    await close_bounded(producer.client.close())


def _works_for(producer: AIOKafkaProducer, task: "asyncio.Task[Any]") -> bool:
    frame = getattr(task.get_coro(), "cr_frame", None)
    owner = None if frame is None else frame.f_locals.get("self")
    return owner is not None and (
        owner is producer._sender or owner is producer._message_accumulator
    )
