"""A drill under way: a rig on an event loop of its own, for actions and probes that are no
coroutines.

Who owns what
    One `Playing` at a time is *current*; it owns a thread, and the rig in it. The Chaos Toolkit
    runs actions and probes on threads of its own, and each waits for what it has asked for.
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from lmerge_service.drills.environment import Rig, Unplayable
from lmerge_service.drills.observability_checks import Capture
from lmerge_service.drills.plan import Plan
from lmerge_service.drills.records import Topic
from lmerge_service.drills.report import Judged, Timeline, capture, judge, timeline

__all__ = ("Playing", "current", "on_rig")

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 180.0
_CURRENT: Final[list["Playing"]] = []
"""The drill that is under way, if one is."""


class Playing:
    """Opened by `open`, ended by `close`."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.failures: list[str] = []
        """Actions that did not do what they were to do."""
        self.judged: Judged | None = None
        self.captured: Capture | None = None
        self._topics: dict[str, Topic] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rig", daemon=True)
        self.folder = Path(tempfile.mkdtemp(prefix="lmerge-drill-"))
        self.rig = Rig(self.folder, self.plan)

    def open(self) -> None:
        """Starts everything.

        Raises:
            Unplayable, LMergeError: something does not start.
        """
        assert not _CURRENT, "one drill at a time"
        _CURRENT.append(self)
        self._thread.start()
        try:
            self.do(self.rig.__aenter__())
        except BaseException:
            self.do(_others_have_ended())  # what was opened closes itself
            self._end()
            raise

    def close(self) -> None:
        """Ends everything."""
        try:
            self.do(self.rig.__aexit__())
        finally:
            self._end()

    def _end(self) -> None:
        _CURRENT.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, done on the rig's loop.

        Raises:
            Unplayable: it takes more than three minutes.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_PATIENCE_SECONDS)
        except TimeoutError:
            future.cancel()
            raise Unplayable(f"no end after {_PATIENCE_SECONDS:g} s") from None
        except KeyboardInterrupt:  # nobody waits for it any more
            future.cancel()
            raise

    def judge(self) -> Judged:
        """The verdict on what the topics hold now."""
        self.judged, self._topics = self.do(judge(self.rig, self.captured))
        return self.judged

    def finish(self) -> None:
        """To the end of the stream, and what the service shows then."""
        self.do(self.rig.finish())
        self.captured = self.do(capture(self.rig))

    def timeline(self) -> Timeline:
        return timeline(self.rig, self._topics)


async def _others_have_ended() -> None:
    """On this loop, or half a minute has passed."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=30)


def current() -> Playing:
    """The drill that is under way.

    Raises:
        Unplayable: there is none: the experiment lacks the control `lmerge_service.drills.control`.
    """
    if not _CURRENT:
        raise Unplayable(
            "no drill is under way: the experiment needs the control lmerge_service.drills.control"
        )
    return _CURRENT[0]


def on_rig(work: Callable[[Rig], Coroutine[Any, Any, T]]) -> T:
    """What the work gives, of the drill that is under way."""
    playing = current()
    return playing.do(work(playing.rig))
