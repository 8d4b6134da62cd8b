"""The examples of docs/reading.md, run as they stand, but for the broker and the topics' names."""

import asyncio
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.feedback import FeedbackRecord, feedback_topic
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.notices import Notices
from lmerge_service.kafka.publish import publish
from lmerge_service.kafka.topics import Topics

PLAIN, STORED, MIDDLE, HEEDING = re.findall(
    r"^```python\n(.*?)^```", Path("docs/reading.md").read_text(), re.DOTALL | re.MULTILINE
)
STREAM: list[Element] = [
    Insert(b'"x"', 1, 9),
    Insert(b'"phantom"', 2, 7),
    Adjust(b'"phantom"', 2, 7, 2),
    Adjust(b'"x"', 1, 9, 8),
    Stable(INFINITY),
]


@pytest.fixture
def run(
    bootstrap: str,
    topic_name: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], str]:
    """Runs an example in an empty directory; gives the name of the topic that it calls a."""
    prefix = topic_name("flights")
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        asyncio.run(publish(Connection(bootstrap), f"{prefix}.merged.{name}", STREAM))

    def run(example: str) -> str:
        code = example.replace("127.0.0.1:9092", bootstrap).replace(
            "flights.merged", f"{prefix}.merged"
        )
        exec(compile(code, "docs/reading.md", "exec"), {"__name__": "__main__"})  # noqa: S102
        return f"{prefix}.merged.a"

    return run


def test_the_stream_is_printed(
    run: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(PLAIN)
    *elements, stable = capsys.readouterr().out.splitlines()
    assert elements[0] == repr(STREAM[0])
    assert elements[-1] == repr(STREAM[-1])
    assert stable == str(INFINITY)


def test_results_and_token_are_stored_together(run: Callable[[str], str]) -> None:
    run(STORED)
    run(STORED)  # goes on behind the end: nothing is received again
    database = sqlite3.connect("flights.db")
    assert database.execute("SELECT * FROM events").fetchall() == [(b'"x"', 1, 8)]
    assert database.execute("SELECT count(*) FROM position").fetchone() == (1,)
    database.close()


def test_without_a_snapshot_the_middle_is_the_beginning(
    run: Callable[[str], str],
    bootstrap: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where workers take snapshots: `test_beginnings`."""

    async def make(topic: str) -> None:
        async with Topics(Connection(bootstrap)) as topics:
            for name in "ab":
                await topics.ensure(f"{topic[:-1]}{name}.state")

    topic = run("")
    asyncio.run(make(topic))
    run(MIDDLE)
    *elements, correct = capsys.readouterr().out.splitlines()
    assert (elements[0], elements[-1]) == (repr(STREAM[0]), repr(STREAM[-1]))
    assert correct == f"correct from {START}"


def test_what_is_below_the_point_is_left_out(
    run: Callable[[str], str], bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = run(HEEDING)
    assert capsys.readouterr().out.count("compute") == 10
    asyncio.run(_publish_feedback(bootstrap, topic, 71))
    run(HEEDING)
    assert capsys.readouterr().out.splitlines() == [
        "compute [70, 80)",
        "compute [80, 90)",
        "compute [90, 100)",
    ]


async def _publish_feedback(bootstrap: str, output: str, point: int) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.ensure(feedback_topic(output))
        found = await topics.describe([output])
    record = FeedbackRecord("a", 0, 1, point, point, found[output].id)
    async with Notices(Connection(bootstrap), feedback_topic(output)) as notices:
        await notices.send(record.key(), record.value())
