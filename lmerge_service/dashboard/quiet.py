"""Which replicas bring nothing new while the output goes on: seen seconds after one has died, long
before its worker reports it.

Theory
    A replica that publishes seldom is not dead: where nothing goes on, nobody is quiet. So a
    replica counts as quiet from its last change to the last one of the output, and not to now. The
    output goes on when its stable point rises, which takes another replica.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lmerge_service.dashboard.merged import MergeView, ReplicaRow

__all__ = ("LEAST_SECONDS", "Quiet")

LEAST_SECONDS: Final = 10.0
"""Shorter pauses are nobody's business."""


@dataclass(slots=True)
class _Seen:
    """The last change, and when it was."""

    what: object
    at: float


class Quiet:
    """Of one merge; brought up to date with each picture of it."""

    def __init__(self) -> None:
        self._output = _Seen(None, 0.0)
        self._replicas: dict[str, _Seen] = {}

    def take(self, at: float, view: MergeView) -> None:
        """A picture at a time (Unix, in seconds). What is not known now is nobody's fault."""
        if not view.known:
            self._replicas.clear()
            return
        rows = {each.name: each for each in view.replicas}
        self._replicas = {
            name: _changed(self._replicas.get(name), _progress(row), at)
            for name, row in rows.items()
        }
        self._output = _changed(self._output, view.stable_point, at)

    @property
    def seconds(self) -> Mapping[str, float]:
        """How long each replica has been quiet that is."""
        found = {name: self._output.at - seen.at for name, seen in self._replicas.items()}
        return {name: quiet for name, quiet in found.items() if quiet >= LEAST_SECONDS}


def _progress(row: ReplicaRow) -> object:
    """What rises with each element of a replica that is merged; one in another state, that has
    ended, or that a guard holds, is not expected to bring anything: it changes all the time."""
    if row.state != "joined" or row.ended or row.held:
        return None
    return row.stable_point, *(row.counts[kind] for kind in ("inserts", "adjusts", "stables"))


def _changed(seen: _Seen | None, what: object, at: float) -> _Seen:
    return seen if seen is not None and what is not None and seen.what == what else _Seen(what, at)
