"""A merge's state in a file: it comes back as it was, or is refused in words."""

import io
from pathlib import Path

import pytest

from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.merge.state_file import (
    Saving,
    Section,
    chunks_of,
    merge_of,
    rechunked,
    sections,
)
from tests.merge.test_snapshots import TOPOLOGY, restored, state

OF = merge_of(TOPOLOGY)


def written(path: Path, *events: int) -> list[Section]:
    """A file of a state for each number of events; it is a merge of as many partitions."""
    file = io.BytesIO()
    saving = Saving(file, OF, len(events))
    found = []
    for partition, count in enumerate(events):
        one = state(count)
        one.partition = partition
        found.append(saving.add(one))
    saving.finish()
    path.write_bytes(file.getvalue())
    return found


def test_each_tasks_state_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    found = written(path, 50, 3)
    assert sections(path, OF) == found
    assert [each.commit.output_records for each in found] == [52, 5]
    was = state(50)
    again = restored([*chunks_of(path, 0, found[0].digest)])
    assert again.commit_record() == was.commit_record()
    assert again.merge.snapshot() == was.merge.snapshot()
    total = sum(map(len, chunks_of(path, 1, found[1].digest)))
    assert total == found[1].size


def test_a_file_that_is_cut_or_changed_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    written(path, 2, 1)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises((StateError, ConfigurationError), match=str(path)):
                sections(path, OF)
    path.write_bytes(whole + b"x")
    with pytest.raises(StateError, match="damaged"):
        sections(path, OF)


def test_another_merges_or_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    [one] = written(path, 4)
    for rule in ("nfc", "drop_nulls"):
        other = merge_of(TOPOLOGY.model_copy(update={rule: True}))
        with pytest.raises(ConfigurationError, match=r"is the state of .*, and not of"):
            sections(path, other)
    written(path, 5)
    with pytest.raises(StateError, match="another one than the merge began from"):
        list(chunks_of(path, 0, one.digest))
    with pytest.raises(StateError, match="lacks partition 1"):
        list(chunks_of(path, 1, one.digest))
    with pytest.raises(ConfigurationError, match="No such file"):
        sections(tmp_path / "nowhere", OF)


def test_chunks_of_a_size_are_the_same_bytes() -> None:
    pieces = [b"abc", b"", b"defgh", b"i"]
    assert list(rechunked(iter(pieces), 4)) == [b"abcd", b"efgh", b"i"]
    assert list(rechunked(iter([]), 4)) == []
