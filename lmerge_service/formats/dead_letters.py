"""What becomes of a record that is no element: a record of the dead-letter topic.

Theory
    The merge goes on without the record. The dead letter has where it came from and what is wrong
    in headers, and the record itself as key and value, byte for byte, so that it can be corrected
    and sent again. Only what is large is cut: the dead-letter topic must take
    every letter, or one record too large for it would stop the merge.

Invariants
    D1  A tombstone stays one, and so does a missing key.
    D2  Key, value and message are bounded, whatever the input was.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ("MAX_BYTES", "DeadLetter")

MAX_BYTES: Final = 64 * 1024
"""Of key and value each; what is longer is cut to this."""

_MAX_MESSAGE_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused record, where it stood, and why it was refused (`reasons`)."""

    replica: str
    topic: str
    partition: int
    offset: int
    reason: str
    message: str
    key: bytes | None
    value: bytes | None

    def to_record(self) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]:
        """(key, value, headers) for the dead-letter topic.

        `lmerge-truncated` and `lmerge-key-truncated` hold the size in bytes of what was cut.

        >>> DeadLetter("a", "in", 0, 7, "tombstone", "no value", b"k", None).to_record()[:2]
        (b'k', None)
        """
        headers = [
            ("lmerge-reason", self.reason),
            ("lmerge-message", self.message[:_MAX_MESSAGE_CHARACTERS]),
            ("lmerge-replica", self.replica),
            ("lmerge-topic", self.topic),
            ("lmerge-partition", str(self.partition)),
            ("lmerge-offset", str(self.offset)),
        ]
        for name, whole in (("truncated", self.value), ("key-truncated", self.key)):
            if whole is not None and len(whole) > MAX_BYTES:
                headers.append((f"lmerge-{name}", str(len(whole))))
        return (
            self.key and self.key[:MAX_BYTES],
            self.value and self.value[:MAX_BYTES],
            [(name, text.encode(errors="backslashreplace")) for name, text in headers],
        )
