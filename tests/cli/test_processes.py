"""`lmerge` as a process: pipes, signals, full disks, and what a terminal shows."""

import os
import pty
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import LMERGE, Run, environment

LINE = '{"op":"insert","payload":"A","vs":6,"ve":20}\n'
END = '{"op":"stable","vc":null}\n'


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    inserts = [f'{{"op":"insert","payload":{n},"vs":{n},"ve":{n + 5}}}\n' for n in range(10_000)]
    (tmp_path / "small").write_text(LINE + END)
    (tmp_path / "large").write_text("".join(inserts) + END)


# Pipes


@pytest.mark.full
@pytest.mark.parametrize(
    "pipeline",
    [
        "cat small | lmerge merge - large -o - | cat",
        "lmerge merge - large -o - < small",
        "cat small | lmerge merge /dev/stdin large -o out; cat out",
        "lmerge merge <(cat small) <(cat large) -o out; cat out",
        "mkfifo f; cat small > f & lmerge merge f large -o out; cat out",
    ],
)
def test_inputs_may_come_through_pipes(pipeline: str, run: Run) -> None:
    expected = run("merge", "small", "large", "-o", "-")
    assert expected.returncode == 0
    piped = run(pipeline=pipeline)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert piped.stdout == expected.stdout


@pytest.mark.parametrize(
    "command",
    ["merge large -o -", "merge large -o - --stats", "audit large large --json", "--help",
     "present large -o - 2>/dev/null"],
)  # fmt: skip
def test_a_reader_that_has_seen_enough_ends_the_command_in_silence(command: str, run: Run) -> None:
    done = run(pipeline=f"(lmerge {command}; echo $? >&2) | true")
    assert done.stderr == "141\n"


def test_a_pipe_given_twice_is_refused(run: Run) -> None:
    done = run(pipeline="cat small | lmerge merge /dev/stdin - -o out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: /dev/stdin and <stdin> are one pipe, which can be read only once\n"
    )


def test_appending_the_output_to_an_input_is_refused(run: Run, tmp_path: Path) -> None:
    done = run(pipeline="lmerge merge small large -o - >> small")
    assert done.returncode == 2
    assert done.stderr == "error: standard output is the input small itself: write elsewhere\n"
    assert (tmp_path / "small").read_text() == LINE + END


# What is closed or full


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command", ["merge large -o -", "audit small large", "--help", "--version"]
)
def test_a_full_disk_behind_standard_output_is_one_line(command: str, run: Run) -> None:
    done = run(pipeline=f"lmerge {command} > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith(": No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("merge - -o out <&-", "error: cannot read -: standard input is closed\n"),
        ("merge small -o - >&-", "error: cannot write -: standard output is closed\n"),
        ("audit small small >&-", ""),
    ],
)
def test_closed_standard_streams_make_no_traceback(command: str, error: str, run: Run) -> None:
    done = run(pipeline=f"lmerge {command}")
    assert (done.returncode, done.stderr) == (2 if error else 0, error)


def test_a_terminal_that_lacks_letters_is_no_reason_to_fail(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one").write_text('{"op":"insert","payload":"漢","vs":1,"ve":2}\n')
    done = run(pipeline="PYTHONIOENCODING=latin-1 lmerge audit one small")
    assert (done.returncode, done.stderr) == (1, "")
    assert 'payload "\\u6f22" vs 1' in done.stdout


# Interruption


def test_ctrl_c_ends_with_130_and_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("before")
    command = [*LMERGE, "merge", "-", "small", "-o", "out"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        # More than a pipe holds: once it is written, the merge has opened its files and reads.
        process.stdin.write((tmp_path / "large").read_bytes().removesuffix(END.encode()))
        process.stdin.flush()  # and no end: the merge waits for more
        assert (tmp_path / "out.partial").exists()
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            # A signal just before a read that waits is noticed when the read returns: so once more.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        assert process.stderr is not None
        assert (process.poll(), process.stderr.read()) == (130, b"")
    assert out.read_text() == "before"
    assert not (tmp_path / "out.partial").exists()


# Terminals


def test_elsewhere_than_on_a_terminal_nothing_is_drawn(run: Run) -> None:
    done = run("merge", "large", "large", "-o", "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_terminal_shows_progress_on_standard_error_alone(tmp_path: Path) -> None:
    code, out, drawn = on_a_terminal(tmp_path, ["merge", "large", "small", "-o", "-"])
    assert code == 0
    assert out.startswith('{"op":"insert","payload":0,')
    assert out.endswith(END)
    assert "\x1b" not in out
    assert "large" in drawn
    assert "100%" in drawn
    assert "10,001 elements" in drawn
    assert drawn.endswith("\x1b[2K")  # and takes all of it away again


def test_a_dumb_terminal_gets_no_drawing(tmp_path: Path) -> None:
    assert on_a_terminal(tmp_path, ["merge", "large", "-o", "out"], term="dumb") == (0, "", "")


def test_a_stream_on_the_terminal_is_not_drawn_over(tmp_path: Path) -> None:
    code, out, drawn = on_a_terminal(tmp_path, ["merge", "small", "-o", "-"], stdout=True)
    assert (code, out) == (0, "")
    assert drawn.replace("\r\n", "\n") == LINE + END


def on_a_terminal(
    folder: Path, arguments: list[str], *, term: str = "xterm", stdout: bool = False
) -> tuple[int, str, str]:
    """Exit code, standard output, and what the terminal behind standard error received; that
    terminal is behind standard output too if `stdout`."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*LMERGE, *arguments],
        cwd=folder,
        env={**environment(), "TERM": term, "COLUMNS": "100"},
        stdout=theirs if stdout else subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        out = b"" if stdout else process.communicate(timeout=60)[0]
        drawn = b""
        while True:
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # the other end is closed: that is how a terminal ends
                break
            else:
                if not drawn:
                    break
        os.close(ours)
        return process.wait(30), out.decode(), drawn.decode()
