"""The bytes of a snapshot as frames, each behind its length, and an empty one as the last.

>>> reader, found = FrameReader(), []
>>> for chunk in framed([b"head", b"part"]):
...     found += reader.take(chunk)
>>> found, reader.is_whole
([b'head', b'part'], True)
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from lmerge_service.errors import StateError

__all__ = ("FrameReader", "framed")

_LENGTH: Final = struct.Struct("<I")


def framed(frames: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of frames, none of which is empty, piece by piece."""
    for frame in frames:
        yield _LENGTH.pack(len(frame))
        yield frame
    yield _LENGTH.pack(0)


class FrameReader:
    """Takes the bytes in chunks of any size."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.is_whole = False
        """The last frame has come."""

    def take(self, chunk: bytes) -> list[bytes]:
        """The frames that are whole with the next chunk.

        Raises:
            StateError: it goes on behind the end.
        """
        self._bytes += chunk
        frames, at = list[bytes](), 0
        while len(self._bytes) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes, at)
            begin = at + _LENGTH.size
            if len(self._bytes) - begin < length:
                break
            if self.is_whole:
                raise StateError("the snapshot is damaged: it goes on behind its end")
            at = begin + length
            if length:
                frames.append(bytes(self._bytes[begin:at]))
            else:
                self.is_whole = True
        del self._bytes[:at]
        return frames
