"""A small stream, written here and now: a process for it would cost more than its bytes.

Theory
    A fork copies the page tables of the whole worker, and whatever either process writes to
    afterwards is copied page by page: 10 to 20 ms of a worker that has 150 MB, however little there
    is to write. A worker that leads many tasks has little of each.
"""

from collections.abc import AsyncGenerator, Iterator

__all__ = ("WrittenAtOnce",)


class WrittenAtOnce:
    """As `ForkedWriter`, of a stream that is short."""

    def __init__(self, stream: Iterator[bytes]):
        self._written = b"".join(stream)

    async def chunks(self, size: int) -> AsyncGenerator[bytes, None]:
        """What it has written, in pieces of `size` bytes of which only the last may be shorter."""
        for start in range(0, len(self._written), size):
            yield self._written[start : start + size]

    async def is_whole(self) -> bool:
        """It is: what cannot be written has raised its error at the beginning."""
        return True

    def close(self) -> None:
        """There is nothing to end."""
