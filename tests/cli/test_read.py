"""`lmerge read`: topics as one stream on standard output, in one go or in several."""

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lmerge_service.cli.read import _document, _lines, _started_over
from lmerge_service.core import Gap
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.reader.inlets import StartedOver
from lmerge_service.reader.read_merged import ReaderStatus
from lmerge_service.tdb import TDB, reconstitute
from tests.cli.conftest import LMERGE, Lmerge, environment
from tests.offline.streams import on_the_wire, write
from tests.service.cluster import Merge

STREAM: list[Element] = [*(Insert(f"{n}", n, n + 9) for n in range(50)), Stable(40)]
WHOLE: list[Element] = [*STREAM, Stable(INFINITY)]
MEANING = TDB((b'"%d"' % n, n, n + 9) for n in range(50))


@pytest.fixture
def topics(lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]) -> tuple[str, str]:
    """Two topics, of one and of three partitions, that have the same and have not ended."""
    write(Path("stream"), map(on_the_wire, STREAM))
    write(Path("end"), [on_the_wire(Stable(INFINITY))])
    one, three = topic_name(), topic_name()
    assert lmerge("publish", "stream", one, "--bootstrap", bootstrap).code == 0
    wide = ("--partitions", "3", "--bootstrap", bootstrap)
    assert lmerge("publish", "stream", three, *wide).code == 0
    return one, three


def elements(lines: str | Sequence[str]) -> list[Element]:
    lines = lines.splitlines() if isinstance(lines, str) else lines
    return [WireDecoder().decode(line.encode()) for line in lines]


@pytest.mark.full
def test_two_topics_are_written_as_one_stream(
    lmerge: Lmerge, bootstrap: str, topics: tuple[str, str]
) -> None:
    read = lmerge("read", topics[0], f"kafka:{topics[1]}", "--bootstrap", bootstrap)
    assert read.code == 0
    received = elements(read.out)
    assert reconstitute(received) == MEANING
    assert received[-1] == Stable(40)
    assert read.err.splitlines()[-1] == "merged: stable at 40, 19 live"


def test_with_a_token_two_readings_are_one_stream(
    lmerge: Lmerge, bootstrap: str, topics: tuple[str, str]
) -> None:
    at = ("--token", "token", "--json", "--bootstrap", bootstrap)
    first = lmerge("read", *topics, *at)
    nothing = lmerge("read", *topics, *at)
    lmerge("publish", "end", topics[1], "--bootstrap", bootstrap)
    last = lmerge("read", *topics, *at)
    assert [first.code, nothing.code, last.code] == [0, 0, 0]
    assert nothing.out == ""
    assert elements(last.out) == [Stable(INFINITY)]
    assert reconstitute(elements(first.out + last.out)) == MEANING
    document = json.loads(last.err)
    assert [each["state"] for each in document["topics"]] == ["reading", "ended"]


def test_a_token_of_another_case_or_a_file_that_is_none_is_refused(
    lmerge: Lmerge, bootstrap: str, topics: tuple[str, str]
) -> None:
    at = ("--token", "token", "--bootstrap", bootstrap)
    assert lmerge("read", *topics, *at).code == 0
    other = lmerge("read", *topics, *at, "--case", "R4")
    assert (other.code, other.error) == (2, "the token is of a reader with case R3, not R4")
    Path("token").write_bytes(b"x" * 100)
    damaged = lmerge("read", *topics, *at)
    assert (damaged.code, damaged.error) == (
        4,
        "token: the token is damaged: its digest does not match",
    )


def test_a_mistake_is_reported_before_anything_is_read(lmerge: Lmerge) -> None:
    for wrong, message in (
        (("t", "kafka:t"), "kafka:t is named twice: a topic is one of the copies"),
        (("t", "--token", "no/token"), "cannot write no/token: there is no folder no"),
    ):
        done = lmerge("read", *wrong, "--bootstrap", "127.0.0.1:1")
        assert (done.code, done.out, done.error) == (2, "", message)


def test_a_topic_that_starts_over_and_what_nobody_covers_is_reported() -> None:
    over = StartedOver("out", 1, 50, 40)
    assert _started_over(over) == (
        "warning: out has started over: incarnation 1, correct from 50 on; the one before was "
        "read to 40"
    )
    whole = _started_over(StartedOver("out", 2, START, START))
    assert whole.endswith("correct from the beginning; the one before was read nowhere")
    status = ReaderStatus(40, START, 0, None, 0, [], None, Gap(40, 50, "out"), ())
    waits, merged = _lines(status)
    assert waits.startswith("warning: the reading waits: no topic has what ends in [40, 50)")
    assert merged == "merged: stable at 40, 0 live"
    assert _document(status)["gap"] == {"start": 40, "end": 50, "input": "out"}


def test_a_topic_that_is_not_there_is_named_unless_it_is_waited_for(
    lmerge: Lmerge, bootstrap: str, topics: tuple[str, str]
) -> None:
    done = lmerge("read", topics[0], "nothing-here", "--bootstrap", bootstrap)
    assert (done.code, done.out) == (2, "")
    assert done.error == "kafka:nothing-here: there is no such topic (--follow waits for it)"


@pytest.mark.full
def test_following_ends_with_the_stream_or_with_a_signal_and_leaves_its_token(
    lmerge: Lmerge, bootstrap: str, topics: tuple[str, str]
) -> None:
    at = ("--follow", "--token", "token", "--bootstrap", bootstrap)
    command = [*LMERGE, "read", *topics, *at]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        begun: list[str] = []
        while not begun or '"vc":40' not in begun[-1]:
            begun.append(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
        assert (process.returncode, rest) == (0, "")
    lmerge("publish", "end", topics[0], "--bootstrap", bootstrap)
    ended = lmerge("read", *topics, *at)
    assert (ended.code, elements(ended.out)) == (0, [Stable(INFINITY)])
    assert reconstitute(elements(begun) + elements(ended.out)) == MEANING


@pytest.mark.full
def test_an_output_that_has_lost_its_beginning_is_read_from_a_snapshot(
    lmerge: Lmerge, bootstrap: str, tmp_path: Path
) -> None:
    merge = Merge(bootstrap, tmp_path)
    merge.extra = {"snapshot_seconds": 0.2, "output": {"topic": merge.output, "keep": "1s"}}
    merge.write()
    at = ("--json", "--bootstrap", bootstrap)
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(b'"b"', 2, 9), Insert(b'"d"', 3, 4), Stable(7)])
        worker.wait(
            lambda status: (log := status["tasks"][0]["log"]) and log["begins"] > 0,
            "the beginning to be deleted",
        )
        lost = lmerge("read", merge.output, *at)
        read = lmerge("read", merge.output, "--from", "snapshot", *at)
    assert "begin at a snapshot, without a token, or state from when on" in lost.err
    assert (lost.code, read.code) == (2, 0)
    assert elements(read.out) == [Insert(b'"b"', 2, 9), Stable(7)]
    assert json.loads(read.err)["correct_from"] == 7


def test_what_is_no_output_of_a_merge_has_no_snapshot(
    lmerge: Lmerge, bootstrap: str, topics: tuple[str, str]
) -> None:
    """It is read from its first record, as long as it has that."""
    read = lmerge("read", topics[0], "--from", "snapshot", "--bootstrap", bootstrap)
    assert read.code == 0
    assert reconstitute(elements(read.out)) == MEANING
