"""Element files: one JSON element a line (`wire`), read and written in constant memory.

Theory
    A file holds the records of one stream in order, each ended by a line feed, so that line
    tools (head, grep, jq) work on it. Half a stream must not pass for a whole one: the first
    line that is no element, blank ones included, is an error that names file and line, and a
    file that is written appears under its name when it is complete.

    >>> from io import BytesIO
    >>> lines = BytesIO(b'{"op":"insert","payload":"A","vs":6,"ve":20}\\n{"op":"stable","vc":11}')
    >>> list(read_elements(lines, WireDecoder()))
    [(1, Insert(payload=b'"A"', vs=6, ve=20)), (2, Stable(vc=11))]

Who owns what
    A file opened here is closed here; standard input, standard output and the streams of others
    stay open. After a crash NAME is what it was before, and NAME.partial is there to be deleted.

Cost
    Per line about 0.2 µs besides `wire`; memory for one line, or one buffer when writing, and with
    a shared decoder what that keeps.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self

from lmerge_service.elements import Element
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.formats.wire import WireDecoder, encode

__all__ = ("ElementWriter", "read_elements", "read_lines")

_BUFFER_BYTES: Final = 1 << 20
_WEIGHED: Final = 1 << 10
"""Lines after which it is measured again whether looking records up pays in a shared decoder."""


def read_elements(
    source: str | os.PathLike[str] | IO[bytes], decoder: WireDecoder, *, shared: bool = False
) -> Iterator[tuple[int, Element]]:
    """(line number, element) for each line of a file, of standard input (`-`) or of a stream.

    A file is opened when the first element is requested. Carriage returns before the line feed
    do no harm (they are white space to JSON), nor does a last line without line feed. `shared`: the
    decoder reads other files as well, which may have held the same records lately.

    Raises:
        ElementError: a line is not an element; the message begins with `file:line: `.
        ConfigurationError: the file cannot be read.
    """
    limit = decoder.max_record_bytes + 1  # as many without a line feed are too many
    with _opened(source) as (stream, name):
        number = 0
        while line := _next_line(stream, limit, name):
            number += 1
            try:
                record = line.removesuffix(b"\n")
                keeps = shared and decoder.keeps
                element = decoder.seen[record] if keeps else decoder.decode(record)
            except ElementError as error:
                what = str(error) if line.strip() else "a blank line"
                raise ElementError(error.reason, f"{name}:{number}: {what}") from None
            yield number, element
            if shared and not number % _WEIGHED:
                decoder.weigh(_WEIGHED)


def read_lines(source: str | os.PathLike[str], most: int) -> Iterator[tuple[int, bytes]]:
    """(line number, line without its line feed) of a file, or of standard input (`-`). A line of
    more than `most` bytes comes in pieces of so many.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    with _opened(source) as (stream, name):
        number = 0
        while line := _next_line(stream, most + 1, name):
            number += 1
            yield number, line.removesuffix(b"\n")


@contextmanager
def _opened(source: str | os.PathLike[str] | IO[bytes]) -> Iterator[tuple[IO[bytes], str]]:
    if source == "-":
        yield sys.stdin.buffer, "<stdin>"
    elif isinstance(source, str | os.PathLike):
        try:
            stream = Path(source).open("rb", buffering=_BUFFER_BYTES)  # noqa: SIM115 (see below)
        except OSError as error:
            raise _cannot("read", os.fspath(source), error) from None
        with stream:
            yield stream, os.fspath(source)
    else:
        yield source, str(getattr(source, "name", "<stream>"))


def _next_line(stream: IO[bytes], limit: int, name: str) -> bytes:
    try:
        return stream.readline(limit)
    except OSError as error:
        raise _cannot("read", name, error) from None


class ElementWriter:
    """Writes elements to a file that is there when all is written, or to standard output (`-`).

    Use as a context manager; after an exception in its body the file is what it was before.

    Raises:
        ConfigurationError: the file cannot be written.
        BrokenPipeError: standard output, or the pipe, has no reader any more.
    """

    __slots__ = ("_file", "_stream", "name", "written")

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.name = os.fspath(target)
        self.written = 0
        """Elements so far."""
        self._file = _standard_output() if self.name == "-" else _completed(self.name)

    def __enter__(self) -> Self:
        with _writing(self.name):
            self._stream = self._file.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        with _writing(self.name):
            self._file.__exit__(*raised)

    def write(self, element: Element) -> None:
        """Writes an element as one line, and counts it.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        try:
            self._stream.write(encode(element) + b"\n")
        except OSError as error:
            raise _cannot("write", self.name, error) from None
        self.written += 1


@contextmanager
def _standard_output() -> Iterator[IO[bytes]]:
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


@contextmanager
def _completed(name: str) -> Iterator[IO[bytes]]:
    """A stream to a file beside `name` that takes its place when the body ends well."""
    # A link stays a link, and what is no regular file (a device, a pipe) stays what it is.
    # The name itself is checked: /dev/stdout may lead to a pipe that has no path of its own.
    if Path(name).exists() and not Path(name).is_file():
        with Path(name).open("wb", buffering=_BUFFER_BYTES) as stream:
            yield stream
        return
    target = Path(os.path.realpath(name))
    partial = target.with_name(f"{target.name}.partial")
    stream = partial.open("wb", buffering=_BUFFER_BYTES)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _cannot("write", name, error) from None


def _cannot(verb: str, name: str, error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error
    standard = {"read": "standard input", "write": "standard output"}
    shown = standard.get(verb, name) if name == "-" else name
    return ConfigurationError(f"cannot {verb} {shown}: {error.strerror or error}")
