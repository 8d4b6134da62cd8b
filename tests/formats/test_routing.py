"""Routes are those of Kafka's own producers, and follow from the payload alone."""

import json
from random import Random
from typing import Any

import pytest
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as by_the_client
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.formats.payload import canonical
from lmerge_service.formats.routing import Router, murmur2, murmur2_of_each

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcé"), inner, max_size=3)
    ),
    max_leaves=8,
)


def text(value: Any) -> bytes:
    return canonical(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_kafkas_own_tests(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (b"", 681),
        (b"a", 524),
        (b"ab", 434),
        (b"abc", 107),
        (b"123456789", 566),
        (b"\x00 ", 742),
    ],
)
def test_partitions_are_those_of_the_java_client(key: bytes, partition: int) -> None:
    assert Router(1000).partition_of(key) == partition


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_hash_and_partition_are_those_of_the_python_client(key: bytes, partitions: int) -> None:
    numbers = list(range(partitions))
    assert murmur2(key) == by_the_client(key)
    assert Router(partitions).partition_of(key) == DefaultPartitioner()(key, numbers, numbers)


@given(st.lists(st.integers(0, 9).flatmap(lambda n: st.binary(min_size=n, max_size=n))))
def test_many_keys_are_hashed_as_each_is(keys: list[bytes]) -> None:
    assert murmur2_of_each(keys) == [by_the_client(key) for key in keys]


@given(st.integers(0, 130), st.integers(5, 40), st.randoms(use_true_random=False))
def test_many_keys_of_one_length_are_hashed_as_each_is(
    size: int, count: int, random: Random
) -> None:
    keys = [random.randbytes(size) for _ in range(count)] + [b"\xff" * size]
    assert murmur2_of_each(keys) == [by_the_client(key) for key in keys]


@given(st.dictionaries(st.sampled_from("abcé"), values, max_size=4))
def test_a_key_is_the_canonical_text_of_its_fields(payload: dict[str, Any]) -> None:
    nested = payload.get("a")
    deep = nested.get("b") if isinstance(nested, dict) else None
    raw = text(payload)
    assert Router(2).key_of(raw) == raw
    assert Router(2, ["é"]).key_of(raw) == text(payload.get("é"))
    assert Router(2, ["a.b"]).key_of(raw) == text(deep)
    assert Router(2, ["b", "a.b", "a"]).key_of(raw) == text([payload.get("b"), deep, nested])


@pytest.mark.parametrize("payload", [b"7", b'"a"', b"[1]", b"null", b"{}", b'{"a":7}', b'{"b":1}'])
def test_a_field_that_is_not_there_is_null(payload: bytes) -> None:
    assert Router(2, ["a.b"]).key_of(payload) == b"null"
    assert Router(2, ["a.b", "c"]).key_of(payload) == b"[null,null]"


def test_the_same_key_is_routed_the_same_whatever_else_the_payload_contains() -> None:
    router = Router(97, ["id"])
    routes = {router.partition_of(text({"id": 5, "n": n})) for n in range(50)}
    assert routes == {murmur2(b"5") % 2**31 % 97}


@given(
    st.lists(st.binary(max_size=60), max_size=60),
    st.integers(0, 12),
    st.integers(0, 2000),
)
def test_what_is_kept_is_bounded_and_never_wrong(
    payloads: list[bytes], max_entries: int, max_bytes: int
) -> None:
    router = Router(7, max_entries=max_entries, max_bytes=max_bytes)
    for payload in payloads:
        some = payloads[: len(payload)]
        assert router.partitions_of(some) == [(murmur2(p) & 0x7FFFFFFF) % 7 for p in some]
        router.check()
        assert router.partition_of(payload) == (murmur2(payload) & 0x7FFFFFFF) % 7
        router.check()


def test_a_payload_that_is_seen_again_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashing(key: bytes) -> int:
        hashed.append(key)
        return len(hashed)

    hashed: list[bytes] = []
    monkeypatch.setattr("lmerge_service.formats.routing.murmur2", hashing)
    router = Router(7, max_entries=4)
    recent = [b"a", b"b", b"c"]  # one more than a generation holds
    assert [router.partition_of(payload) for payload in recent * 3] == [1, 2, 3] * 3
    assert hashed == recent


def test_what_was_found_together_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b'{"id":%d}' % number for number in range(20)]
    expected = [Router(7, ["id"]).partition_of(payload) for payload in payloads]
    router = Router(7, ["id"])
    assert router.partitions_of(payloads) == expected
    monkeypatch.delattr("lmerge_service.formats.routing.murmur2")
    assert [router.partition_of(payload) for payload in payloads] == expected
    assert router.partitions_of(payloads) == expected


def test_one_partition_needs_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("lmerge_service.formats.routing.murmur2")
    router = Router(1)
    assert router.partitions_of([b"7"]) == [0]
    assert router.partition_of(b"7") == 0


@pytest.mark.parametrize(("partitions", "fields"), [(0, []), (-1, []), (2, [""]), (2, ["a..b"])])
def test_what_cannot_be_routed_is_a_mistake(partitions: int, fields: list[str]) -> None:
    with pytest.raises(ValueError, match=r"partitions|empty"):
        Router(partitions, fields)
