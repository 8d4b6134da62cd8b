"""What the commands that run a replica share: how its run ends, and what is reported of that."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lmerge_service.cli.words import report
from lmerge_service.signals import orderly_end

__all__ = ("conclude", "stop_on_sigterm")


def conclude(to: str, ended: bool, *, as_json: bool) -> None:
    """Reports how a replica's run ended: with its input, or by a signal."""
    line = f"{to}: {'ended' if ended else 'stopped'}"
    report({"ended": ended}, line, as_json=as_json, err=True)


@contextmanager
def stop_on_sigterm() -> Iterator[Any]:
    """A function: has SIGTERM come? From then on another one does not interrupt what is left."""
    signals: list[int] = []
    with orderly_end(signals.append, [signal.SIGTERM]):
        yield lambda: bool(signals)
