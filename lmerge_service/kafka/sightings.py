"""What became of a topic since it was looked at last: one rule for all that watch topics.

Theory
    While a topic is read it may be deleted, recreated under the same name, or get more partitions,
    without any notification. Whoever reads it looks it up now and then, and compares:

    | found now | the change |
    |---|---|
    | not at all, for the first time in a row | MISSING: a broker that has just started knows few |
    | not at all, several times in a row | DELETED |
    | with another id | RECREATED: it is another stream |
    | with more partitions | WIDER |
    | else | SAME |

    Brokers before 2.8 return no ids: then topics of one name are one.
"""

from collections import Counter
from collections.abc import Container, Iterable
from enum import Enum
from typing import Final

from lmerge_service.kafka.topics import TopicInfo

__all__ = ("BELIEVED", "Sightings", "TopicChange", "change_of", "is_another")

BELIEVED: Final = 2
"""So many times in a row a topic has to be missing until it is taken for deleted, as a rule."""


class TopicChange(Enum):
    """See the module's text."""

    SAME = "same"
    MISSING = "missing"
    DELETED = "deleted"
    RECREATED = "recreated"
    WIDER = "wider"


class Sightings:
    """Counts how often in a row each topic was missing."""

    def __init__(self, believed: int = BELIEVED) -> None:
        self._believed = believed
        self._missing: Counter[str] = Counter()

    def note(self, asked: Iterable[str], found: Container[str]) -> None:
        """These topics were looked up, and those were found."""
        for topic in asked:
            self._missing[topic] = 0 if topic in found else self._missing[topic] + 1

    def is_deleted(self, topic: str) -> bool:
        """It was missing often enough to be believed."""
        return self._missing[topic] >= self._believed

    @property
    def deleted(self) -> frozenset[str]:
        """All topics of which that holds."""
        return frozenset(filter(self.is_deleted, self._missing))


def change_of(
    topic_id: str | None, partitions: int, info: TopicInfo | None, *, deleted: bool
) -> TopicChange:
    """The change of a topic that was known with this id and so many partitions; `deleted` is
    `Sightings.is_deleted`.

    >>> change_of("x", 1, TopicInfo("x", 3), deleted=False)
    <TopicChange.WIDER: 'wider'>
    """
    if info is None:
        return TopicChange.DELETED if deleted else TopicChange.MISSING
    if is_another(topic_id, info.id):
        return TopicChange.RECREATED
    return TopicChange.WIDER if info.partitions > partitions else TopicChange.SAME


def is_another(known: str | None, found: str | None) -> bool:
    """The ids are those of two topics."""
    return known is not None and found is not None and known != found
