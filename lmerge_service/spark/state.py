"""What Spark keeps of a bucket: a snapshot in pages, and behind it the batches since.

Theory
    A bucket's state lives in its operator, in a Python worker. What Spark keeps must cost what a
    batch changes and not what there is. What a bucket emits is a function of its batches, so a
    state is a snapshot and the batches since, and that is what is kept: a batch is written down as
    it came, and when the batches weigh more than twice the snapshot, a new one takes the place of
    all of it:

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from lmerge_service.errors import StateError

__all__ = (
    "LEAST_LOG",
    "Bucket",
    "Cache",
    "Counted",
    "Kept",
    "Readable",
    "Store",
    "Stored",
    "Variables",
    "opened_head",
    "run",
    "steps_of",
)

_VERSION: Final = 3
_PAGE_BYTES: Final = 1 << 20
LEAST_LOG: Final = 16 << 20
"""Bytes of log without a new snapshot, however small the last one was."""
_KEPT_BUCKETS: Final = 64


Counted: TypeAlias = Sequence[tuple[str, str, int]]
"""(kind, replica, count) of what a bucket has found."""


class Bucket(Protocol):
    """An operator whose state is kept: a function of batches."""

    @property
    def transaction(self) -> int:
        """How many batches it has taken."""

    @property
    def emitted(self) -> int:
        """The number of the last record that it has emitted."""

    def take(self, batch: int, chunks: Iterable[bytes]) -> Any:
        """Takes a batch; what it emits."""

    def pages(self) -> Iterator[bytes]:
        """Its state, piece by piece."""

    def carried(self) -> tuple[int, Counted]:
        """What its pages lack: the steps that it has carried out, and what it has counted."""

    def load(self, pages: Iterable[bytes], steps: int, counted: Counted) -> None:
        """Takes over the state that pages are of.

        Raises:
            StateError: they are damaged, or of another operator.
        """


B = TypeVar("B", bound=Bucket)


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
class Kept(Generic[B]):
    """A bucket in a worker's memory."""

    bucket: B
    token: bytes


Cache: TypeAlias = OrderedDict[tuple[str, int], Kept[Any]]
_cache: Final[Cache] = OrderedDict()


def run(
    variables: Variables,
    identity: str,
    number: int,
    fresh: Callable[[], B],
    batch: int,
    chunks: Sequence[bytes],
    *,
    goes_on: Callable[[B], bool] = lambda _: True,
    is_due: Callable[[B, int], bool] = lambda _, stored: False,
    cache: Cache = _cache,
    least_log: int = LEAST_LOG,
) -> tuple[B, Any]:
    """Has the bucket of a number take a batch, and writes down what is needed to have it again: the
    bucket, and what it emits. `fresh` makes it as it is before the first batch; `goes_on` sees one
    that is kept before it takes anything more, and returns whether it may. A snapshot is taken
    besides if it `is_due` by how many steps the last one had carried out. `identity` distinguishes
    the bucket from those of other queries.

    Raises:
        StateError: what is stored is damaged, or cannot be gone on with.
    """
    stored: Store[B] = Store(variables, least_log)
    kept: Kept[B] | None = cache.pop((identity, number), None)
    kept = stored.opened(kept if kept is not None and goes_on(kept.bucket) else None, fresh)
    bucket = kept.bucket
    result = bucket.take(batch, chunks)
    due = is_due(bucket, stored.steps)
    kept.token = stored.committed(kept, batch, chunks, due=due)
    cache[identity, number] = kept
    while len(cache) > _KEPT_BUCKETS:
        cache.popitem(last=False)
    return bucket, result


class _Versioned(Protocol):
    """What state begins with."""

    @property
    def version(self) -> int: ...


_V = TypeVar("_V", bound=_Versioned)


def opened_head(data: bytes, decode: Callable[[bytes], _V], version: int) -> _V:
    """What state of a checkpoint begins with.

    Raises:
        StateError: it is damaged, or of another version.
    """
    try:
        head = decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateError(f"the checkpoint's state is damaged: {error}") from error
    if head.version != version:
        raise StateError(f"the checkpoint's state is of version {head.version}, this is {version}")
    return head


def steps_of(head: bytes) -> int:
    """How many steps the snapshot that a head is of has carried out.

    Raises:
        StateError: it is damaged, or of another version.
    """
    return opened_head(head, _read_head, _VERSION).steps


class Stored(Generic[B]):
    """Of one bucket, what the store has."""

    def __init__(self, variables: Readable) -> None:
        self._readable = variables
        data = variables.head()
        self._head = None if data is None else opened_head(data, _read_head, _VERSION)

    @property
    def emitted(self) -> int | None:
        """The number of the last record that the bucket has emitted; None: nothing is stored."""
        return None if self._head is None else self._head.emitted

    @property
    def steps(self) -> int:
        """How many steps the snapshot has carried out; 0: there is none."""
        return 0 if self._head is None else self._head.steps

    def opened(self, kept: Kept[B] | None, fresh: Callable[[], B]) -> Kept[B]:
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
            bucket.load(self._pages(head), head.steps, head.counted)
        return self._caught_up(Kept(bucket, b""), head, head.first)

    def _lacking(self, kept: Kept[B], head: _Head) -> int | None:
        """Where the log goes on from what a worker has; None if it does not. Only what is lacking
        is looked at."""
        number, before = head.next, head.token
        while number > head.first:
            entry = self._entry(number - 1)
            if entry.transaction <= kept.bucket.transaction:
                break
            number, before = number - 1, entry.before
        return number if before == kept.token else None

    def _entry(self, number: int) -> _Entry:
        if (data := self._readable.entry(number)) is None:
            raise StateError(f"the checkpoint's state is damaged: entry {number} is missing")
        return _read_entry(data)

    def _caught_up(self, kept: Kept[B], head: _Head, start: int) -> Kept[B]:
        """Merges the batches of the log from an entry on."""
        bucket = kept.bucket
        entries = (self._entry(number) for number in range(start, head.next))
        for _, batch in groupby(entries, key=attrgetter("transaction")):
            some = list(batch)
            bucket.take(some[0].batch, [each.chunk for each in some if each.chunk is not None])
        if bucket.transaction != head.transaction:
            raise StateError(
                f"the checkpoint's state is damaged: it ends with transaction "
                f"{bucket.transaction}, not {head.transaction}"
            )
        kept.token = head.token
        return kept

    def _pages(self, head: _Head) -> Iterator[bytes]:
        for number in range(head.pages):
            if (page := self._readable.page(number)) is None:
                raise StateError(f"the checkpoint's state is damaged: page {number} is missing")
            yield page


class Store(Stored[B]):
    """The same, written down batch by batch."""

    def __init__(self, variables: Variables, least_log: int = LEAST_LOG) -> None:
        super().__init__(variables)
        self._variables = variables
        self._least_log = least_log

    def committed(
        self, kept: Kept[B], batch: int, chunks: Sequence[bytes], *, due: bool = False
    ) -> bytes:
        """Writes a batch down that was merged, as a snapshot if that is `due`; its token."""
        head, token = self._head, uuid.uuid4().bytes
        size = sum(map(len, chunks))
        if due or head is None or head.log_bytes + size > max(self._least_log, 2 * head.page_bytes):
            self._snapshot(kept.bucket, token)
            return token
        transaction, number = kept.bucket.transaction, head.next
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
                emitted=kept.bucket.emitted,
            )
        )
        return token

    def _snapshot(self, bucket: B, token: bytes) -> None:
        self._variables.clear()
        page, pages, size = bytearray(), 0, 0
        for piece in bucket.pages():
            page += piece
            if len(page) >= _PAGE_BYTES:
                self._variables.set_page(pages, bytes(page))
                pages, size, page = pages + 1, size + len(page), bytearray()
        self._variables.set_page(pages, bytes(page))
        steps, counted = bucket.carried()
        self._set(
            _Head(
                _VERSION,
                transaction=bucket.transaction,
                token=token,
                pages=pages + 1,
                page_bytes=size + len(page),
                steps=steps,
                first=0,
                next=0,
                log_bytes=0,
                emitted=bucket.emitted,
                counted=counted,
            )
        )

    def _set(self, head: _Head) -> None:
        self._head = head
        self._variables.set_head(_write(head))
