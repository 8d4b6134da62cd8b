"""A forked process that writes a stream as it is at this instant, while its parent goes on.

Theory
    A forked process has all that its parent had at the instant of the fork, and nothing of what
    the parent does afterwards changes it. What it writes goes through a pipe, whose bounds are
    the writer's: it waits until its bytes are taken.

Who owns what
    A `ForkedWriter` owns the process and the pipe; `close` ends both. The process has no file but
    its end of the pipe, and no event loop.

What happens on a crash
    A writer whose parent is gone ends at its next byte; a parent learns from `is_whole` that its
    writer has failed.
"""

import asyncio
import contextlib
import gc
import os
import signal
import warnings
from collections.abc import AsyncGenerator, Iterator
from typing import Final

__all__ = ("ForkedWriter",)

_BUFFER_BYTES: Final = 512 * 1024


class ForkedWriter:
    """Writes `stream`, which is iterated in the process that is forked here and now."""

    def __init__(self, stream: Iterator[bytes]):
        self.pid, self._pipe = _forked(stream)
        """The process, 0 when it has been waited for; the pipe, -1 when it has been taken."""

    async def chunks(self, size: int) -> AsyncGenerator[bytes, None]:
        """What it writes, in pieces of `size` bytes of which only the last one may be shorter."""
        reader = asyncio.StreamReader(limit=size)
        pipe, self._pipe = os.fdopen(self._pipe, "rb", buffering=0), -1
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while True:
                try:
                    yield await reader.readexactly(size)
                except asyncio.IncompleteReadError as error:
                    if error.partial:
                        yield error.partial
                    return
        finally:
            transport.close()

    async def is_whole(self) -> bool:
        """Waits for its end, behind the last of `chunks`: whether it has written everything."""
        loop = asyncio.get_running_loop()
        _, status = await loop.run_in_executor(None, os.waitpid, self.pid, 0)
        self.pid = 0
        return status == 0

    def close(self) -> None:
        """Ends it if it still runs."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self.pid:
            # It may have ended by now, and the thread that waits for it may have returned.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0


def _forked(stream: Iterator[bytes]) -> tuple[int, int]:
    """The pid of a process that writes the stream, and the end of the pipe to read from."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The fork of a process with threads must not take their locks; it encodes and writes.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _write_and_exit(stream, writing)
    os.close(writing)
    return pid, reading


def _write_and_exit(stream: Iterator[bytes], pipe: int) -> None:
    """All that the forked process does; it closes the parent's files, above all its sockets."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both; ours is SIGPIPE
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        gc.disable()
        os.nice(5)
        os.closerange(0, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
        with os.fdopen(pipe, "wb", buffering=_BUFFER_BYTES) as out:
            for part in stream:
                out.write(part)
        status = 0
    finally:
        os._exit(status)
