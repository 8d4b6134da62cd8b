"""What is seen while the demo runs: the worker's status, and the output as a consumer gets it."""

import time
from collections import deque
from datetime import UTC, datetime
from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.client import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.service.status.document import Status

__all__ = ("Follower", "plain_line", "screen")


class Follower:
    """A read_committed consumer of the output, who notes when each event first appeared."""

    def __init__(self, connection: Connection, topic: str):
        self._connection = connection
        self._tp = TopicPartition(topic, 0)
        self.arrived: dict[tuple[bytes, int], float] = {}
        """(payload, vs) → wall-clock seconds at which its insert was received."""
        self.elements = 0
        self.ended = False
        self._recent: deque[tuple[float, int]] = deque(maxlen=50)

    async def run(self) -> None:
        """Follows until stable(infinity), or until cancelled."""
        decoder = WireDecoder()
        async with Source(self._connection) as source:
            source.assign({self._tp: 0})
            while not self.ended:
                for records in (await source.poll(0.2)).values():
                    now = time.time()
                    for record in records:
                        element = decoder.decode(record.value)
                        if type(element) is Insert:
                            self.arrived.setdefault((element.payload, element.vs), now)
                        elif type(element) is Stable and element.vc == INFINITY:
                            self.ended = True
                    self.elements += len(records)
                    self._recent.append((now, self.elements))

    def rate(self) -> float:
        """Elements a second over the last two seconds or so."""
        now = time.time()
        past = [(at, count) for at, count in self._recent if at > now - 2]
        if len(past) < 2:
            return 0.0
        (first, before), (last, after) = past[0], past[-1]
        return (after - before) / max(last - first, 0.05)


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
