"""What is seen while the demo runs: the worker's status, and what its consumer has received."""

from datetime import UTC, datetime
from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmerge_service.local.follower import Follower
from lmerge_service.service.status.document import Status

__all__ = ("plain_line", "screen")


def screen(status: Status | None, follower: Follower, news: list[str]) -> Group:
    """The live view of a terminal."""
    if status is None:
        return Group(Text("the worker is starting …"))
    table = Table(title="three replicas, one stream", title_justify="left", expand=False)
    for name, justify in _COLUMNS:
        table.add_column(name, justify=justify)
    for each in status.replicas:
        share = "–" if each.share_first is None else f"{each.share_first:.0%}"
        lag = "?" if each.lag_records is None else f"{each.lag_records:,}"
        elements = each.inserts + each.adjusts + each.stables
        silent = each.silent_seconds
        state: str = "ended" if each.ended else each.state
        if not each.ended and silent is not None and silent > 2:
            state += f", silent for {silent:.0f} s"
        incarnation = f" #{each.incarnation}" if each.incarnation else ""
        table.add_row(
            each.name + incarnation, state, _when(each.stable_point, each.ended), lag,
            f"{elements:,}", share,
        )  # fmt: skip
    out = status.output
    table.add_section()
    table.add_row(
        "output", f"led by {out.leader or 'nobody'}", _when(out.stable_point, out.ended), "",
        f"{follower.elements:,}", f"{follower.rate():,.0f}/s",
    )  # fmt: skip
    latency = "–" if out.commit_ms_p50 is None else f"{out.commit_ms_p50} / {out.commit_ms_p99} ms"
    below = Text(f"read to commit p50 / p99: {latency}   live events: {out.live_events:,}")
    return Group(table, below, *(Text(f"• {line}", style="bold") for line in news[-4:]))


_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("replica", "left"),
    ("state", "left"),
    ("stable point", "left"),
    ("lag", "right"),
    ("elements", "right"),
    ("first", "right"),
)


def plain_line(status: Status | None, follower: Follower, elapsed: float) -> str:
    """The same in one line, for logs."""
    if status is None:
        return f"{elapsed:5.1f} s  the worker is starting"
    replicas = "  ".join(
        f"{each.name}: {'ended' if each.ended else each.state} "
        f"{_when(each.stable_point, each.ended)} "
        f"first {'–' if each.share_first is None else format(each.share_first, '.0%')}"
        for each in status.replicas
    )
    out = status.output
    return (
        f"{elapsed:5.1f} s  output {_when(out.stable_point, out.ended)}, {follower.elements:,} "
        f"elements, {follower.rate():,.0f}/s, led by {out.leader or 'nobody'}  |  {replicas}"
    )


def _when(stable: int | None, ended: bool) -> str:
    if ended:
        return "∞"
    if stable is None:
        return "–"
    return datetime.fromtimestamp(stable / 1000, UTC).strftime("%d %b %H:%M")
