"""What the dashboard watches, kept up to date while it runs."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lmerge_service.config.topology import Topology
from lmerge_service.dashboard.model import Model
from lmerge_service.dashboard.polling import Target, asking

__all__ = ("Watched",)

_LEAST_SECONDS: Final = 0.5
_MOST_SECONDS: Final = 3.0
"""Less than what charts draw as a gap."""
_REST: Final = 100.0
"""For so many times as long as it took to take answers, the model stays as it is."""


@dataclass(slots=True)
class Watched:
    """What is asked, and what is known of it."""

    targets: Sequence[Target]
    topologies: Mapping[str, tuple[Topology, str]] = field(default_factory=dict)
    """By the topic of the output, where files were given: they have where Kafka is. Each with its
    path."""
    who: str = "somebody at the dashboard"
    """Who decides, for the control log."""
    model: Model = field(default_factory=Model)

    async def keep_up(self) -> None:
        """Asks, and brings the model up to date, until it is cancelled: at most twice a second, at
        least each three seconds, in between so seldom that it takes a hundredth of a core."""
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(asking(self.targets, changed), name="asking")
            while True:
                await changed.wait()
                changed.clear()
                began = time.process_time()
                self.model.take(time.time(), {each.address: each.answer for each in self.targets})
                rest = _REST * (time.process_time() - began)
                await asyncio.sleep(min(max(rest, _LEAST_SECONDS), _MOST_SECONDS))
