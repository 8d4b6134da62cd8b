"""The token that a consumer stores with its own results, to go on exactly where they end.

Theory
    What a reader hands out next is a function of its operator, of the next offset of each
    partition, and of what it has merged and not handed out yet. The token is these three, so that
    elements handed out before and after it are together what an uninterrupted reader hands out.

Invariants
    K1  Bytes that are not exactly those of a token of this version are refused.
    K2  Its size is that of the live events, and of one batch at the most, and of a bounded number
        of checksums where records are numbered: it does not grow with what was read.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from lmerge_service.core import LMerge, restore
from lmerge_service.core.engine import EngineSetting
from lmerge_service.elements import START, Element
from lmerge_service.errors import StateError
from lmerge_service.formats.payload import DEEPEST, EQUALITY_VERSION
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.reader.inlets import ReadPosition

__all__ = ("Token",)

_VERSION = 2
_DIGEST_BYTES = 32


class _Version(msgspec.Struct):
    version: int


class Token(msgspec.Struct, frozen=True):
    """A token, taken apart."""

    version: int
    equality: int
    """Of the rule by which payloads are equal: the operator's payloads are by it."""
    nfc: bool
    operator: bytes
    places: dict[str, ReadPosition]
    waiting: list[bytes]
    drop_nulls: bool = False
    correct_from: int = START
    """The stream has every event that ends at this time or later."""

    @classmethod
    def of(
        cls,
        merge: LMerge,
        places: Mapping[str, ReadPosition],
        waiting: Sequence[Element],
        *,
        nfc: bool,
        drop_nulls: bool = False,
        correct_from: int = START,
    ) -> "Token":
        """A token of the operator's state, where each topic is read on, and what is merged and not
        handed out."""
        return cls(
            _VERSION,
            EQUALITY_VERSION,
            nfc,
            merge.snapshot(),
            dict(places),
            [encode(element) for element in waiting],
            drop_nulls,
            correct_from,
        )

    def sealed(self) -> bytes:
        """The token as bytes that `unsealed` reads: its SHA-256, then msgpack."""
        body = msgspec.msgpack.encode(self)
        return sha256(body).digest() + body

    @classmethod
    def unsealed(cls, saved: bytes) -> "Token":
        """Reads what `sealed` wrote.

        Raises:
            StateError: the bytes are damaged, or of another version.
        """
        digest, body = saved[:_DIGEST_BYTES], saved[_DIGEST_BYTES:]
        if sha256(body).digest() != digest:
            raise StateError("the token is damaged: its digest does not match")
        try:
            version = msgspec.msgpack.decode(body, type=_Version).version
            if version != _VERSION:
                raise StateError(f"the token is of version {version}, this is version {_VERSION}")
            token = msgspec.msgpack.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise StateError(f"the token is damaged: {error}") from error
        if token.equality != EQUALITY_VERSION:
            raise StateError(
                f"the token's payloads are equal by version {token.equality} of the rule, this is "
                f"version {EQUALITY_VERSION}: begin without it"
            )
        return token

    def merge(self, engine: EngineSetting = "python") -> LMerge:
        """The operator, as it was."""
        return restore(self.operator, engine)

    def elements(self) -> list[Element]:
        """What was merged and not handed out."""
        decode = WireDecoder(max_record_bytes=1 << 30, max_depth=DEEPEST).decode
        return [decode(record) for record in self.waiting]
