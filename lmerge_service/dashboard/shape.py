"""The shape of a merge as a picture: replicas, the workers with their tasks, the output.

A state has a colour, a mark and a word, so that none of them is needed alone. Of many replicas
those that lead or need somebody are drawn, and the others as one box for each state.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from lmerge_service.dashboard.merged import MergeView, ReplicaRow, WorkerRow
from lmerge_service.text import moment

__all__ = ("Box", "Shape", "mark_of", "shape_of", "tone_of", "worker_tone")

_MOST: Final = 9
_STEP: Final = 54
_BOX: Final = 44
_LONGEST: Final = 30

_TONES: Final = {
    "joined": ("good", "●"),
    "joining": ("new", "◔"),
    "paused": ("warn", "‖"),
    "excluded": ("bad", "✕"),
    "quarantined": ("bad", "■"),
    "ended": ("still", "○"),
}
_OTHER: Final = ("still", "○")


@dataclass(frozen=True, slots=True)
class Box:
    """A replica, a worker or the output."""

    name: str
    word: str
    tone: str
    mark: str
    top: int = 0
    leads: bool = False
    off: bool = False
    """Nothing comes from it."""
    more: str = ""

    @property
    def middle(self) -> int:
        return self.top + _BOX // 2


@dataclass(frozen=True, slots=True)
class Shape:
    """What is drawn, with places in a picture that is 900 wide."""

    height: int
    middle: int
    replicas: Sequence[Box]
    workers: Sequence[Box]
    merge_top: int
    merge_height: int
    tasks: str
    output: Box
    described: str


def tone_of(row: ReplicaRow, *, quiet: bool = False) -> str:
    """The class of a replica's colour."""
    return _look(row, quiet)[0]


def mark_of(row: ReplicaRow, *, quiet: bool = False) -> str:
    """The sign of a replica's state."""
    return _look(row, quiet)[1]


def _look(row: ReplicaRow, quiet: bool) -> tuple[str, str]:
    if row.word.startswith("joined,"):
        return "warn", "▲"
    if row.state == "joined" and (quiet or row.disagrees or row.unconfirmed or row.held):
        return "warn", "▲"
    return _TONES.get(row.word, _OTHER)


def worker_tone(row: WorkerRow) -> tuple[str, str]:
    """The class of a worker's colour, and its sign."""
    if row.state == "away":
        return "bad", "✕"
    if row.state not in {"running", "standby"}:
        return "new", "◔"
    return ("good", "●") if row.health == "ok" else ("warn", "▲")


def shape_of(view: MergeView, quiet: Collection[str] = ()) -> Shape:
    """The picture of a merge, of which these replicas bring nothing new."""
    replicas, workers = _replicas(view, quiet), _workers(view)
    rows = max(len(replicas), len(workers) + 1, 2)
    height = rows * _STEP + 8
    merge_height = len(workers) * _STEP + 32
    merge_top = (height - merge_height) // 2
    return Shape(
        height=height,
        middle=height // 2,
        replicas=_placed(replicas, (height - len(replicas) * _STEP) // 2 + 5),
        workers=_placed(workers, merge_top + 28),
        merge_top=merge_top,
        merge_height=merge_height,
        tasks=_tasks(view),
        output=_output(view),
        described=f"{len(view.replicas)} replicas are merged by {len(view.workers)} workers into "
        f"{view.topic}; {view.leader or 'nobody'} leads",
    )


def _placed(boxes: Sequence[Box], first: int) -> list[Box]:
    return [
        Box(b.name, b.word, b.tone, b.mark, first + at * _STEP, b.leads, b.off, b.more)
        for at, b in enumerate(boxes)
    ]


def _replicas(view: MergeView, quiet: Collection[str]) -> list[Box]:
    def look(row: ReplicaRow) -> tuple[str, str]:
        return _look(row, row.name in quiet)

    def word(row: ReplicaRow) -> str:
        return "joined, quiet" if row.name in quiet and row.word == "joined" else row.word

    order = {"bad": 0, "warn": 1, "new": 2, "good": 3, "still": 4}
    rows = list(view.replicas)
    if len(rows) > _MOST:
        rows.sort(key=lambda each: (not each.leads, order[look(each)[0]], each.name))
    drawn = rows if len(rows) <= _MOST else rows[: _MOST - 3]
    left = Counter((*look(each), word(each)) for each in rows[len(drawn) :])
    boxes = [
        Box(
            _cut(each.name), _cut(word(each), 38), *look(each), leads=each.leads,
            off=each.ended or each.name in quiet
            or each.state in {"excluded", "quarantined", "paused", "gone"},
        )
        for each in drawn
    ]  # fmt: skip
    for (tone, mark, state), count in left.most_common(3):
        boxes.append(Box(f"{count} more", state, tone, mark))
    return boxes


def _workers(view: MergeView) -> list[Box]:
    boxes = []
    for each in view.workers[:_MOST]:
        tone, mark = worker_tone(each)
        word = each.state
        if each.state != "away":
            word += f", leads {len(each.leads)}, follows {len(each.follows)}"
        boxes.append(Box(urlsplit(each.address).netloc[-24:], word, tone, mark))
    if (left := len(view.workers) - _MOST) > 0:
        boxes.append(Box(f"{left} more workers", "see the table", *_OTHER))
    return boxes


def _tasks(view: MergeView) -> str:
    led = sum(task.worker is not None for task in view.tasks)
    tasks = len(view.tasks)
    return f"{tasks} task{'' if tasks == 1 else 's'}" + ("" if led == tasks else f", {led} led")


def _output(view: MergeView) -> Box:
    point = view.stable_point
    until = "?" if point is None else moment(point, view.time_unit)
    word = "complete" if view.ended else f"final up to {until}"
    tone = "bad" if not view.known else "warn" if view.gap else "good"
    more = f"led by {view.leader}" if view.leader else "led by nobody"
    return Box(_cut(view.topic, 32), word, tone, "●", more=_cut(more))


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
