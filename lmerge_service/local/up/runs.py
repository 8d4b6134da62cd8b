"""The record of a run, and ending all of its processes by that record alone.

Theory
    A pid with the time at which its process was created names one process for ever (`local.jvm`).
    The file has both for the supervisor and for each process that it started. What these start in
    turn (a JVM, Spark's Python) is not in the file, nor is what was started in the moment in which
    the supervisor was killed: all of them have inherited a variable whose value is this run's id
    and nobody else's. So whatever a run has left can be found, and nothing else ever is.

Who owns what
    The folder of a topology's name, below $LMERGE_HOME: `run.json`, the control token, a
    log for each process, and the data of a local Kafka. The first two are there from before the
    first process until after the last.

What happens on a crash
    The supervisor is killed: the file stays, and what it started goes on. `end` ends it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lmerge_service.errors import ConfigurationError, EnvironmentMissingError
from lmerge_service.local import jvm
from lmerge_service.local.broker import LocalBroker, default_directory
from lmerge_service.local.jars import locked
from lmerge_service.local.processes import END_SECONDS

if TYPE_CHECKING:
    import psutil  # an extra: imported where it is used

__all__ = (
    "MARK",
    "KnownProcess",
    "UpRun",
    "begin",
    "broker_of",
    "end",
    "finish",
    "folder_of",
    "keep_token",
    "left",
    "read",
    "run_of",
    "token_of",
    "write",
)

MARK: Final = "LMERGE_UP"
"""The variable that all processes of a run have in their environment: its id."""

_FILE: Final = "run.json"
_LEAVE_SECONDS: Final = 60.0
"""For a supervisor to end everything in order: its processes, and then Kafka."""


class KnownProcess(msgspec.Struct, frozen=True):
    """A process, for ever."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> "KnownProcess | None":
        """None: there is no such process any more."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            return cls(pid, psutil.Process(pid).create_time())
        return None


class UpRun(msgspec.Struct, kw_only=True):
    """A topology that is up."""

    id: str
    path: str
    name: str
    supervisor: KnownProcess
    bootstrap: str = ""
    broker: bool = False
    """Whether a local Kafka belongs to it."""
    dashboard: str | None = None
    """Where the dashboard is, if there is one."""
    workers: dict[str, list[str]] = {}
    """Where the workers of each merge serve, by its name."""
    queries: list[str] = []
    """Where queries serve, if there is a dashboard."""
    ready: bool = False
    """Whether all has been started that waits for nothing."""
    processes: dict[str, KnownProcess] = {}


def folder_of(name: str) -> Path:
    """Where a topology's files are while it is up, and its logs afterwards."""
    return default_directory("up") / name


def token_of(folder: Path) -> Path:
    """The file of a run's token."""
    return folder / "token"


def keep_token(folder: Path, token: str) -> None:
    """Readable by our user alone."""
    file = token_of(folder)
    file.unlink(missing_ok=True)  # whatever it was, and its permissions
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as kept:
        kept.write(f"{token}\n")


def broker_of(folder: Path, port: int = 0) -> LocalBroker:
    """A run's own Kafka: it outlives a supervisor that is killed."""
    return LocalBroker(folder / "kafka", port, detached=True)


def read(folder: Path) -> UpRun | None:
    """What is written of a run there; nothing, if there is none."""
    with suppress(FileNotFoundError):
        try:
            return msgspec.json.decode((folder / _FILE).read_bytes(), type=UpRun)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{folder / _FILE} cannot be read: {error}") from None
    return None


def write(folder: Path, run: UpRun) -> None:
    """Replaces it whole."""
    fresh = folder / f"{_FILE}.new"
    fresh.write_bytes(msgspec.json.encode(run))
    fresh.replace(folder / _FILE)


def run_of(path: Path) -> tuple[Path, UpRun] | None:
    """The run of a topology's file and its folder, whatever the file holds by now."""
    home = default_directory("up")
    for folder in sorted(home.iterdir()) if home.is_dir() else ():
        if (run := read(folder)) is not None and Path(run.path) == path.absolute():
            return folder, run
    return None


def begin(folder: Path, run: UpRun) -> None:
    """Writes a run down, unless another of its name is not over.

    Raises:
        ConfigurationError: it is not.
        EnvironmentMissingError: the folder cannot be written, or psutil is missing.
    """
    _need_psutil()
    with locked(folder / "lock"):
        if (other := read(folder)) is not None:
            if (supervisor := jvm.find(other.supervisor)) is not None:
                raise ConfigurationError(
                    f"{other.name} is up already, from {other.path} (process {supervisor.pid}): "
                    f"`lmerge down {other.path}` ends it"
                )
            if left(folder, other):
                raise ConfigurationError(
                    f"`lmerge up {other.path}` was killed and its processes go on: "
                    f"`lmerge down {other.path}` ends them"
                )
        write(folder, run)


def left(folder: Path, run: UpRun) -> list["psutil.Process"]:
    """All processes of a run that there are, but the supervisor; Kafka last."""
    found = {process.pid: process for process in _marked(run.id)}
    for known in run.processes.values():
        if (process := jvm.find(known)) is not None:
            found[process.pid] = process
    kafka = _kafka_of(folder, run)
    return sorted(found.values(), key=lambda process: process.pid == kafka)


def _kafka_of(folder: Path, run: UpRun) -> int | None:
    broker = broker_of(folder)
    return broker.pid if run.broker and broker.running else None


def _marked(id_: str) -> Iterator["psutil.Process"]:
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # others' processes, and those that end meanwhile
            ours = process.pid != os.getpid() and process.environ().get(MARK) == id_
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def end(folder: Path, run: UpRun) -> int:
    """Ends a run, its supervisor first, in order if there is one; how many processes were left to
    end here.

    Raises:
        EnvironmentMissingError: psutil is missing.
    """
    _need_psutil()
    if (supervisor := jvm.find(run.supervisor)) is not None:
        jvm.end(supervisor, _LEAVE_SECONDS)
    return finish(folder, read(folder) or run)


def finish(folder: Path, run: UpRun) -> int:
    """Ends what a supervisor has left, and forgets the run; how many processes that were."""
    import psutil

    ended = set[int]()
    while found := left(folder, run):  # a process may start another while it is ended
        kafka = _kafka_of(folder, run)
        others = [process for process in found if process.pid != kafka]
        ended |= {process.pid for process in found}
        if not others:
            broker_of(folder).stop()
            continue
        for process in others:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
                process.resume()  # a paused one gets no signal
        _, alive = psutil.wait_procs(others, END_SECONDS)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, END_SECONDS)
    token_of(folder).unlink(missing_ok=True)
    (folder / _FILE).unlink(missing_ok=True)
    return len(ended)


def _need_psutil() -> None:
    try:
        import psutil  # noqa: F401
    except ImportError:
        raise EnvironmentMissingError(
            "`lmerge up` needs the extra 'demo': pip install 'lmerge-service[demo]'"
        ) from None
