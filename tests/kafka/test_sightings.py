"""What became of a topic since it was looked at last."""

import pytest

from lmerge_service.kafka.sightings import Sightings, TopicChange, change_of
from lmerge_service.kafka.topics import TopicInfo


@pytest.mark.parametrize(
    ("known", "info", "deleted", "change"),
    [
        (("x", 2), TopicInfo("x", 2), False, TopicChange.SAME),
        (("x", 2), TopicInfo("x", 3), False, TopicChange.WIDER),
        (("x", 2), TopicInfo("y", 2), False, TopicChange.RECREATED),
        (("x", 2), TopicInfo("y", 9), False, TopicChange.RECREATED),
        (("x", 2), None, False, TopicChange.MISSING),
        (("x", 2), None, True, TopicChange.DELETED),
        ((None, 2), TopicInfo("y", 2), False, TopicChange.SAME),
        (("x", 2), TopicInfo(None, 2), False, TopicChange.SAME),
        (("x", 2), TopicInfo(None, 3), False, TopicChange.WIDER),
    ],
)
def test_the_table(
    known: tuple[str | None, int], info: TopicInfo | None, deleted: bool, change: TopicChange
) -> None:
    assert change_of(*known, info, deleted=deleted) is change


def test_a_topic_is_deleted_when_it_is_missing_several_times_in_a_row() -> None:
    sightings, patient = Sightings(), Sightings(3)
    for found, deleted, believed in (
        ((), False, False),
        (("a",), False, False),
        ((), False, False),
        ((), True, False),
        ((), True, True),
        (("a",), False, False),
    ):
        for each in (sightings, patient):
            each.note(("a", "b"), (*found, "b"))
        assert (sightings.is_deleted("a"), patient.is_deleted("a")) == (deleted, believed)
        assert sightings.deleted == ({"a"} if deleted else frozenset())
