"""Runs the service on the Kafka in memory: the one place that knows how it is made."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import patch

import structlog

from lmerge_service.errors import FencedError, LMergeError, TransportError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.service import task
from lmerge_service.service import worker as workers
from lmerge_service.topology import Topology
from tests.simulation.clients import MemoryCluster
from tests.simulation.network import Network

__all__ = ("silent", "work")

_BEGAN = 1_700_000_000
"""When virtual time begins, in seconds since the epoch."""


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """While entered, the service logs nothing, and leaves the garbage collector alone: it is the
    tests' own."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with patch.object(task, "gc"):
            yield
    finally:
        structlog.configure(**before)


async def work(topology: Topology, network: Network) -> str:
    """One worker from its start to its end, which never comes by itself: "fenced" or "away".

    Raises:
        LMergeError: anything else that ends a worker.
    """
    cluster = cast(Cluster, MemoryCluster(network))
    clock = asyncio.get_running_loop().time
    unix_ns = lambda: int((_BEGAN + clock()) * 10**9)  # noqa: E731
    worker: Any = workers.Worker(topology, cluster, unix_ns=unix_ns)
    try:
        await worker.run()
    except FencedError:
        return "fenced"
    except TransportError:
        return "away"
    raise LMergeError("a worker ended without a reason")
