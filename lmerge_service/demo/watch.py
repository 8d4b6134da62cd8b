"""What is seen while the demo runs: the worker's status, and what its consumer has received."""

from rich.console import Group
from rich.text import Text

from lmerge_service.local.follower import Follower
from lmerge_service.service.status.document import Status
from lmerge_service.service.status.shown import headline, progress, replicas_table

__all__ = ("plain_line", "screen")


def screen(status: Status | None, follower: Follower, news: list[str]) -> Group:
    """The live view of a terminal."""
    if status is None:
        return Group(Text("the worker is starting …"))
    document, out = status.model_dump(), status.output
    latency = "?" if out.commit_ms_p50 is None else f"{out.commit_ms_p50} / {out.commit_ms_p99} ms"
    below = Text(
        f"\na consumer has {_received(follower)}; read to commit p50 / p99: {latency}; "
        f"live events: {out.live_events:,}"
    )
    latest = (Text(f"• {line}", style="bold") for line in news[-4:])
    return Group(headline(document), Text(), replicas_table(document), below, *latest)


def plain_line(status: Status | None, follower: Follower, elapsed: float) -> str:
    """The same in one line, for logs."""
    if status is None:
        return f"{elapsed:5.1f} s  the worker is starting"
    return f"{elapsed:5.1f} s  {_received(follower)}  |  {progress(status.model_dump())}"


def _received(follower: Follower) -> str:
    return f"{follower.elements:,} elements, {follower.rate():,.0f}/s"
