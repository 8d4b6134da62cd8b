"""A running drill: an environment on an event loop of its own, for synchronous actions and probes.

Who owns what
    One `Session` at a time is *current*; it owns a thread, and the environment in it. The Chaos
    Toolkit runs actions and probes on threads of its own, and each waits for its result.
"""

import asyncio
import inspect
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from lmerge_service.drills.environment import Environment
from lmerge_service.drills.observability_checks import Capture
from lmerge_service.drills.plan import DrillError, DrillPlan
from lmerge_service.drills.records import CommittedTopic
from lmerge_service.drills.report import DrillTimeline, JudgedRun, capture, judge, timeline

__all__ = ("Session", "current", "in_environment")

P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE_SECONDS: Final = 180.0
_CURRENT: Final[list["Session"]] = []
"""The drill that is under way, if one is."""


class Session:
    """Opened by `open`, ended by `close`."""

    def __init__(self, plan: DrillPlan):
        self.failures: list[str] = []
        """Actions that have failed."""
        self.judged: JudgedRun | None = None
        self.captured: Capture | None = None
        self._topics: dict[str, CommittedTopic] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="environment", daemon=True
        )
        self.environment = Environment(Path(tempfile.mkdtemp(prefix="lmerge-drill-")), plan)

    def open(self) -> None:
        """Starts everything.

        Raises:
            DrillError, LMergeError: something does not start.
        """
        assert not _CURRENT, "one drill at a time"
        _CURRENT.append(self)
        self._thread.start()
        try:
            self.do(self.environment.__aenter__())
        except BaseException:
            self.do(_others_have_ended())  # what was opened closes itself
            self._end()
            raise

    def close(self) -> None:
        """Ends everything."""
        try:
            self.do(self.environment.__aexit__())
        finally:
            self._end()

    def _end(self) -> None:
        _CURRENT.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.environment.folder, ignore_errors=True)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, done on the environment's loop.

        Raises:
            DrillError: it takes more than three minutes.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_PATIENCE_SECONDS)
        except TimeoutError:
            future.cancel()
            raise DrillError(f"no end after {_PATIENCE_SECONDS:g} s") from None
        except KeyboardInterrupt:  # nobody waits for it any more
            future.cancel()
            raise

    def judge(self) -> JudgedRun:
        """The verdict on what the topics hold now."""
        self.judged, self._topics = self.do(judge(self.environment, self.captured))
        return self.judged

    def finish(self) -> None:
        """Runs the stream to its end, and captures what the service shows then."""
        self.do(self.environment.finish())
        self.captured = self.do(capture(self.environment))

    def timeline(self) -> DrillTimeline:
        return timeline(self.environment, self._topics)


async def _others_have_ended() -> None:
    """On this loop, or half a minute has passed."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=30)


def current() -> Session:
    """The drill that is under way.

    Raises:
        DrillError: there is none: the experiment lacks the control `lmerge_service.drills.control`.
    """
    if not _CURRENT:
        raise DrillError(
            "no drill is under way: the experiment needs the control lmerge_service.drills.control"
        )
    return _CURRENT[0]


def in_environment(
    work: Callable[Concatenate[Environment, P], Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """An action or a probe: the work on the environment of the drill that is under way.

    Its signature is the work's, less the environment: the toolkit checks arguments by it.
    """

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        session = current()
        return session.do(work(session.environment, *args, **kwargs))

    signature = inspect.signature(work)
    _, *parameters = signature.parameters.values()
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run
