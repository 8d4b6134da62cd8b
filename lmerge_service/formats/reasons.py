"""Why a record or line is refused: the closed set that metrics and dead letters carry."""

from enum import StrEnum

__all__ = ("Reason",)


class Reason(StrEnum):
    """The `reason` of every `ElementError` that this package raises; the values never change."""

    TOMBSTONE = "tombstone"
    """No value at all; what a deletion means is defined by a dialect, not by the wire format."""
    TOO_LARGE = "too_large"
    """More bytes than the limit for one record."""
    NOT_UTF8 = "not_utf8"
    """Bytes that no character has."""
    LONE_SURROGATE = "lone_surrogate"
    """Half of a UTF-16 pair, escaped or as bytes: JSON lets it in, UTF-8 cannot encode it."""
    NOT_JSON = "not_json"
    """Anything else that is not one JSON text, NaN and infinities included."""
    NESTING = "nesting"
    """Arrays and objects nested deeper than the limit."""
    DUPLICATE_KEY = "duplicate_key"
    """An object that has two values under one name."""
    NUMBER = "number"
    """A number that neither int64 nor double carries exactly."""
    NOT_AN_ELEMENT = "not_an_element"
    """JSON, but no insert, adjust or stable (E1 and E2 of `elements`)."""
    HEADER = "header"
    """A record header that cannot be understood (`headers`)."""
    LATE = "late"
    """It touches a time that its own replica had declared final (`dialects`)."""
    NO_KEY = "no_key"
    """Nothing identifies the row that it is about (`dialects`)."""
    UNKNOWN_EVENT = "unknown_event"
    """It closes an event that was not opened, or is final (`dialects`)."""
    UNAVAILABLE = "unavailable"
    """It leaves a value out that did not change, and nothing before has that value (`dialects`)."""
