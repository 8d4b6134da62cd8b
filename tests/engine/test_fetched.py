"""What was fetched is read as the client's parser reads it: records, positions, errors."""

import io
import re
import struct
from collections import Counter
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.protocol import fetch
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from lmerge_engine import Decoder, Fetched, Records

from lmerge_service.elements import Insert
from lmerge_service.kafka.records import Part, as_it_is, between, in_batches, value_bytes
from lmerge_service.kafka.records import _decompressed as decompressed
from tests.seeds import seeds

TP = TopicPartition("in", 0)
HEAD = struct.Struct(">qiibIhiqqqhii")
COMMIT, ABORT = b"\0\0\0\1\0\0", b"\0\0\0\0\0\0"
TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08

Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset delta, timestamp, key, value, headers."""


def batch(
    base: int,
    rows: list[Row],
    *,
    codec: int = 0,
    producer: int = -1,
    flags: int = 0,
    last: int | None = None,
    magic: int = 2,
) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, producer, 0, 0, 1 << 30)
    for delta, timestamp, key, value, headers in rows:
        builder.append(delta, timestamp, key, value, headers)
    made = bytes(builder.build())
    fields = list(HEAD.unpack_from(made))
    fields[0], fields[3] = base, magic
    fields[5] |= flags
    if last is not None:
        fields[6] = last
    return sealed(fields, made[HEAD.size :])


def sealed(fields: list[int], body: bytes) -> bytes:
    fields[1] = HEAD.size - 12 + len(body)
    rest = HEAD.pack(*fields)[21:] + body
    fields[4] = calc_crc32c(rest)
    return HEAD.pack(*fields)[:21] + rest


def marker(base: int, producer: int, kind: bytes) -> bytes:
    rows: list[Row] = [(0, 5, kind[:4], kind, [])]
    return batch(base, rows, producer=producer, flags=TRANSACTIONAL | CONTROL)


def _rows(rng: Random) -> list[Row]:
    rows: list[Row] = []
    delta = 0
    for _ in range(rng.randrange(6)):
        delta += rng.choice((0, 0, 0, 1, 3))  # compacted gaps
        texts = (None, b"", b"k" * rng.randrange(200), "ä".encode())
        headers = [(rng.choice(("", "h", "é")), rng.choice((None, b"", b"v")))]
        rows.append(
            (
                *(delta, 1_000 + rng.randrange(-5, 5), rng.choice(texts), rng.choice(texts)),
                headers * rng.choice((0, 0, 1, 2)),
            )
        )
        delta += 1
    return rows


def fetches(rng: Random, *, legacy: bool) -> tuple[bytes, list[tuple[int, int]], int]:
    """Batches, the transactions among them that were aborted, and the position."""
    found, aborted, base = b"", [], rng.randrange(100)
    position = base + rng.choice((0, 0, 0, 2, 7))
    open_: dict[int, int] = {}
    for _ in range(rng.randrange(1, 7)):
        rows, draw = _rows(rng), rng.random()
        last = max([delta for delta, *_ in rows], default=0) + rng.choice((0, 0, 2))
        producer = rng.randrange(3)
        if draw < 0.2 and open_:
            producer = rng.choice(list(open_))
            kind = rng.choice((COMMIT, ABORT))
            if kind is ABORT:
                aborted.append((producer, open_[producer]))
            del open_[producer]
            found += marker(base, producer, kind)
            last = 0
        elif draw < 0.25 and legacy:
            builder = LegacyRecordBatchBuilder(rng.randrange(2), 0, 1 << 20)
            builder.append(base, 7, b"k", b"v")
            found += bytes(builder.build())
            last = 0
        else:
            codec = rng.choice((0, 0, 0, 1, 2, 3, 4)) if rows else 0
            flags = rng.choice((0, 0, LOG_APPEND_TIME))
            if rng.random() < 0.5:
                flags |= TRANSACTIONAL
                open_.setdefault(producer, base)
            found += batch(base, rows, codec=codec, producer=producer, flags=flags, last=last)
        base += last + 1
    aborted += [(producer, first) for producer, first in open_.items() if rng.random() < 0.3]
    rng.shuffle(aborted)
    return found, aborted, position


def damaged(rng: Random, data: bytes) -> bytes:
    """Bytes that are wrong, below sums that are right or wrong; a part of the bytes; more."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed))
        changed[at] = rng.choice((0, 1, 0xFF, 0x80, changed[at] ^ 1, rng.randrange(256)))
    if rng.random() < 0.7:
        changed = bytearray(resealed(changed))
    if rng.random() < 0.2:
        del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def resealed(data: bytearray) -> bytes:
    """With sums that are right, as far as lengths are."""
    at, found = 0, bytearray(data)
    while len(data) - at > HEAD.size:
        length = struct.unpack_from(">i", data, at + 8)[0]
        end = at + 12 + length
        if length < HEAD.size or end > len(data):
            break
        struct.pack_into(">I", found, at + 17, calc_crc32c(bytes(data[at + 21 : end])))
        at = end
    return bytes(found)


def calls(
    deserializer: Any,
    data: bytes | Part,
    aborted: list[tuple[int, int]],
    position: int,
    most: int | None,
) -> Iterator[tuple[Any, ...]]:
    """What each call for records comes to."""
    memory = fetcher.MemoryRecords(data)
    if not memory.has_next():
        return
    state = SimpleNamespace(paused=False, position=position)
    state.consumed_to = lambda offset: setattr(state, "position", offset)
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    records = fetcher.PartitionRecords(
        TP, memory, list(aborted), position, deserializer, deserializer, True, READ_COMMITTED
    )
    result = fetcher.FetchResult(TP, assignment=assignment, partition_records=records, backoff=0)
    while result.has_more():
        try:
            found = result.getall(most)
        except Exception as error:  # whatever it is, it must be the same
            # The client reads on behind damaged bytes, where it finds other numbers each time.
            yield type(error), re.sub(r"\d+", "…", str(error)), records.next_fetch_offset
            return
        shown = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in found]
        yield shown, state.position, result.has_more(), records.next_fetch_offset


READ_COMMITTED = fetcher.READ_COMMITTED


@seeds(3_000)
def test_it_is_read_as_the_client_reads_it(seeds: range) -> None:
    seen = Counter[str]()
    for seed in seeds:
        rng = Random(seed)
        is_damaged = rng.random() < 0.4
        data, aborted, position = fetches(rng, legacy=is_damaged)
        if is_damaged:
            data = damaged(rng, data)
        most = rng.choice((None, 1, 2, 3, 10))
        arguments = data, aborted, position, most
        wanted = list(calls(as_it_is, *arguments))
        assert list(calls(in_batches, *arguments)) == wanted, f"seed {seed}"
        begin, behind = rng.randrange(40), fetches(rng, legacy=False)[0]
        part = Part(rng.randbytes(begin) + data + behind, begin, begin + len(data))
        inside = list(calls(in_batches, part, *arguments[1:]))
        assert inside == wanted, f"seed {seed}, in an answer with more"
        errors = [each for each in wanted if isinstance(each[0], type)]
        seen["error"] += bool(errors)
        fetched = Fetched(data, position, aborted, True, decompressed)
        fetched.take()
        assert is_damaged or fetched.fault is None, f"seed {seed} is not read by the engine"
        seen["aborted"] += bool(aborted)
    assert seen["error"] > len(seeds) / 20
    assert seen["aborted"] > len(seeds) / 10


@pytest.mark.parametrize("version", range(12))
def test_what_is_much_of_an_answer_stays_in_it(version: int) -> None:
    large, small = b"x" * 100_000, b"y" * 70_000
    response = getattr(fetch, f"FetchResponse_v{version}")
    partition, topics = response.SCHEMA.fields[-1].array_of.fields[1].array_of, list[Any]()
    for each in (large, small, None, b"", large * 3):
        fields = dict.fromkeys(partition.names, 0) | {"message_set": each}
        topics.append(("t", [[fields[n] if n != "aborted_transactions" else [] for n in fields]]))
    given = dict.fromkeys(response.SCHEMA.names, 0) | {"topics": topics}
    answer = response.SCHEMA.encode([*given.values()])
    decoded = dict(zip(given, response.SCHEMA.decode(io.BytesIO(answer)), strict=True))
    found = [partitions[0][-1] for _, partitions in decoded["topics"]]
    assert found[:4] == [large, small, None, b""], "they are less than a quarter of it"
    assert isinstance(found[4], Part)
    assert found[4].answer is answer
    assert bytes(found[4]) == large * 3
    with pytest.raises(ValueError, match="underrun"):
        response.SCHEMA.decode(io.BytesIO(answer[:-1]))


def test_it_is_a_sequence() -> None:
    rows: list[Row] = [(n, n, None, b"%d" % n, []) for n in range(5)]
    records = Fetched(batch(10, rows), 10, [], True, lambda *_: None).take()
    assert isinstance(records, Records)
    assert [each.offset for each in records] == [10, 11, 12, 13, 14]
    assert [each.value for each in records[1:3]] == [b"1", b"2"]
    assert [each.value for each in records[1:4][1:]] == [b"2", b"3"]
    assert [each.value for each in records[::2]] == [b"0", b"2", b"4"]
    assert [each.offset for each in reversed(records)] == [14, 13, 12, 11, 10]
    assert records[-1].offset == 14
    assert not records[5:]
    with pytest.raises(IndexError):
        records[5]
    assert value_bytes(records) == value_bytes([*records]) == 5
    for given in (records, list(records)):
        assert [each.offset for each in between(given, 11, 13)] == [11, 12]
        assert [each.offset for each in between(given, 0, 99)] == [10, 11, 12, 13, 14]
        assert len(between(given, 15, 99)) == len(between(given, 0, 10)) == 0


INSERT = b'{"op":"insert","payload":%d,"vs":6,"ve":9}'
STABLE = b'{"op":"stable","vc":7}'
PLAIN = [("lmerge-incarnation", b"1")]


@pytest.mark.parametrize("headers", [[], PLAIN])
def test_the_decoder_takes_them(headers: list[tuple[str, bytes]]) -> None:
    """Up to a stable, and to what is not for it: null, other headers, what is no element."""
    values = [INSERT % 1, INSERT % 2, STABLE, INSERT % 3, b"[", INSERT % 4, None, INSERT % 5]
    rows: list[Row] = [(n, 0, None, value, [*headers]) for n, value in enumerate(values)]
    rows.append((8, 0, None, INSERT % 6, [*headers, ("h", b"")]))
    rows.append((9, 0, None, INSERT % 7, [("lmerge-incarnation", b"2")]))
    records = Fetched(batch(0, rows), 0, [], True, lambda *_: None).take()
    decoder = Decoder(False, False, 64, 1 << 20)
    for given in (records, [*records]):
        at, stops = 0, []
        elements = decoder.empty()
        while at < len(given):
            at, stable = decoder.take(given, at, headers, elements)
            stops.append((at, stable))
            at += 1
        assert stops == [(2, 7), (4, None), (6, None), (8, None), (9, None)]
        assert [*elements] == [Insert(b"%d" % n, 6, 9) for n in range(1, 6)]
