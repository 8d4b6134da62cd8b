"""A TCP proxy that injects network faults, by the names of toxiproxy.

Theory
    A `Proxy` listens on a port of its own for each of its targets and passes bytes to it and back.
    Its *toxics* may be changed at any time, and hold for the connections there are as well as for
    new ones. A toxic has the name and the attributes that it has in toxiproxy, and works on the
    *downstream* (bytes from the target, the default there too) or on the *upstream* (bytes from the
    client):

        latency      each piece comes `latency` milliseconds later, plus or minus `jitter`
        bandwidth    so many kilobytes a second, `rate`
        timeout      all bytes are dropped silently; after `timeout` milliseconds the connection is
                     closed, with 0 never: a black hole
        reset_peer   after `timeout` milliseconds the connection is reset (RST) on both sides
        slicer       pieces of `average_size` bytes, with `delay` microseconds between them

    Of Kafka it knows one thing, since faults in the middle of a transaction need it: how requests
    are framed. A *trap* waits for a request of one kind and calls a function, before the request is
    forwarded or after it.

Who owns what
    A proxy owns its listener and its connections; leaving it closes them all.

Invariants
    P1  Bytes are delayed, held or lost with their connection, never changed or reordered.
    P2  What waits is bounded: a direction that does not get rid of its bytes does not read on.
"""

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Self, TypeAlias

__all__ = ("API_KEYS", "TOXICS", "Proxy", "Target", "Toxic", "Trap", "toxic")

Target: TypeAlias = Callable[[], tuple[str, int]]
"""Host and port, asked for at each connection, since what is behind may move."""
Direction: TypeAlias = Literal["upstream", "downstream"]
Moment: TypeAlias = Literal["before", "after"]

TOXICS: Final = {
    "latency": {"latency": 0, "jitter": 0},
    "bandwidth": {"rate": 0},
    "timeout": {"timeout": 0},
    "reset_peer": {"timeout": 0},
    "slicer": {"average_size": 0, "delay": 0},
}
"""Kinds, and the defaults of their attributes."""

API_KEYS: Final = {
    "Produce": 0,
    "Fetch": 1,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "EndTxn": 26,
}
"""Requests that a trap may wait for, as Kafka numbers them."""

_PIECE: Final = 1 << 16
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Toxic:
    """A fault of one direction."""

    kind: str
    stream: Direction
    attributes: dict[str, int]

    def __getitem__(self, attribute: str) -> int:
        return self.attributes[attribute]


def toxic(kind: str, stream: Direction = "downstream", **attributes: int) -> Toxic:
    """A toxic by its kind, direction and attributes.

    >>> toxic("latency", latency=100).attributes
    {'latency': 100, 'jitter': 0}

    Raises:
        ValueError: there is no such toxic, direction or attribute, or a number is negative.
    """
    if kind not in TOXICS:
        raise ValueError(f"there is no toxic {kind!r}: choose from {', '.join(TOXICS)}")
    if stream not in ("upstream", "downstream"):
        raise ValueError(f"{stream!r} is neither upstream nor downstream")
    if strange := sorted(set(attributes) - set(TOXICS[kind])):
        known = ", ".join(TOXICS[kind])
        raise ValueError(f"{kind} has no attribute {strange[0]!r}: it has {known}")
    if wrong := [name for name, value in attributes.items() if value < 0]:
        raise ValueError(f"{kind}: {wrong[0]} must not be negative")
    return Toxic(kind, stream, TOXICS[kind] | attributes)


@dataclass(frozen=True, slots=True)
class Trap:
    """Waits for a request, once."""

    api_key: int
    moment: Moment
    """Before the request is forwarded, or after: the target has it, and its response is held."""
    sprung: Callable[[], Awaitable[bool]]
    """Is awaited; returns whether the connection goes on. If not, it is reset."""


class Proxy:
    """A link into which faults can be injected; use as `async with`."""

    def __init__(self, *targets: Target, traps: bool = False):
        """It is on a free port for each target. `traps`: the client speaks Kafka's protocol."""
        self.traps = traps
        self._targets = targets
        self._toxics: dict[tuple[Direction, str], Toxic] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self.trap: Trap | None = None

    async def __aenter__(self) -> Self:
        for target in self._targets:
            serving = partial(self.serve, target)
            self._servers.append(await asyncio.start_server(serving, _HOST, 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    @property
    def ports(self) -> list[int]:
        """One for each target."""
        return [int(server.sockets[0].getsockname()[1]) for server in self._servers]

    @property
    def port(self) -> int:
        """The first target's."""
        return self.ports[0]

    # --- toxics --------------------------------------------------------------------------------

    def add(self, toxic: Toxic) -> str:
        """From now on, in place of one of this kind and stream; returns its name as toxiproxy has
        it."""
        self._toxics[toxic.stream, toxic.kind] = toxic
        self._notify()
        return f"{toxic.kind}_{toxic.stream}"

    def cut(self) -> None:
        """Drops all bytes silently in both directions, from now on."""
        self.add(toxic("timeout", "upstream"))
        self.add(toxic("timeout", "downstream"))

    def reset(self) -> None:
        """No toxic, and no trap."""
        self._toxics.clear()
        self.trap = None
        self._notify()

    def of(self, stream: Direction, kind: str) -> Toxic | None:
        """The toxic of a kind that holds for a direction, if there is one."""
        return self._toxics.get((stream, kind))

    def _notify(self) -> None:
        """Wakes all that wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        """Returns when toxics have changed."""
        await self._changed.wait()

    # --- connections ---------------------------------------------------------------------------

    async def serve(
        self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A connection that has come, here or elsewhere, until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            far = await asyncio.open_connection(*target())
            await _Link(self, (reader, writer), far).run()
        except (OSError, asyncio.CancelledError):
            pass  # the target is down, or the proxy is left, which waits for what follows
        finally:
            _abort(writer)
            self._serving.discard(task)


_Pair: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through a proxy."""

    def __init__(self, proxy: Proxy, near: _Pair, far: _Pair):
        self._proxy = proxy
        self._near, self._far = near, far
        self._requests = _Requests() if proxy.traps else None
        self._answers = asyncio.Event()
        self._answers.set()

    async def run(self) -> None:
        """Until both sides have closed, or one is gone; then the other is closed, too."""
        passing = asyncio.gather(
            self._pass("upstream", self._near[0], self._far[1]),
            self._pass("downstream", self._far[0], self._near[1]),
        )
        resetting = asyncio.create_task(self._reset())
        in_order = False
        try:
            await asyncio.wait((passing, resetting), return_when=asyncio.FIRST_COMPLETED)
            in_order = passing.done() and passing.exception() is None
        finally:
            passing.cancel()
            resetting.cancel()
            writers = (self._near[1], self._far[1])
            for writer in writers:
                writer.close() if in_order else _abort(writer)
            await asyncio.gather(passing, resetting, return_exceptions=True)
            await asyncio.gather(*(w.wait_closed() for w in writers), return_exceptions=True)

    async def _pass(
        self, stream: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One direction, until its reader has no more."""
        while data := await reader.read(_PIECE):
            for piece in self._pieces(stream, data):
                await self._forward(stream, piece, writer)
        await self._hold(stream)
        writer.write_eof()

    def _pieces(self, stream: Direction, data: bytes) -> Iterable[bytes]:
        return self._requests.cut(data) if self._requests and stream == "upstream" else (data,)

    async def _forward(self, stream: Direction, piece: bytes, writer: asyncio.StreamWriter) -> None:
        await self._hold(stream)
        if stream == "downstream":
            await self._answers.wait()
        trap = self._trap() if stream == "upstream" else None
        if trap is not None and trap.moment == "before":
            await self._spring(trap)
        await self._delay(stream)
        await self._write(stream, piece, writer)
        if trap is not None and trap.moment == "after":
            await self._spring(trap)
            self._answers.set()

    async def _spring(self, trap: Trap) -> None:
        if not await trap.sprung():
            raise ConnectionAbortedError

    def _trap(self) -> Trap | None:
        """The trap, if this request is the one that it waits for."""
        trap = self._proxy.trap
        if trap is None or self._requests is None or self._requests.current != trap.api_key:
            return None
        self._proxy.trap = None
        if trap.moment == "after":
            self._answers.clear()
        return trap

    async def _hold(self, stream: Direction) -> None:
        """A black hole, for as long as there is one."""
        while (toxic := self._proxy.of(stream, "timeout")) is not None:
            seconds = toxic["timeout"] / 1_000 or None
            try:
                async with asyncio.timeout(seconds):
                    await self._proxy.changed()
            except TimeoutError:
                raise ConnectionAbortedError from None

    async def _delay(self, stream: Direction) -> None:
        if (toxic := self._proxy.of(stream, "latency")) is not None:
            jitter = toxic["jitter"]
            await asyncio.sleep(max(0, toxic["latency"] + random.randint(-jitter, jitter)) / 1_000)

    async def _write(self, stream: Direction, piece: bytes, writer: asyncio.StreamWriter) -> None:
        slicer = self._proxy.of(stream, "slicer")
        size = (slicer and slicer["average_size"]) or len(piece)
        for start in range(0, len(piece), size):
            some = piece[start : start + size]
            if (bandwidth := self._proxy.of(stream, "bandwidth")) is not None:
                await self._afford(len(some), bandwidth["rate"])
            writer.write(some)
            await writer.drain()
            if slicer is not None:
                await asyncio.sleep(slicer["delay"] / 1_000_000)

    async def _afford(self, size: int, rate: int) -> None:
        """Waits for as long as so many bytes take; with no rate at all, for a change."""
        if rate:
            await asyncio.sleep(size / (rate * 1_024))
        else:
            await self._proxy.changed()

    async def _reset(self) -> None:
        """Ends when the connection is to be reset."""
        while True:
            either = [self._proxy.of(stream, "reset_peer") for stream in ("upstream", "downstream")]
            if toxic := next(filter(None, either), None):
                await asyncio.sleep(toxic["timeout"] / 1_000)
                return
            await self._proxy.changed()


class _Requests:
    """Finds where Kafka's requests begin: each is its length (4 bytes) and what it is (2 bytes)."""

    def __init__(self) -> None:
        self.current: int | None = None
        """What begins with the piece that was given last; None: it goes on with an earlier one."""
        self._left = 0
        self._head = b""

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The same bytes, in pieces of which each has of one request only."""
        data = self._head + data
        self._head = b""
        while data:
            if self._left:
                self.current = None
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                yield piece
                continue
            if len(data) < 6:
                self._head = data
                return
            size, self.current = struct.unpack(">ih", data[:6])
            piece, data = data[: 4 + size], data[4 + size :]
            self._left = 4 + size - len(piece)
            yield piece


def _abort(writer: asyncio.StreamWriter) -> None:
    """RST, and nothing more."""
    if (sock := writer.get_extra_info("socket")) is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
