"""A cutover's dry run, as a process of its own: comparing every event takes a core for a while.

Who owns what
    `dry_run` owns the process, and ends it when it is cancelled or takes too long.
"""

import asyncio
from typing import Final

from lmerge_service.local.processes import LMERGE

__all__ = ("dry_run",)

_SECONDS: Final = 120.0
_LONGEST: Final = 20_000


async def dry_run(topology: str, coming: str, topic: str, watch: str) -> tuple[bool, str]:
    """Whether nothing would differ, and the report; nothing is decided or written. `topic` and
    `watch` may be empty. After two minutes it reports what was compared until then."""
    options = [f"--to={coming}", f"--dry-run={topology}"]
    options += [f"--topic={topic}"] if topic else []
    options += [f"--watch={watch}"] if watch else []
    process = await asyncio.create_subprocess_exec(
        *LMERGE, "cutover", *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    reading = asyncio.create_task(process.communicate())
    try:
        await asyncio.wait({reading}, timeout=_SECONDS)
        if not reading.done():
            process.terminate()  # it reports what it has compared
        output, _ = await reading
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode == 0, output.decode("utf-8", "replace")[-_LONGEST:].strip()
