"""Kafka Streams' exactly-once deduplication of the same topics: what a user would pick instead.

Who owns what
    The program is `StreamsDedup.java`, with defaults but for exactly-once and a store in memory,
    the fastest that Kafka Streams has, with its changelog. It needs a JDK, since Java compiles it
    when it starts; compiling, starting, and finding its group are not in the time that it reports.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.fleet import log_line
from lmerge_service.errors import EnvironmentMissingError, LMergeError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.jars import (
    EXTRA_MISSING,
    KAFKA_VERSION,
    JarSet,
    Java,
    find_java,
    kafka_jars,
)
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage

__all__ = ("Deduplicated", "deduplicated")

_STREAMS: Final = JarSet(
    title=f"Kafka Streams {KAFKA_VERSION}",
    folder=f"kafka-streams-{KAFKA_VERSION}",
    coordinates=(f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",),
    sha256="803cfb0df593506f012e3f4aa234e21c0951a998e0206c9fd8ea016385de6d71",
    megabytes=2,
    extra_missing=EXTRA_MISSING,
    transitive=False,  # the rest is Kafka's, and RocksDB, which a store in memory does without
)
_PROGRAM: Final = Path(__file__).with_name("StreamsDedup.java")
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """A backlog that was deduplicated: input records a second, and what that took."""

    rate: float
    warm: float
    """Of the second half, when the JVM has compiled what it runs."""
    peak: int
    """Bytes resident."""


async def deduplicated(stage: Stage, topics: Sequence[str], to: str, total: int) -> Deduplicated:
    """Reads `total` records of the topics and puts each out once.

    Raises:
        EnvironmentMissingError: there is no JDK, or the JARs cannot be had.
        LMergeError: the program failed.
    """
    command = [str(_jdk().path), "-cp", _class_path(), str(_PROGRAM), stage.bootstrap, to]
    command += [str(total), str(stage.folder / f"{to}.state"), *topics]
    async with Topics(Connection(stage.bootstrap)) as admin:
        await admin.ensure(to)
    process = await stage.start(command, f"{to}.log")
    peak = await _peak(process)
    process.check()
    took = json.loads(process.log_tail(lines=1))
    found = Deduplicated(total / took["seconds"], (total - total // 2) / took["warm"], peak)
    log_line(f"{to}: {found.rate:,.0f} records a second, {found.warm:,.0f} when warm")
    return found


async def _peak(process: Child) -> int:
    """Waits until it has ended; the most bytes that were resident."""
    peak = 0
    with suppress(LMergeError):
        while process.ended is None:
            peak = max(peak, process.resident)
            await asyncio.sleep(_POLL_SECONDS)
    await process.wait()
    return peak


def _jdk() -> Java:
    java = find_java()
    if not java.path.resolve().with_name("javac").is_file():
        raise EnvironmentMissingError(f"{java} is no JDK: put one with javac in JAVA_HOME")
    return java


def _class_path() -> str:
    return os.pathsep.join(map(str, [*kafka_jars(), *_STREAMS.paths()]))
