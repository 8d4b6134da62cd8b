"""A member of a group in a process of its own, that can be killed and stopped: prints what it is
given, a line of JSON each time, and leaves when its standard input ends.

    python -m tests.kafka.member BOOTSTRAP GROUP TOPIC WORKER SESSION_MS
"""

import asyncio
import json
import sys
import time

import structlog

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.members import Members


async def show(members: Members) -> None:
    async for given in members.changes():
        assignment = {"generation": given.generation, "active": sorted(given.active)}
        print(json.dumps({"at": time.monotonic(), **assignment}), flush=True)


async def main(bootstrap: str, group: str, topic: str, worker: str, session_ms: int) -> None:
    """Whatever it is given it takes as warm at once, so that the group settles by itself."""
    members = Members(
        Connection(bootstrap),
        group,
        topic,
        output=topic,
        worker=worker,
        warm=lambda: dict.fromkeys([*members.assignment.active, *members.assignment.standby], 0),
        session_timeout_ms=session_ms,
    )

    async def settle() -> None:
        async for given in members.changes():
            if given.promised:
                members.rebalance()

    async with members, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in (members.run(), show(members), settle())]
        await asyncio.to_thread(sys.stdin.read)
        for task in running:
            task.cancel()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    address, group_name, state_topic, name, session = sys.argv[1:]
    asyncio.run(main(address, group_name, state_topic, name, int(session)))
