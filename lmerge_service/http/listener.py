"""The server's end of a connection: uvicorn's, with an end to its patience.

Theory
    uvicorn waits for ever for a request's head, and for a client that does not take its answer,
    and accepts any number of idle connections. Here a connection is closed when a
    head is not complete in time, or nothing of an answer is taken in time, or there are too many;
    the limits of a complete request are `access.Guard`'s.

Who owns what
    A `RequestTimeoutProtocol` owns one connection and two timers that end with it.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ("CONNECTIONS", "HEAD_SECONDS", "TAKE_SECONDS", "RequestTimeoutProtocol")

CONNECTIONS = 128
"""At most so many at once; from half of them on, requests are answered by 503."""
HEAD_SECONDS = 10.0
TAKE_SECONDS = 10.0


class RequestTimeoutProtocol(H11Protocol):
    """One connection."""

    _head: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_request():
            self._stop_timer("_head")
        elif self._head is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer("_head")
        self._stop_timer("_taking")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self.loop.call_later(TAKE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_timer("_taking")
        super().resume_writing()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head = None
        if not self._in_request():
            self.transport.abort()

    def _stop_timer(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
