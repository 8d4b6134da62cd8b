"""Element files: what is read, what is refused and where, and what is left when writing fails."""

import os
import resource
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.formats.ndjson import ElementWriter, read_elements
from lmerge_service.formats.wire import WireDecoder, encode
from tests.formats.strategies import elements

LINE = b'{"op":"insert","payload":"A","vs":6,"ve":20}\n'
ELEMENT = Insert(b'"A"', 6, 20)


def read(source: Any, limit: int = 1 << 20) -> list[tuple[int, Element]]:
    return list(read_elements(source, WireDecoder(max_record_bytes=limit)))


def refusal(lines: bytes, limit: int = 1 << 20) -> tuple[str, str]:
    with pytest.raises(ElementError) as refused:
        read(BytesIO(lines), limit)
    return refused.value.reason, str(refused.value)


def write(target: str | Path, times: int = 1, before: Callable[[], None] = lambda: None) -> None:
    with ElementWriter(target) as writer:
        before()
        for _ in range(times):
            writer.write(ELEMENT)


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def test_lines_are_numbered_from_1(tmp_path: Path) -> None:
    file = tmp_path / "in.ndjson"
    file.write_bytes(LINE + b'{"op":"stable","vc":null}\n')
    expected: list[tuple[int, Element]] = [(1, ELEMENT), (2, Stable(INFINITY))]
    assert read(file) == read(str(file)) == expected


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_last_line_ends_as_it_likes(end: bytes) -> None:
    assert read(BytesIO(LINE.replace(b"\n", b"\r\n") + LINE.strip() + end)) == [
        (1, ELEMENT),
        (2, ELEMENT),
    ]


def test_an_empty_file_has_no_elements() -> None:
    assert read(BytesIO(b"")) == []


def test_files_that_share_a_decoder_share_elements_of_the_same_record() -> None:
    decoder = WireDecoder()
    one, two, alone = (
        read_elements(BytesIO(2 * LINE), decoder, shared=shared) for shared in (True, True, False)
    )
    (_, first), (_, again), (_, fresh) = next(one), next(two), next(alone)
    assert first is again
    assert first == fresh == ELEMENT
    assert first is not fresh
    assert [next(one), next(two), next(alone)] == [(2, ELEMENT)] * 3


def test_of_files_without_records_in_common_none_is_kept_after_a_while() -> None:
    decoder = WireDecoder()
    lines = [b'{"op":"insert","payload":%d,"vs":1,"ve":9}\n' % number for number in range(40_000)]
    one, two = (
        read_elements(BytesIO(b"".join(lines[half::2])), decoder, shared=True) for half in (0, 1)
    )
    for number, ((_, first), (_, second)) in enumerate(zip(one, two, strict=True)):
        assert isinstance(first, Insert)
        assert isinstance(second, Insert)
        assert (int(first.payload), int(second.payload)) == (2 * number, 2 * number + 1)
    assert not decoder.keeps
    assert not decoder.seen
    decoder.check()


def test_a_bad_line_of_two_files_is_named_in_each(tmp_path: Path) -> None:
    decoder = WireDecoder()
    bad = b'{"op":"insert","payload":1,"vs":9,"ve":9}\n'
    for number, lines in ((1, bad), (2, LINE + bad)):
        file = tmp_path / f"{number}.ndjson"
        file.write_bytes(lines)
        with pytest.raises(ElementError) as refused:
            list(read_elements(file, decoder, shared=True))
        what = "an insert needs vs < ve, got vs=9, ve=9"
        assert str(refused.value) == f"{file}:{number}: {what}"


@pytest.mark.parametrize("blank", [b"\n", b"  \n", b"\r\n", b" "])
def test_a_blank_line_is_an_error(blank: bytes) -> None:
    assert refusal(LINE + blank) == ("not_json", "<stream>:2: a blank line")


def test_the_first_bad_line_ends_the_reading_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "in.ndjson"
    file.write_bytes(LINE + b'{"op":"insert","payload":1,"vs":9,"ve":9}\n' + LINE)
    elements = read_elements(file, WireDecoder())
    assert next(elements) == (1, ELEMENT)
    with pytest.raises(ElementError) as refused:
        next(elements)
    assert str(refused.value) == f"{file}:2: an insert needs vs < ve, got vs=9, ve=9"
    assert refused.value.reason == "not_an_element"


def test_two_elements_on_one_line_are_an_error() -> None:
    assert refusal(LINE.strip() + LINE)[0] == "not_json"


def test_a_line_beyond_the_limit_is_refused_without_being_read_whole() -> None:
    class Endless(BytesIO):
        asked = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 < size <= 1001
            self.asked += 1
            return b"x" * size

    endless = Endless()
    with pytest.raises(ElementError, match=r"^<stream>:1: larger than the limit of 1000 bytes$"):
        read(endless, 1000)
    assert endless.asked == 1


def test_a_line_may_be_as_long_as_the_limit_without_its_line_end() -> None:
    limit = len(LINE) - 1
    assert len(read(BytesIO(LINE + LINE), limit)) == 2
    assert refusal(LINE, limit - 1)[0] == "too_large"


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(LINE + b"\n")))
    elements = read_elements("-", WireDecoder())
    assert next(elements) == (1, ELEMENT)
    with pytest.raises(ElementError, match=r"^<stdin>:2: a blank line$"):
        next(elements)
    assert not sys.stdin.buffer.closed


def test_a_file_that_is_not_read_to_its_end_is_closed(tmp_path: Path) -> None:
    """Warnings are errors, so a file left open would fail this."""
    file = tmp_path / "in.ndjson"
    file.write_bytes(LINE * 10)
    elements = read_elements(file, WireDecoder())
    next(elements)
    del elements


@pytest.mark.parametrize(
    ("path", "why"),
    [("missing.ndjson", "No such file or directory"), (".", "Is a directory")],
)
def test_what_cannot_be_read_is_reported_in_one_line(path: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path / path)
    assert str(refused.value) == f"cannot read {tmp_path / path}: {why}"


def test_a_failing_read_is_reported_in_one_line() -> None:
    class Failing(BytesIO):
        name = "disk"

        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(ConfigurationError, match=r"^cannot read disk: Input/output error$"):
        read(Failing())


# Writing


@given(st.lists(elements(), max_size=3))
@settings(max_examples=20)
def test_what_is_written_is_read_back(elements: list[Element]) -> None:
    lines = BytesIO(b"".join(encode(element) + b"\n" for element in elements))
    assert read(lines) == list(enumerate(elements, start=1))


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    file, partial = tmp_path / "out.ndjson", tmp_path / "out.ndjson.partial"
    file.write_text("before")
    with ElementWriter(file) as writer:
        writer.write(ELEMENT)
        writer.write(Adjust(b'"A"', 6, 20, 30))
        assert partial.exists()
        assert file.read_text() == "before"
    assert file.read_bytes() == LINE + b'{"op":"adjust","payload":"A","vs":6,"vold":20,"ve":30}\n'
    assert writer.written == 2
    assert names(tmp_path) == ["out.ndjson"]


@pytest.mark.parametrize(
    "failure", [ValueError(), KeyboardInterrupt(), OSError("ours"), ElementError("number", "")]
)
def test_after_a_failure_the_file_is_what_it_was(failure: BaseException, tmp_path: Path) -> None:
    def fail() -> None:
        assert names(tmp_path)
        raise failure

    file = tmp_path / "out.ndjson"
    with pytest.raises(type(failure)) as raised:
        write(file, before=fail)
    assert raised.value is failure
    assert names(tmp_path) == []
    file.write_text("before")
    with pytest.raises(type(failure)):
        write(str(file), before=fail)
    assert names(tmp_path) == ["out.ndjson"]
    assert file.read_text() == "before"


def test_what_a_crash_left_behind_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "out.ndjson"
    (tmp_path / "out.ndjson.partial").write_bytes(LINE * 100)
    with ElementWriter(file) as writer:
        writer.write(ELEMENT)
    assert file.read_bytes() == LINE
    assert names(tmp_path) == ["out.ndjson"]


def test_a_dash_is_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with ElementWriter("-") as writer:
        writer.write(ELEMENT)
    assert capfdbinary.readouterr().out == LINE
    assert not sys.stdout.buffer.closed


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file.ndjson", tmp_path / "link.ndjson"
    link.symlink_to(file)
    with ElementWriter(link) as writer:
        writer.write(ELEMENT)
    assert link.is_symlink()
    assert file.read_bytes() == LINE


def test_what_is_no_regular_file_stays_what_it_is(tmp_path: Path) -> None:
    """With a pipe, not a device: should it fail, /dev/null would be replaced for everybody."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(fifo)
        assert os.read(reader, 1000) == LINE
    finally:
        os.close(reader)
    assert fifo.is_fifo()
    assert names(tmp_path) == ["fifo"]


@pytest.mark.parametrize(
    ("path", "why"),
    [("no/such/out.ndjson", "No such file or directory"), (".", "Is a directory")],
)
def test_what_cannot_be_written_is_reported_before_the_work(
    path: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused, ElementWriter(tmp_path / path):
        pytest.fail("the body must not run")
    assert str(refused.value) == f"cannot write {tmp_path / path}: {why}"


@pytest.mark.parametrize("times", [25, 100_000])
def test_a_full_disk_is_reported_in_one_line_and_leaves_nothing(times: int, tmp_path: Path) -> None:
    file = tmp_path / "out.ndjson"
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        with pytest.raises(ConfigurationError) as refused:
            write(file, times)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(refused.value) == f"cannot write {file}: File too large"
    assert names(tmp_path) == []


def test_a_reader_that_went_away_is_distinguished(tmp_path: Path) -> None:
    """`lmerge merge ... | head` is not an error of the disk."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BrokenPipeError):
        write(fifo, 100_000, before=lambda: os.close(reader))


def test_a_file_of_many_blocks_is_read_to_its_end_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "long.ndjson"
    file.write_bytes(LINE * 20_000)  # several blocks, and more in all than a line may have
    lines = read(file, limit=1_000)
    assert len(lines) == 20_000
    assert lines[-1] == (20_000, ELEMENT)
