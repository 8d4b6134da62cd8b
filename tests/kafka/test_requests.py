"""Produce requests are the client's own, byte for byte."""

from typing import Any, get_args

import pytest
from aiokafka.protocol import produce
from aiokafka.protocol.struct import Struct
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.kafka import requests

VERSIONS = get_args(produce.ProduceRequestStruct)
BATCHES = st.one_of(st.none(), st.binary(max_size=300), st.binary(max_size=300).map(bytearray))
PARTITIONS = st.lists(st.tuples(st.integers(0, 1 << 20), BATCHES), max_size=3)
TOPICS = st.none() | st.lists(st.tuples(st.text(max_size=9), PARTITIONS), max_size=3)


@given(st.sampled_from(VERSIONS), st.none() | st.text(max_size=9), TOPICS)
def test_they_are_encoded_as_by_the_client(version: Any, by: str | None, topics: Any) -> None:
    named = () if version.API_VERSION < 3 else (by,)
    request = version(*named, -1, 30_000, topics)
    assert version.encode is requests.encoded
    assert request.encode() == Struct.encode(request)


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        produce.ProduceRequest_v7("by", -1, 30_000, [("topic", [(0,)])]).encode()
