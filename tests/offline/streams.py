"""Element files for the tests of what runs over them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lmerge_service.elements import Adjust, Element, Insert
from lmerge_service.formats.ndjson import ElementWriter, read_elements
from lmerge_service.formats.wire import WireDecoder

__all__ = ("on_the_wire", "read", "write", "write_all")


def on_the_wire(element: Element) -> Any:
    """The element with its payload, a plain word, as canonical JSON."""
    match element:
        case Insert(payload, vs, ve):
            return Insert(b'"%b"' % payload.encode(), vs, ve)
        case Adjust(payload, vs, vold, ve):
            return Adjust(b'"%b"' % payload.encode(), vs, vold, ve)
    return element


def write(path: Path, elements: Iterable[Element]) -> str:
    with ElementWriter(path) as writer:
        for element in elements:
            writer.write(element)
    return str(path)


def write_all(folder: Path | str, streams: Sequence[Iterable[Element]]) -> list[str]:
    """One file per stream; elements as `on_the_wire`."""
    return [
        write(Path(folder) / f"{number}.ndjson", map(on_the_wire, stream))
        for number, stream in enumerate(streams)
    ]


def read(path: Path | str) -> list[Element]:
    return [element for _, element in read_elements(str(path), WireDecoder())]
