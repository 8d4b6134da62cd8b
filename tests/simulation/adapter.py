"""Puts the Kafka in memory under the service: the one place that knows how its ports are found.

A worker's clients are made deep inside of it, so the network that they use travels in a context
variable, which all tasks of that worker inherit.
"""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import structlog

from lmerge_service.errors import FencedError, LMergeError, TransportError
from lmerge_service.service import task as tasks
from lmerge_service.service import worker as workers
from lmerge_service.service.status import StateSource
from lmerge_service.topology import Topology
from tests.simulation.clients import MemorySink, MemorySource, MemoryTopics
from tests.simulation.network import Network

__all__ = ("injected", "work")

_NETWORK: ContextVar[Network] = ContextVar("network")


@contextlib.contextmanager
def injected() -> Iterator[None]:
    """While entered, merge tasks find their topics, sources and sinks in memory, and are silent.
    The garbage collector is left alone: it is the tests' own."""
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    before = structlog.get_config()
    structlog.configure(wrapper_class=silent)
    try:
        with (
            patch.object(tasks, "Topics", lambda _: MemoryTopics(_NETWORK.get())),
            patch.object(tasks, "Source", lambda _, **__: MemorySource(_NETWORK.get())),
            patch.object(tasks, "Sink", lambda _, **names: MemorySink(_NETWORK.get(), **names)),
            patch.object(workers, "quieten_garbage_collector", lambda: None),
        ):
            yield
    finally:
        structlog.configure(**before)


async def work(topology: Topology, network: Network) -> str:
    """One worker from its start to its end, which never comes by itself: "fenced" or "away".

    Raises:
        LMergeError: anything else that ends a worker.
    """
    _NETWORK.set(network)
    task: Any = tasks.MergeTask(topology)
    try:
        await workers._merge_and_recover(task, StateSource())
    except FencedError:
        return "fenced"
    except TransportError:
        return "away"
    raise LMergeError("a worker ended without a reason")
