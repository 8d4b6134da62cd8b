"""The process of a local Kafka: started, recorded, found again, ended.

Theory
    A process id is not unique over time: systems reuse ids. Together with the time at which it was
    created it identifies one process for ever. A `ServerRecord` holds both, in a file that is
    replaced whole, so any program can find the process later, and none can signal another by
    mistake.

    A process that is started here either goes on by itself or dies with the process that started
    it, kill -9 included: Linux sees to that (prctl), elsewhere a small watchdog does.
"""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    import psutil  # an extra: imported where it is used

__all__ = (
    "ProcessIdentity",
    "ServerRecord",
    "end",
    "find",
    "gist",
    "launcher",
    "listened",
    "read",
    "spawn",
    "write",
)

_CREATION_TOLERANCE_SECONDS: Final = 2.0  # creation times are derived from a clock that is adjusted

_LAUNCHER: Final = """
import ctypes, os, signal, sys, time
directory, parent, *command = sys.argv[1:]
os.chdir(directory)
os.setsid()  # Ctrl-C is for the parent, which then stops us
if parent and sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the parent was gone before its child began")
elif parent and os.fork() == 0:
    watched = os.getppid()
    while os.getppid() == watched:
        try:
            os.kill(int(parent), 0)
        except ProcessLookupError:
            os.kill(watched, signal.SIGKILL)
        time.sleep(0.2)
    os._exit(0)
os.execv(command[0], command)
"""
"""Becomes the command, in a session of its own; with a parent, it dies when the parent does."""


class ProcessIdentity(Protocol):
    """What names a process for ever."""

    @property
    def pid(self) -> int: ...
    @property
    def created(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The process that serves, or last served, a directory."""

    pid: int
    created: float
    port: int
    java: str


def launcher(directory: Path, *, dies_with_us: bool) -> list[str]:
    """What to put before a command, so that it runs in `directory`, in a session of its own."""
    parent = str(os.getpid()) if dies_with_us else ""
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(directory), parent]


def spawn(
    command: Sequence[str], directory: Path, log: Path, *, dies_with_us: bool
) -> tuple[int, float]:
    """Starts a command in `directory`, its output appended to `log`; its id and creation time.

    On Linux, what dies with us dies with the thread that calls.
    """
    import psutil

    pid = os.posix_spawn(  # subprocess would complain of a child that outlives its handle
        sys.executable,
        [*launcher(directory, dies_with_us=dies_with_us), *command],
        os.environ,
        file_actions=(
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ),
    )
    return pid, psutil.Process(pid).create_time()


def find(record: ProcessIdentity) -> "psutil.Process | None":
    """The very process that was recorded, unless it has ended."""
    import psutil

    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.created) < _CREATION_TOLERANCE_SECONDS
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def listened(process: "psutil.Process") -> set[int]:
    """The TCP ports that it listens on; none when it is gone."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        found = process.net_connections(kind="tcp")
        return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
    return set()


def end(process: "psutil.Process", grace: float) -> bool:
    """SIGTERM, and SIGKILL after `grace` seconds (none: at once); whether it ended in order.

    It may be paused, or end by itself meanwhile.
    """
    import psutil

    with suppress(psutil.NoSuchProcess):
        if grace:
            process.terminate()
            process.resume()
            with suppress(psutil.TimeoutExpired):
                process.wait(grace)
                return True
        process.kill()
    process.wait()
    return False


def read(file: Path) -> ServerRecord | None:
    """What a file records; None for a file that is missing or damaged."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(file.read_bytes(), type=ServerRecord)
    return None


def write(file: Path, record: ProcessIdentity) -> None:
    """Replaces the file whole."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.replace(file)


def gist(output: str) -> str:
    """The line of a JVM's output with the cause of its end: the last exception, or the last line.

    >>> gist("WARN on it goes\\nKafkaException: no\\n\\tat A.b\\nCaused by: BindException: in use")
    'BindException: in use'
    """
    lines = [line for line in output.splitlines() if line.strip() and not line[0].isspace()]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Exception|Error): ", line)]
    return (causes or lines or ["it printed nothing"])[-1].removeprefix("Caused by: ")
