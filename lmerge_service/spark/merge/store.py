"""What Spark keeps of a bucket: a snapshot in pages, and behind it the batches since.

Theory
    A bucket's state lives in its operator, in a Python worker. What Spark keeps must cost what a
    batch changes and not what there is. By U1 of `bucket` a state is a snapshot and the batches
    since, so that is what is kept: a batch is written down as it was decoded, and when the batches
    weigh more than twice the snapshot, a new one takes the place of all of it:

        pages  1 2 3 4   (as of transaction 40)
        log    41 42 43 …
        head   transaction 43, token t43

    So each byte that comes is written once, and at most half a byte of snapshot beside it.

    The worker keeps the operator between batches. Spark chooses which worker gets the next batch of
    a bucket, so what a worker has may be old: then it merges the batches that it lacks, from the
    log, and is up to date. Only a worker that has nothing, or an older state than the log, reads
    the pages. A token that is made with each transaction shows whether what a worker has is what
    the store has: a batch that failed, or was run elsewhere as well, leaves another token.

    Why not a map of events in Spark's store: an operation takes 30 to 80 µs, and a stable needs
    ranges of ends, which it does not have. Why not the operator as one value: each batch would
    write the whole state.

Invariants
    B1  Pages and log together are the state at the head's transaction.
    B2  What a worker keeps is used only if its token is the head's, or stands in the log.

Cost
    A batch: two operations of the store and one for each of its chunks (50 µs each), and its
    bytes. Memory: in each worker of an executor one operator for each bucket that it has run.
"""

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

import msgspec

from lmerge_service.errors import StateError
from lmerge_service.spark.merge.bucket import Bucket, BucketResult
from lmerge_service.spark.merge.chunks import unpacked
from lmerge_service.spark.merge.findings import Counted
from lmerge_service.spark.merge.plan import MergePlan

__all__ = ("LEAST_LOG", "Cache", "Kept", "Readable", "Store", "Stored", "Variables", "run")

_VERSION: Final = 3
_PAGE_BYTES: Final = 1 << 20
LEAST_LOG: Final = 16 << 20
"""Bytes of log without a new snapshot, however small the last one was."""
_KEPT_BUCKETS: Final = 64


class Readable(Protocol):
    """A bucket's variables in Spark's store, to be read."""

    def head(self) -> bytes | None:
        """The head: version, transaction, where log and pages are; None before the first batch."""

    def entry(self, number: int) -> bytes | None:
        """Of the log."""
        ...

    def page(self, number: int) -> bytes | None:
        """A page of the latest snapshot; None if there is none of this number."""


class Variables(Readable, Protocol):
    """The same, to be written as well."""

    def set_head(self, data: bytes) -> None:
        """Replaces the head."""

    def append(self, number: int, data: bytes) -> None:
        """Writes the entry of this number to the log."""

    def set_page(self, number: int, data: bytes) -> None:
        """Writes a page of a snapshot."""

    def clear(self) -> None:
        """Empties log and pages."""
        ...


class _Head(msgspec.Struct, frozen=True, array_like=True):
    version: int
    transaction: int
    token: bytes
    pages: int
    page_bytes: int
    steps: int
    """Carried out in the snapshot."""
    first: int
    """The log's first entry; the others follow."""
    next: int
    log_bytes: int
    emitted: int
    """The number of the last record that the bucket has emitted."""
    counted: Counted
    """In the snapshot, of `findings`."""


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One chunk of a batch, or an empty batch."""

    transaction: int
    batch: int
    before: bytes
    """The token of the transaction before."""
    token: bytes
    chunk: bytes | None


_read_head: Final = msgspec.msgpack.Decoder(_Head).decode
_read_entry: Final = msgspec.msgpack.Decoder(_Entry).decode
_write: Final = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Kept:
    """A bucket in a worker's memory."""

    bucket: Bucket
    token: bytes


Cache: TypeAlias = "OrderedDict[tuple[str, int], Kept]"
_cache: Final[Cache] = OrderedDict()
Fresh: TypeAlias = Callable[[], Bucket]


def run(
    variables: Variables,
    plan: MergePlan,
    number: int,
    fresh: Fresh,
    batch: int,
    chunks: Sequence[bytes],
    *,
    cache: Cache = _cache,
    least_log: int = LEAST_LOG,
) -> tuple[Bucket, BucketResult]:
    """Merges a batch into the bucket of a number, and writes down what is needed to have it again;
    `fresh` makes the bucket as it is before the first batch.

    Raises:
        StateError: what is stored is damaged, or cannot be gone on with.
    """
    stored = Store(variables, least_log)
    kept = stored.opened(cache.pop((plan.id, number), None), fresh)
    bucket = kept.bucket
    bucket.plan = plan
    result = bucket.apply(batch, map(unpacked, chunks))
    kept.token = stored.committed(kept, batch, chunks)
    cache[plan.id, number] = kept
    while len(cache) > _KEPT_BUCKETS:
        cache.popitem(last=False)
    return bucket, result


class Stored:
    """Of one bucket, what the store has."""

    def __init__(self, variables: Readable) -> None:
        self._readable = variables
        data = variables.head()
        self._head = None if data is None else self._opened_head(data)

    @staticmethod
    def _opened_head(data: bytes) -> _Head:
        try:
            head = _read_head(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateError(f"the checkpoint's state is damaged: {error}") from error
        if head.version != _VERSION:
            raise StateError(
                f"the checkpoint's state is of version {head.version}, this is {_VERSION}"
            )
        return head

    @property
    def emitted(self) -> int | None:
        """The number of the last record that the bucket has emitted; None: nothing is stored."""
        return None if self._head is None else self._head.emitted

    def opened(self, kept: Kept | None, fresh: Fresh) -> Kept:
        """The bucket as of the head, from what a worker has if that is of use."""
        head = self._head
        if head is None:
            return Kept(fresh(), b"")
        if kept is not None and kept.token == head.token:
            return kept
        if kept is not None and (start := self._lacking(kept, head)) is not None:
            return self._caught_up(kept, head, start)
        bucket = fresh()
        if head.pages:
            bucket.adopt(self._pages(head), head.steps, counted=head.counted)
        return self._caught_up(Kept(bucket, b""), head, head.first)

    def _lacking(self, kept: Kept, head: _Head) -> int | None:
        """Where the log goes on from what a worker has; None if it does not. Only what is lacking
        is looked at."""
        number, before = head.next, head.token
        while number > head.first:
            entry = self._entry(number - 1)
            if entry.transaction <= kept.bucket.state.transaction:
                break
            number, before = number - 1, entry.before
        return number if before == kept.token else None

    def _entry(self, number: int) -> _Entry:
        if (data := self._readable.entry(number)) is None:
            raise StateError(f"the checkpoint's state is damaged: entry {number} is missing")
        return _read_entry(data)

    def _caught_up(self, kept: Kept, head: _Head, start: int) -> Kept:
        """Merges the batches of the log from an entry on."""
        bucket = kept.bucket
        entries = (self._entry(number) for number in range(start, head.next))
        for _, batch in groupby(entries, key=attrgetter("transaction")):
            some = list(batch)
            bucket.apply(
                some[0].batch, [unpacked(each.chunk) for each in some if each.chunk is not None]
            )
        if bucket.state.transaction != head.transaction:
            raise StateError(
                f"the checkpoint's state is damaged: it ends with transaction "
                f"{bucket.state.transaction}, not {head.transaction}"
            )
        kept.token = head.token
        return kept

    def _pages(self, head: _Head) -> Iterator[bytes]:
        for number in range(head.pages):
            if (page := self._readable.page(number)) is None:
                raise StateError(f"the checkpoint's state is damaged: page {number} is missing")
            yield page


class Store(Stored):
    """The same, written down batch by batch."""

    def __init__(self, variables: Variables, least_log: int = LEAST_LOG) -> None:
        super().__init__(variables)
        self._variables = variables
        self._least_log = least_log

    def committed(self, kept: Kept, batch: int, chunks: Sequence[bytes]) -> bytes:
        """Writes a batch down that was merged; its token."""
        head, token = self._head, uuid.uuid4().bytes
        size = sum(map(len, chunks))
        if head is None or head.log_bytes + size > max(self._least_log, 2 * head.page_bytes):
            self._snapshot(kept.bucket, token)
            return token
        transaction, number = kept.bucket.state.transaction, head.next
        whole: Sequence[bytes | None] = chunks or (None,)
        for chunk in whole:
            entry = _Entry(transaction, batch, kept.token, token, chunk)
            self._variables.append(number, _write(entry))
            number += 1
        self._set(
            msgspec.structs.replace(
                head,
                transaction=transaction,
                token=token,
                next=number,
                log_bytes=head.log_bytes + size,
                emitted=kept.bucket.state.output_records,
            )
        )
        return token

    def _snapshot(self, bucket: Bucket, token: bytes) -> None:
        self._variables.clear()
        state, page, pages, size = bucket.state, bytearray(), 0, 0
        for piece in state.stream(state.commit_record()):
            page += piece
            if len(page) >= _PAGE_BYTES:
                self._variables.set_page(pages, bytes(page))
                pages, size, page = pages + 1, size + len(page), bytearray()
        self._variables.set_page(pages, bytes(page))
        self._set(
            _Head(
                _VERSION,
                transaction=state.transaction,
                token=token,
                pages=pages + 1,
                page_bytes=size + len(page),
                steps=bucket.steps,
                first=0,
                next=0,
                log_bytes=0,
                emitted=state.output_records,
                counted=bucket.findings.counted(),
            )
        )

    def _set(self, head: _Head) -> None:
        self._head = head
        self._variables.set_head(_write(head))
