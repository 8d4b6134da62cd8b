"""Long answers of a broker, read from the socket into the place where they stay.

Theory
    asyncio reads a connection in pieces of 256 KiB, joins them in a buffer, and copies an answer
    out of that when it is whole: a fetch of some megabytes is moved three times before anybody
    looks at it. A protocol that is *buffered* gives the memory to read into. So here a reader that
    waits for a long answer makes room for all of it, and the transport fills that; whoever waits is
    woken once, when it is whole. What is short goes through the buffer as ever, and so does the
    beginning of an answer that came with the end of another.

Who owns what
    The name `AIOKafkaProtocol` in `aiokafka.conn` is ours: each connection that the client opens
    from now on has a reader of this kind. `tests/kafka/test_frames.py` fails when aiokafka or
    asyncio does this in another way.
"""

import asyncio
import io
import threading
from typing import Any, Final

from aiokafka import conn

__all__ = ("Frames",)

_LONG: Final = 1 << 16
"""From so many bytes on an answer has a place of its own."""
_LONGEST: Final = 1 << 28
"""Nobody asks for more: a length beyond that is believed when so much has come."""


class _Piece(threading.local):
    """Of a thread: what was read into it is taken out before its loop reads anything else."""

    def __init__(self) -> None:
        self.bytes = memoryview(bytearray(_LONG))


_piece: Final = _Piece()


class Frames(asyncio.StreamReader):
    """A stream's reader; `_place` is where a long answer goes, while somebody waits for it."""

    _place: memoryview | None
    _filled: int

    def begin(self) -> None:
        """Nothing was read yet."""
        self._place, self._filled = None, 0

    def room(self) -> memoryview:
        """Where to read into."""
        return _piece.bytes if self._place is None else self._place[self._filled :]

    def filled(self, size: int) -> None:
        """So many bytes were read into that."""
        if self._place is None:
            self.feed_data(_piece.bytes[:size])
            return
        self._filled += size
        if self._filled == len(self._place):
            self._place = None  # what comes before its reader runs is of another answer
            self._wakeup_waiter()  # type: ignore[attr-defined]

    async def readexactly(self, n: int) -> bytes:
        """See `asyncio.StreamReader`."""
        had = len(self._buffer)  # type: ignore[attr-defined]
        if had >= n or not _LONG <= n <= _LONGEST or self.exception() is not None:
            return await super().readexactly(n)
        whole = io.BytesIO(bytes(n))  # shares its bytes, at the beginning and at the end
        self._place = place = whole.getbuffer()
        self._filled = had
        place[:had] = self._buffer  # type: ignore[attr-defined]
        self._buffer.clear()  # type: ignore[attr-defined]
        self._maybe_resume_transport()  # type: ignore[attr-defined]
        try:
            while self._filled < n:
                if self._eof:  # type: ignore[attr-defined]
                    raise asyncio.IncompleteReadError(bytes(place[: self._filled]), n)
                await self._wait_for_data("readexactly")  # type: ignore[attr-defined]
        finally:
            self._place = None
            place.release()  # while there is a view of them, its bytes would be copied
        return whole.getvalue()


class _Protocol(conn.AIOKafkaProtocol, asyncio.BufferedProtocol):  # type: ignore[misc]
    """Of one connection: has the transport read into what the reader gives."""

    def __init__(self, closed: Any, reader: asyncio.StreamReader, **how: Any):
        super().__init__(closed, reader, **how)
        reader.__class__ = Frames
        assert isinstance(reader, Frames)
        reader.begin()

    def get_buffer(self, sizehint: int) -> memoryview:
        reader = self._stream_reader  # referred to weakly, so that a client that is lost is closed
        return _piece.bytes if reader is None else reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        if (reader := self._stream_reader) is not None:
            reader.filled(nbytes)


conn.AIOKafkaProtocol = _Protocol
