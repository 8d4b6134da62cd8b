"""Workers whose decisions are folded and deleted: what they merge, and what they show."""

from pathlib import Path

import pytest

from lmerge_service.merge.decisions.records import AcceptGap
from tests.service.cluster import Merge, decided, logical, meaning, replica_streams

pytestmark = [pytest.mark.kafka, pytest.mark.full]


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    made = Merge(bootstrap, tmp_path)
    made.extra = {"snapshot_seconds": 0.2, "output": {"topic": made.output, "keep": "1s"}}
    made.write()
    return made


def test_a_worker_folds_what_was_decided_and_the_next_one_begins_there(merge: Merge) -> None:
    """Killed after the first part, when all but the fold is deleted."""
    lives = logical(200)
    streams = replica_streams(lives)
    with merge.worker() as worker:
        worker.wait_until_running()
        decided(merge, *[AcceptGap("a", 9)] * 1_100)
        for name, stream in streams.items():
            merge.publish(name, stream[: len(stream) // 2])
        status = worker.wait(
            lambda s: s["control_log"]["begins"] and s["control_log"]["begins"] > 1_000,
            "what was decided to be folded and deleted",
            seconds=60,
        )
        shown = status["control_log"]
        assert shown["folded"] == shown["begins"] == shown["deleted"]
        assert status["version"] == 1_101
        assert "retention" not in status["reason_kinds"]
        worker.kill()
    with merge.worker() as worker:
        for name, stream in streams.items():
            merge.publish(name, stream[len(stream) // 2 :])
        status = worker.wait_until_ended()
        assert status["version"] == 1_101
        assert status["control_log"]["folded"] == shown["folded"]
    assert merge.output_is(meaning(lives))
