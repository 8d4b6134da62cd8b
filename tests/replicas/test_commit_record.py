"""Commit records come back as they were written, and only those of replicas."""

import pytest

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import StateError
from lmerge_service.merge.commit_record import CommitRecord, SnapshotPlace
from lmerge_service.replicas.commit_record import (
    InputCheckpoint,
    InputPartition,
    OutputPartition,
    ReplicaCommit,
)

PLACE = SnapshotPlace(0, 3, 10, 20, 2, 99, "ab", 7)
COMMIT = ReplicaCommit(
    query="q",
    plan="q-p",
    transaction=5,
    incarnation=1,
    joining_at=START,
    since=None,
    inputs={"f": InputCheckpoint("facts", "id", (InputPartition(0, 7, 12),))},
    output=(OutputPartition(3, 1, 4, 9), OutputPartition(0, 0, 0, INFINITY)),
    point=START,
    snapshots=(PLACE,),
)


def test_a_commit_record_comes_back() -> None:
    assert ReplicaCommit.of(COMMIT.encoded()) == COMMIT
    assert (COMMIT.stable, COMMIT.has_ended) == (9, False)


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff", CommitRecord(merge="m").encoded()])
def test_what_is_none_is_refused(value: bytes | None) -> None:
    with pytest.raises(StateError):
        ReplicaCommit.of(value)


def test_a_later_version_is_refused() -> None:
    later = COMMIT.encoded().replace(b'"version":1', b'"version":99')
    with pytest.raises(StateError, match="version 99"):
        ReplicaCommit.of(later)
