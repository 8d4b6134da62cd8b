"""The replica's side of feedback: the lowest of what all tasks of all outputs have published."""

import asyncio

import pytest

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ElementError
from lmerge_service.formats.feedback import FeedbackRecord
from lmerge_service.kafka.feedback import FeedbackBoard


def published(
    task: int, point: int, *, tasks: int = 1, output_id: str | None = None
) -> FeedbackRecord:
    return FeedbackRecord("a", task, tasks, point, point, output_id)


def test_nothing_may_be_left_out_before_every_task_has_published() -> None:
    board = FeedbackBoard(["out"])
    assert board.point("a") == START
    board.note("out", published(0, 9, tasks=3))
    board.note("out", published(2, 7, tasks=3))
    assert board.point("a") == START
    board.note("out", published(1, 8, tasks=3))
    assert board.point("a") == 7
    assert board.point("b") == START


def test_of_several_outputs_the_lowest_point_counts() -> None:
    board = FeedbackBoard(["one", "two"])
    board.note("one", published(0, 9))
    assert board.point("a") == START
    board.note("two", published(0, 4))
    assert board.point("a") == 4


def test_an_old_record_that_comes_late_lowers_nothing() -> None:
    """A worker that was fenced may still get a record out."""
    board = FeedbackBoard(["out"])
    board.note("out", published(0, 9))
    board.note("out", published(0, 5))
    assert board.point("a") == 9


def test_what_was_published_about_an_output_that_was_recreated_is_forgotten() -> None:
    board = FeedbackBoard(["out"])
    board.identify("out", "first")
    board.note("out", published(0, 9, output_id="first"))
    before = board.identity
    board.identify("out", "second")
    assert board.identity != before
    board.note("out", published(0, 9, output_id="first"))
    assert board.point("a") == START
    board.note("out", published(0, 2, output_id="second"))
    assert board.point("a") == 2


def test_waiting_ends_with_the_point_that_was_waited_for_or_with_the_time() -> None:
    async def wait() -> None:
        board = FeedbackBoard(["out"])
        assert await board.wait("a", START, 0) == START
        waiting = asyncio.create_task(board.wait("a", 5, 30))
        for point in (3, 5, 6):
            await asyncio.sleep(0)
            assert not waiting.done()
            board.note("out", published(0, point))
        assert await waiting == 6
        assert await board.wait("a", 6, 0.01) == 6

    asyncio.run(asyncio.wait_for(wait(), 10))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"replica":"a"}',
        b'{"replica":"a","task":2,"tasks":2,"point":1,"stable":1}',
        b'{"replica":"a","task":0,"tasks":1,"point":9223372036854775808,"stable":1}',
    ],
)
def test_what_is_no_feedback_record_is_refused(value: bytes) -> None:
    with pytest.raises(ElementError, match="not a feedback record"):
        FeedbackRecord.of(value)


def test_the_end_of_a_stream_is_a_point_too() -> None:
    board = FeedbackBoard(["out"])
    board.note("out", FeedbackRecord.of(published(0, INFINITY).value()))
    assert board.point("a") == INFINITY
