"""The element files of a command: checked first, read with progress, by one decoder.

Progress goes to standard error, and only where that is a terminal on which nothing else is drawn.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeAlias, TypeVar

from lmerge_service.cli.progress import bars, is_shown
from lmerge_service.elements import Element
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.ndjson import read_batches, read_elements
from lmerge_service.formats.wire import WireDecoder

if TYPE_CHECKING:
    from lmerge_engine import Batch
    from rich.progress import Progress

__all__ = ("check_files", "is_parquet", "label", "reading", "reading_batches", "watched")

Stream: TypeAlias = Iterator[tuple[int, Element]]
T = TypeVar("T")

_PLAIN: Final = Rule()
_BUFFER_BYTES: Final = 1 << 20
_UPDATE_EVERY: Final = 2_000
_NAME_WIDTH: Final = 30

_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
}
_OTHER_TEXT: Final = {
    b"\xef\xbb\xbf": "begins with a byte order mark: save it as UTF-8 without one",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}


@contextmanager
def reading(
    paths: Sequence[str],
    output: str | None = None,
    *,
    rule: Rule = _PLAIN,
    abreast: bool = False,
) -> Iterator[list[Stream]]:
    """(line, element) of each file, `-` being standard input; `output` is what will be written.
    `abreast`: they are read in turn, so that equal elements of several come close to each other.

    Raises:
        ConfigurationError: a file cannot be read, or is read twice over or also written.
    """
    decoder = rule.decoder()
    shared = abreast and len(paths) > 1

    def read(source: str | IO[bytes]) -> Stream:
        return read_elements(source, decoder, shared=shared)

    with _reading(paths, output, read, _one) as streams:
        yield streams


@contextmanager
def reading_batches(
    paths: Sequence[str], decoder: WireDecoder, output: str | None = None
) -> Iterator[list[Iterator["Batch"]]]:
    """The same files by the native engine, which `decoder` has, in its batches.

    Raises:
        ConfigurationError: as `reading`.
    """

    def read(source: str | IO[bytes]) -> Iterator["Batch"]:
        return read_batches(source, decoder)

    with _reading(paths, output, read, len) as streams:
        yield streams


@contextmanager
def _reading(
    paths: Sequence[str],
    output: str | None,
    read: Callable[[str | IO[bytes]], Iterator[T]],
    size: Callable[[T], int],
) -> Iterator[list[Iterator[T]]]:
    check_files(paths, output)
    if not is_shown(output):
        yield [read(path) for path in paths]
        return
    with _counting() as progress, ExitStack() as opened:
        streams = []
        for path in paths:
            regular = path != "-" and Path(path).is_file()
            # Only a file that is opened here has a known position.
            file = opened.enter_context(_open(path)) if regular else None
            streams.append(_counted(progress, path, read(file or path), file, size))
        yield streams


def _one(_: object) -> int:
    return 1


def watched(path: str, elements: Iterable[T]) -> Iterator[T]:
    """The elements, with progress about the writing of them to `path`."""
    if not is_shown(path):
        yield from elements
        return
    with _counting() as progress:
        yield from _counted(progress, path, iter(elements), None, _one)


def label(path: str) -> str:
    """What a file is called in messages, whatever the bytes of its name."""
    return "<stdin>" if path == "-" else os.fsencode(path).decode(errors="backslashreplace")


def is_parquet(path: str) -> bool:
    """Whether a file, or what is in a folder, is Parquet; elsewhere its name decides."""
    if "://" in path:
        return path.rstrip("/").endswith(".parquet")
    place = Path(path)
    if place.is_dir():
        return any(place.rglob("*.parquet"))
    if not place.is_file():
        return False
    with _open(path) as file:
        return file.read(4) == b"PAR1"


# Checks


def check_files(inputs: Sequence[str], output: str | None = None) -> None:
    """Refuses what can be seen to go wrong before anything is read or written.

    Raises:
        ConfigurationError: names the file and the reason.
    """
    if "" in inputs or output == "":
        raise ConfigurationError("the name of a file is empty (a variable that is not set?)")
    if inputs.count("-") > 1:
        raise ConfigurationError("standard input can be read only once")
    places: dict[tuple[int, int], str] = {}
    for path in inputs:
        found = _status(path)
        place = found.st_dev, found.st_ino
        if stat.S_ISFIFO(found.st_mode):
            if same := places.get(place):
                what = f"{label(same)} and {label(path)} are one pipe"
                raise ConfigurationError(f"{what}, which can be read only once")
            places[place] = path
        elif stat.S_ISREG(found.st_mode):
            places[place] = path
            if path != "-":
                _refuse_what_is_no_plain_text(path)
    if output is not None:
        _check_output(output, places)


def _status(path: str) -> os.stat_result:
    if path == "-" and sys.stdin is None:
        raise ConfigurationError("cannot read -: standard input is closed")
    try:
        found = os.fstat(0) if path == "-" else Path(path).stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    if stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(f"cannot read {label(path)}: it is a folder, not an element file")
    return found


def _refuse_what_is_no_plain_text(path: str) -> None:
    with _open(path) as file:
        head = file.read(8)
    for beginning, tool in _COMPRESSED.items():
        if head.startswith(beginning):
            how = f"{tool} -dc {label(path)} | lmerge ... -"
            raise ConfigurationError(f"{label(path)}: is compressed, decompress it first: {how}")
    for beginning, advice in _OTHER_TEXT.items():
        if head.startswith(beginning):
            raise ConfigurationError(f"{label(path)}:1: {advice}")


def _check_output(output: str, places: dict[tuple[int, int], str]) -> None:
    if output == "-":
        if sys.stdout is None:
            raise ConfigurationError("cannot write -: standard output is closed")
        _refuse_input("standard output", os.fstat(1), places)
        return
    folder = Path(output).parent
    if not folder.exists():
        what = f"cannot write {label(output)}: there is no folder {label(str(folder))}"
        raise ConfigurationError(what)
    # A writer fills NAME.partial first.
    for path in (output, f"{os.path.realpath(output)}.partial"):
        if Path(path).exists():
            _refuse_input(label(path), Path(path).stat(), places)


def _refuse_input(name: str, written: os.stat_result, places: dict[tuple[int, int], str]) -> None:
    if read := places.get((written.st_dev, written.st_ino)):
        raise ConfigurationError(f"{name} is the input {label(read)} itself: write elsewhere")


def _open(path: str) -> IO[bytes]:
    try:
        return Path(path).open("rb", buffering=_BUFFER_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot read {label(path)}: {error.strerror}")


# Progress


@contextmanager
def _counting() -> Iterator["Progress"]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn

    elements = TextColumn("{task.fields[elements]:,} elements")
    with bars(BarColumn(bar_width=20), TaskProgressColumn(), elements) as progress:
        yield progress


def _counted(
    progress: "Progress",
    path: str,
    items: Iterator[T],
    file: IO[bytes] | None,
    size: Callable[[T], int],
) -> Iterator[T]:
    """The items, each of which has so many elements (`size`)."""
    name = label(path)
    if len(name) > _NAME_WIDTH:
        name = f"…{name[1 - _NAME_WIDTH :]}"
    total = os.fstat(file.fileno()).st_size if file else None
    task = progress.add_task(name, total=total, elements=0)
    count = shown = 0
    for item in items:
        count += size(item)
        if count >= shown + _UPDATE_EVERY:
            shown = count
            progress.update(task, completed=file.tell() if file else 0, elements=count)
        yield item
    progress.update(task, completed=total or count, total=total or count, elements=count)
