"""Element files by the engine and by Python: the same elements, errors and outputs, whatever the
lines, and however they are cut into blocks."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.ndjson import numbered, read_batches, read_elements
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.offline.merge import interleaving, merge_batches, merge_streams

LIMIT = 200
times = st.integers(0, 30)
usual = st.one_of(
    st.builds(lambda p, vs: encode(Insert(b'"%d"' % p, vs, vs + 5)), st.integers(0, 4), times),
    st.builds(
        lambda p, vs, n: encode(Adjust(b'"%d"' % p, vs, vs + 5, vs + n)),
        st.integers(0, 4),
        times,
        st.integers(0, 9),
    ),
    st.builds(lambda vc: encode(Stable(vc)), times),
)


def padded(size: int) -> bytes:
    """An insert of so many bytes."""
    return encode(Insert(b'"%b"' % (b"x" * (size - len(encode(Insert(b'""', 6, 9))))), 6, 9))


UNUSUAL = [
    b'{"op":"insert","payload":{"b":1.0,"a":"\\u0041"},"vs":6,"ve":9}',
    b' {"vs":6, "ve":9, "payload":"0", "op":"insert"}\r',
    padded(LIMIT),
]
WRONG = [
    b"",
    b" \t",
    b"junk",
    b'{"op":"stable","vc":1}{"op":"stable","vc":2}',
    padded(LIMIT + 1),
    b" " * (LIMIT + 1),
    b"x" * (3 * LIMIT),
]
good = st.lists(st.one_of(usual, usual, st.sampled_from(UNUSUAL)), max_size=12)
lines = st.builds(
    lambda before, wrong, after: [*before, *wrong, *after],
    good,
    st.lists(st.sampled_from(WRONG), max_size=1),
    good,
)
files = st.builds(
    lambda each, ended: b"".join(line + b"\n" for line in each)[: None if ended else -1],
    lines,
    st.booleans(),
)


class Pieces(BytesIO):
    """A pipe, of which so many bytes can be read at a time."""

    name = "pipe"
    size = 7

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read(self.size)


def pipe(content: bytes, size: int = 7) -> Pieces:
    made = Pieces(content)
    made.size = size
    return made


def python(content: bytes) -> tuple[list[Any], str | None]:
    return _until_an_error(read_elements(pipe(content), WireDecoder(max_record_bytes=LIMIT)))


def native(content: bytes, size: int) -> tuple[list[Any], str | None]:
    decoder = WireDecoder(max_record_bytes=LIMIT, native=True)
    return _until_an_error(numbered(read_batches(pipe(content, size), decoder)))


def _until_an_error(stream: Iterator[Any]) -> tuple[list[Any], str | None]:
    found: list[Any] = []
    try:
        found += stream  # what is before an error is in it
    except ElementError as error:
        return found, f"{error.reason} {error}"
    return found, None


@given(files, st.sampled_from([1, 7, 64, LIMIT, 1 << 18]))
@example(b"".join(line + b"\n" for line in UNUSUAL), 1)
@example(UNUSUAL[2], 64)
@settings(max_examples=200)
def test_lines_are_read_as_python_reads_them(content: bytes, size: int) -> None:
    assert native(content, size) == python(content)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("size", [1, 64, 1 << 18])
def test_a_wrong_line_is_named_as_python_does(wrong: bytes, size: int) -> None:
    content = b'{"op":"stable","vc":1}\n%b\n{"op":"stable","vc":2}\n' % wrong
    found, error = native(content, size)
    assert (found, error) == python(content)
    assert error is not None
    assert " pipe:2: " in error


def test_what_is_left_to_python_is_counted() -> None:
    decoder = WireDecoder(native=True)
    content = b"\n".join([UNUSUAL[0], *[encode(Stable(7))] * 3, UNUSUAL[0]]) + b"\n"
    assert sum(map(len, read_batches(BytesIO(content), decoder))) == 5
    assert decoder.unusual == 2


@given(
    st.lists(files, min_size=1, max_size=3),
    st.sampled_from(["round-robin", "sequential", "random:3"]),
    st.sampled_from([1, 64, 1 << 18]),
)
@settings(max_examples=200)
def test_files_are_merged_as_python_merges_them(
    contents: list[bytes], order: str, size: int
) -> None:
    """What is written before an error ends it, and of which file that is, among it."""
    by_python = _merged(contents, order)
    assert _merged(contents, order, size) == by_python


def _merged(contents: list[bytes], order: str, size: int | None = None) -> Any:
    names, written = [f"{n}" for n in range(len(contents))], list[Element]()
    ordered = interleaving(order)
    pipes = [pipe(each, size or 7) for each in contents]
    for name, each in zip(names, pipes, strict=True):
        each.name = name
    try:
        if size is None:
            decoder = WireDecoder(max_record_bytes=LIMIT)
            streams = [read_elements(each, decoder) for each in pipes]
            report = merge_streams(names, streams, written.append, order=ordered)
        else:
            decoder = WireDecoder(max_record_bytes=LIMIT, native=True)
            batches = [read_batches(each, decoder) for each in pipes]
            report = merge_batches(names, batches, written.extend, order=ordered)
    except ElementError as error:
        return written, str(error)
    return written, report
