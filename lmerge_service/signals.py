"""Signals that ask a process to end: the first one counts, and its orderly end is not cut short.

Theory
    A process may be asked to end more than once: GNU `timeout` signals the process and then its
    group, a terminal signals a wrapper and what it wraps, a supervisor repeats itself. What an
    orderly end protects (a token, a commit, a group's membership, children) would be lost if the
    second request found the default handler again.

        before the first    the handler that was there comes back when the context is left
        from the first on   SIGTERM and SIGINT change nothing any more, until the process is gone;
                            but a SIGINT `INSIST_SECONDS` after the first, within the context,
                            raises KeyboardInterrupt: a person insists

Invariants
    S1  `end` is called once, by the first signal.
    S2  Once a signal has come, no default handler is ever installed again: Python and asyncio
        reset theirs while a process ends, but leave ignored signals ignored.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    import asyncio

__all__ = ("INSIST_SECONDS", "cancelled_by_signal", "orderly_end", "raise_exit")

_BOTH: Final = (signal.SIGTERM, signal.SIGINT)
INSIST_SECONDS: Final = 1.0
"""Later than this, a second SIGINT is no echo of the first."""


@contextmanager
def orderly_end(
    end: Callable[[int], object], numbers: Sequence[signal.Signals] = _BOTH
) -> Iterator[None]:
    """Calls `end` with the first of these signals that comes within; on the main thread.

    `end` runs between two bytecodes, as any handler of Python's: with asyncio it has to use the
    loop's `call_soon_threadsafe`. Contexts may be nested; the inner one counts.
    """
    first: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            end(number)
        elif number == signal.SIGINT and time.monotonic() - first >= INSIST_SECONDS:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        if first is not None:
            for number in _BOTH:
                signal.signal(number, signal.SIG_IGN)
        else:
            for number, found in before.items():
                if signal.getsignal(number) is handle:  # else an inner context's signal has come
                    signal.signal(number, found)


@contextmanager
def cancelled_by_signal(task: "asyncio.Task[Any]") -> Iterator[None]:
    """The first of the signals that comes within cancels a task of this thread's loop."""
    threadsafe = task.get_loop().call_soon_threadsafe
    with orderly_end(lambda _: threadsafe(task.cancel)):
        yield


def raise_exit(number: int) -> NoReturn:
    """An `end` for what is interrupted wherever it is, without a loop.

    Raises:
        KeyboardInterrupt: of SIGINT.
        SystemExit: with the exit code that a shell gives a process that a signal has ended.
    """
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
