"""What commands on files refuse before they begin, and what they take: one line, exit 2."""

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lmerge_service.cli.streams import check_files
from lmerge_service.errors import ConfigurationError
from tests.cli.conftest import Lmerge

LINE = b'{"op":"insert","payload":"A","vs":6,"ve":20}\n'


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(LINE)
    (tmp_path / "folder").mkdir()


def refusal(inputs: list[str], output: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as refused:
        check_files(inputs, output)
    return str(refused.value)


# What is read


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing", "cannot read missing: No such file or directory"),
        ("folder", "cannot read folder: it is a folder, not an element file"),
        ("a/b", "cannot read a/b: Not a directory"),
        ("", "the name of a file is empty (a variable that is not set?)"),
    ],
)
@pytest.mark.parametrize(
    "command", ["merge a INPUT -o out", "audit a INPUT", "present INPUT -o out", "publish INPUT t"]
)
def test_what_cannot_be_read_is_named_and_nothing_is_written(
    command: str, path: str, error: str, lmerge: Lmerge
) -> None:
    before = set(Path().iterdir())
    done = lmerge(*[path if word == "INPUT" else word for word in command.split()])
    assert (done.code, done.out) == (2, "")
    assert done.error == error
    assert set(Path().iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(lmerge: Lmerge) -> None:
    Path("a").chmod(0)
    assert lmerge("merge", "a", "-o", "out").error == "cannot read a: Permission denied"


@pytest.mark.parametrize(
    ("name", "compress"),
    [("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress),
     ("zstd", lambda data: b"\x28\xb5\x2f\xfd" + data)],
)  # fmt: skip
def test_a_compressed_file_is_refused_with_the_way_to_read_it(
    name: str, compress: Callable[[bytes], bytes], lmerge: Lmerge
) -> None:
    Path("packed").write_bytes(compress(LINE))
    assert lmerge("merge", "packed", "-o", "out").error == (
        f"packed: is compressed, decompress it first: {name} -dc packed | lmerge ... -"
    )


@pytest.mark.parametrize(
    ("encoding", "error"),
    [
        ("utf-8-sig", "a:1: begins with a byte order mark: save it as UTF-8 without one"),
        ("utf-16", "a:1: is UTF-16: save it as UTF-8"),
    ],
)
def test_text_in_another_encoding_is_refused_with_what_to_do(
    encoding: str, error: str, lmerge: Lmerge
) -> None:
    Path("a").write_bytes(LINE.decode().encode(encoding))
    assert lmerge("merge", "a", "-o", "out").error == error


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\x80\xff\x00junk", "a:1: not UTF-8, invalid start byte (byte 0)"),
        (LINE + b"\n" + LINE, "a:2: a blank line"),
        (LINE * 3 + LINE[:20], "a:4: not JSON: "),
        (b'{"op":"insert","payload":"' + b"x" * 10_000_000, "a:1: larger than the limit of "),
        (b"op,payload,vs,ve\n", "a:1: not JSON: "),
        (b'{"op":"insert","payload":1,"vs":6,"ve":6}\n', "a:1: an insert needs vs < ve, got vs=6"),
    ],
    ids=["binary", "blank", "cut off", "10 MB line", "csv", "no element"],
)
@pytest.mark.parametrize("command", ["merge a -o out", "audit a a", "present a -o out"])
def test_a_line_that_is_no_element_is_named(
    command: str, content: bytes, error: str, lmerge: Lmerge
) -> None:
    Path("a").write_bytes(content)
    done = lmerge(*command.split())
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(error)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "content", [LINE.replace(b"\n", b"\r\n") * 2, LINE + LINE.strip(), b""],
    ids=["CRLF", "no last line feed", "empty"],
)  # fmt: skip
def test_harmless_differences_of_text_are_taken(content: bytes, lmerge: Lmerge) -> None:
    Path("b").write_bytes(content.replace(b'"A"', b'"B"', 1))
    done = lmerge("merge", "b", "-o", "out")
    assert (done.code, done.err) == (0, "")


def test_names_that_are_not_unicode_are_printed_all_the_same(lmerge: Lmerge) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert lmerge("merge", name, "-o", "out").error == (
        "cannot read caf\\xe9: No such file or directory"
    )
    Path(name).write_bytes(LINE)
    assert lmerge("audit", name, name).out.startswith("caf\\xe9: legal, ")
    assert lmerge("merge", name, "-o", "out", "--json").code == 0


# Standard input and pipes


def test_standard_input_is_read_once(lmerge: Lmerge) -> None:
    for command in (["merge", "-", "-", "-o", "out"], ["audit", "-", "-"]):
        assert lmerge(*command).error == "standard input can be read only once"


def test_a_pipe_is_read_once_under_whatever_name(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    error = f"{fifo} and {link} are one pipe, which can be read only once"
    assert refusal([str(fifo), str(link)]) == error


def test_a_file_may_be_read_twice(lmerge: Lmerge) -> None:
    assert lmerge("merge", "a", "./a", "-o", "out").code == 0


def test_closed_standard_streams_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert refusal(["-"]) == "cannot read -: standard input is closed"
    assert refusal([], "-") == "cannot write -: standard output is closed"


# What is written


def test_a_missing_folder_is_reported_before_anything_is_read(lmerge: Lmerge) -> None:
    done = lmerge("merge", "a", "-o", "no/such/out")
    assert done.error == "cannot write no/such/out: there is no folder no/such"
    assert lmerge("merge", "a", "-o", "a/out").error == "cannot write a/out: Not a directory"
    assert lmerge("merge", "a", "-o", "folder").error == "cannot write folder: Is a directory"
    assert lmerge("merge", "a", "-o", "").error.startswith("the name of a file is empty")


@pytest.mark.parametrize("name", ["a", "./a", "folder/../a", "symbolic", "hard"])
def test_an_input_is_not_overwritten_under_whatever_name(name: str, lmerge: Lmerge) -> None:
    Path("symbolic").symlink_to("a")
    os.link("a", "hard")
    done = lmerge("merge", "a", "-o", name)
    assert done.error == f"{name} is the input a itself: write elsewhere"
    assert Path("a").read_bytes() == LINE


def test_an_input_is_not_overwritten_on_the_way_to_the_output(lmerge: Lmerge) -> None:
    Path("out.partial").write_bytes(LINE)
    done = lmerge("merge", "out.partial", "-o", "out")
    assert (
        done.error == f"{Path.cwd()}/out.partial is the input out.partial itself: write elsewhere"
    )
    assert Path("out.partial").read_bytes() == LINE
