"""`lmerge watch`: the status of one or several workers, live.

Who owns what
    The command owns the terminal while it runs: the alternate screen, and the keyboard without
    echo. Both are given back however it ends. A worker that goes away is shown as away, and asked
    again each second.
"""

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import typer

from lmerge_service.cli.options import option
from lmerge_service.cli.words import printable
from lmerge_service.cli.workers import AT, WorkerAccess, address_of
from lmerge_service.dashboard.rates import Rates
from lmerge_service.signals import orderly_end

if TYPE_CHECKING:
    import asyncio

    import httpx
    from rich.console import RenderableType

__all__ = ("WorkerView", "changed", "changes", "seen_now", "snapshots", "watch")

_EVERY_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0


def watch(
    at: list[str] | None = option(
        "URL", "A worker; may be given several times.", envvar="LMERGE_WORKER", default=None
    ),
    *,
    access: WorkerAccess,
) -> None:
    """Watch workers live: who leads, how fast, what is wrong. Ends with q or Ctrl-C.

    Where no terminal is, it writes a line for each change.

    Example: `lmerge watch --at http://10.0.0.1:8321 --at http://10.0.0.2:8321`
    """
    import asyncio

    addresses = list(dict.fromkeys(map(address_of, at or [AT])))
    settings = [access.settings(address) for address in addresses]
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        asyncio.run(_live(addresses, settings))
    else:
        asyncio.run(_lines(addresses, settings))


# --- what is seen, and how fast it changes --------------------------------------------------------


@dataclass(slots=True)
class WorkerView:
    """What is known of one worker now."""

    address: str
    status: dict[str, Any] | None = None
    """Its last answer; None while it is away."""
    away: str | None = "nothing is known yet"
    """Why there is no answer."""
    rates: Rates = field(default_factory=Rates)

    def take(self, now: float, status: dict[str, Any] | None, away: str | None) -> None:
        """An answer, or why there was none."""
        self.status, self.away = status, away
        if status is None:
            self.rates = Rates()
        else:
            self.rates.take(now, dict(_counts(status)))


def _counts(status: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Counts by replica, and of all that comes in (`<`) and goes out (`>`)."""
    for each in status.get("replicas", ()):
        if (count := _elements(each)) is not None:
            yield str(each.get("name")), count
    if (published := _elements(status.get("output") or {})) is not None:
        yield ">", published
    if isinstance(read := status.get("elements_in"), int):
        yield "<", read


def _elements(counts: Mapping[str, Any]) -> int | None:
    found = [counts.get(kind) for kind in ("inserts", "adjusts", "stables")]
    known = [count for count in found if isinstance(count, int)]
    return sum(known) if len(known) == len(found) else None


async def _ask(client: "httpx.AsyncClient", seen: WorkerView) -> None:
    import httpx

    try:
        answer = await client.get("/status")
        document = answer.json()
        if not answer.is_success or not isinstance(document, dict):
            raise ValueError(f"answers {answer.status_code}")  # noqa: TRY301 - as no JSON does
    except httpx.TransportError as error:
        seen.take(time.monotonic(), None, str(error) or type(error).__name__)
    except ValueError as error:
        seen.take(time.monotonic(), None, f"is no worker that we understand: {error}")
    else:
        seen.take(time.monotonic(), document, None)


async def snapshots(
    addresses: Sequence[str], settings: Sequence[Mapping[str, Any]], stop: "asyncio.Event"
) -> AsyncIterator[list[WorkerView]]:
    """What is known of each worker, each second, until it is stopped."""
    import asyncio

    import httpx

    workers = [WorkerView(address) for address in addresses]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(**each, timeout=_ANSWER_SECONDS))
            for each in settings
        ]
        while not stop.is_set():
            started = time.monotonic()
            await asyncio.gather(*map(_ask, clients, workers))
            yield workers
            rest = _EVERY_SECONDS - (time.monotonic() - started)
            try:
                async with asyncio.timeout(max(0.0, rest)):
                    await stop.wait()
            except TimeoutError:
                continue


# --- on a terminal --------------------------------------------------------------------------------


async def _live(addresses: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> None:
    import asyncio

    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    stop = asyncio.Event()
    console = Console(highlight=False)
    with _keys(stop), Live(console=console, screen=True, auto_refresh=False) as live:
        async for workers in snapshots(addresses, settings, stop):
            live.update(Group(*seen_now(workers), Text("q ends this", "dim")), refresh=True)


def seen_now(workers: Sequence[WorkerView]) -> "list[RenderableType]":
    """What is known of each worker, one below the other."""
    from rich.text import Text

    from lmerge_service.service.status import shown

    parts: list[RenderableType] = []
    for seen in workers:
        parts.append(Text(seen.address, style="dim"))
        if seen.status is None:
            parts.append(Text(f"away: {printable(str(seen.away))}", style="bold red"))
        else:
            names = [str(each.get("name")) for each in seen.status.get("replicas", ())]
            rates = {name: seen.rates.of(name) for name in names}
            parts += [
                shown.headline(seen.status),
                _speed(seen.rates),
                *shown.reasons(seen.status),
                *shown.cutover_of(seen.status),
                shown.replicas_table(seen.status, rates=rates),
                *shown.notes(seen.status),
            ]
        parts.append(Text())
    return parts


def _speed(rates: Rates) -> "RenderableType":
    from rich.text import Text

    into, out = (rates.of(key) for key in "<>")
    rates_shown = ["?" if rate is None else f"{rate:,.0f}" for rate in (into, out)]
    return Text(f"{rates_shown[0]} elements/s in, {rates_shown[1]} elements/s out")


@contextmanager
def _keys(stop: "asyncio.Event") -> Iterator[None]:
    """Lets q, Ctrl-C and SIGTERM set `stop`; keys only where standard input is a terminal."""
    import asyncio
    import termios
    import tty

    loop = asyncio.get_running_loop()
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None
    if keyboard is not None:
        before = termios.tcgetattr(keyboard)
        tty.setcbreak(keyboard)

        def pressed() -> None:
            key = os.read(keyboard, 1_024)
            if not key or key.lower().startswith(b"q"):
                stop.set()

        loop.add_reader(keyboard, pressed)
    with orderly_end(lambda _: loop.call_soon_threadsafe(stop.set)):
        try:
            yield
        finally:
            if keyboard is not None and before is not None:
                loop.remove_reader(keyboard)
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


# --- elsewhere ------------------------------------------------------------------------------------


async def _lines(addresses: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> None:
    import asyncio

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    known: dict[str, str] = {}
    with orderly_end(lambda _: loop.call_soon_threadsafe(stop.set)):
        async for workers in snapshots(addresses, settings, stop):
            for line in changes(workers, known):
                typer.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}")
            sys.stdout.flush()


def changes(workers: Sequence[WorkerView], known: dict[str, str]) -> Iterator[str]:
    """A line for each worker that is not as it is `known`, which is brought up to date."""
    from lmerge_service.service.status.shown import summary

    for seen in workers:
        text = "is away" if seen.status is None else summary(seen.status)
        yield from changed(known, seen.address, text)


def changed(known: dict[str, str], name: str, text: str) -> Iterator[str]:
    """What is to be shown of something, if that is not what is `known` of it."""
    if known.get(name) != text:
        known[name] = text
        yield f"{name} {text}"
