"""What Kafka takes for the name of a topic."""

import re
from typing import Final

__all__ = ("TOPIC_NAME", "is_topic_name")

TOPIC_NAME: Final = (
    r"^([a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}"
    r"|\.[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,247}|\.\.[a-zA-Z0-9._-]{1,247})$"
)
"""A pattern, also for a JSON schema."""


def is_topic_name(name: str) -> bool:
    """Whether it is one.

    >>> [is_topic_name(each) for each in ("flights.a", "...", ".", "..", "", "a b", "a" * 250)]
    [True, True, False, False, False, False, False]
    """
    return re.fullmatch(TOPIC_NAME, name) is not None
