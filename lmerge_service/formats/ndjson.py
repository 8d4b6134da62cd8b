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

    The native engine takes lines in blocks (`read_batches`): what it makes of them are its batches,
    and an error is the same one, raised when what is before it has been handed over.

Cost
    Per line about 0.2 µs besides `wire`, by the engine 0.2 in all; memory for one line, or one
    buffer when writing, and with a shared decoder what that keeps.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from lmerge_service.elements import Element
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.formats.wire import WireDecoder, encode

if TYPE_CHECKING:
    from lmerge_engine import Batch

__all__ = ("ElementWriter", "numbered", "read_batches", "read_elements", "read_lines")

_BUFFER_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 18
"""So much is decoded at once: what it becomes stays in the processor's cache."""
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
                raise _located(error, name, number, line) from None
            yield number, element
            if shared and not number % _WEIGHED:
                decoder.weigh(_WEIGHED)


def read_batches(
    source: str | os.PathLike[str] | IO[bytes], decoder: WireDecoder
) -> Iterator["Batch"]:
    """The elements of the lines that `read_elements` reads, by the native engine, which `decoder`
    has; counts in `decoder.unusual` those that it leaves to Python.

    Raises:
        ElementError: as there, behind what is before that line.
        ConfigurationError: the file cannot be read.
    """
    assert decoder.native is not None
    native, line = decoder.native, 0
    with _opened(source) as (stream, name):
        for block in _blocks(stream, decoder.max_record_bytes, name):
            batch, at = native.empty(), 0
            while (at := native.lines(block, at, batch)) < len(block):
                end = block.find(b"\n", at) + 1
                piece = block[at : min(end or len(block), at + decoder.max_record_bytes + 1)]
                decoder.unusual += 1
                try:
                    batch.append(decoder.decode(piece.removesuffix(b"\n")))
                except ElementError as error:
                    number, refusal = line + len(batch) + 1, error
                    if len(batch):
                        yield batch
                    raise _located(refusal, name, number, piece) from None
                at = end or len(block)
            line += len(batch)
            yield batch


def numbered(batches: Iterable["Batch"]) -> Iterator[tuple[int, Element]]:
    """(line number, element) of what `read_batches` gives."""
    line = 0
    for batch in batches:
        for element in batch:
            line += 1
            yield line, element


def _blocks(stream: IO[bytes], most: int, name: str) -> Iterator[bytes]:
    """What is read, in blocks of whole lines; only the last one, or one that ends with a line of
    more than `most` bytes, may lack a line feed."""
    rest = b""
    while block := _next_block(stream, name):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > most:
            yield rest
            return  # it is refused, and what is behind it is not looked at
    if rest:
        yield rest


def _next_block(stream: IO[bytes], name: str) -> bytes:
    read = getattr(stream, "read1", stream.read)  # of a pipe what is there already
    try:
        return bytes(read(_BLOCK_BYTES))
    except OSError as error:
        raise _cannot("read", name, error) from None


def _located(error: ElementError, name: str, number: int, line: bytes) -> ElementError:
    what = str(error) if line.strip() else "a blank line"
    return ElementError(error.reason, f"{name}:{number}: {what}")


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

    def write_batch(self, batch: "Batch") -> None:
        """The same for each element of a batch of the engine's."""
        with _writing(self.name):
            self._stream.write(batch.lines())
        self.written += len(batch)


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
