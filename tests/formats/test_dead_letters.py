"""What becomes of a record that is no element."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.errors import ElementError
from lmerge_service.formats.dead_letters import MAX_BYTES, DeadLetter
from lmerge_service.formats.wire import WireDecoder


def letter(key: bytes | None, value: bytes | None, message: str = "no value") -> DeadLetter:
    return DeadLetter("plan-a", "plan-a.out", 3, 4711, "tombstone", message, key, value)


def test_a_letter_names_where_the_record_was_and_what_is_wrong() -> None:
    assert letter(b"key", b"value").to_record() == (
        b"key",
        b"value",
        [
            ("lmerge-reason", b"tombstone"),
            ("lmerge-message", b"no value"),
            ("lmerge-replica", b"plan-a"),
            ("lmerge-topic", b"plan-a.out"),
            ("lmerge-partition", b"3"),
            ("lmerge-offset", b"4711"),
        ],
    )


@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("value", [None, b"", b"v"])
def test_a_tombstone_stays_one_and_an_empty_value_does_not_become_one(
    key: bytes | None, value: bytes | None
) -> None:
    """X15 of the faults: null must not turn into a text, nor break anything."""
    assert letter(key, value).to_record()[:2] == (key, value)


def test_what_is_large_is_cut_and_its_size_stated() -> None:
    """X14 of the faults: a letter that Kafka refuses would be a poison pill again."""
    key, value, headers = letter(b"k" * 2_000_000, b"v" * (MAX_BYTES + 1), "m" * 9999).to_record()
    assert key == b"k" * MAX_BYTES
    assert value == b"v" * MAX_BYTES
    assert headers[-2:] == [
        ("lmerge-truncated", b"65537"),
        ("lmerge-key-truncated", b"2000000"),
    ]
    assert sum(len(text) for _, text in headers) < 1000


def test_what_just_fits_is_not_cut() -> None:
    _, value, headers = letter(None, b"v" * MAX_BYTES).to_record()
    assert value == b"v" * MAX_BYTES
    assert "lmerge-truncated" not in dict(headers)


@given(st.text(st.characters()), st.binary(max_size=50))
def test_any_message_and_any_bytes_make_a_record(message: str, value: bytes) -> None:
    _, kept, headers = letter(value, value, message).to_record()
    assert kept == value
    assert all(text.decode() is not None for _, text in headers)


def test_a_refusal_fits_into_a_letter() -> None:
    with pytest.raises(ElementError) as refused:
        WireDecoder().decode(b'{"op":"stable","vc":1,"\xff":2}')
    made = DeadLetter("a", "in", 0, 0, refused.value.reason, str(refused.value), None, b"")
    assert ("lmerge-reason", b"not_utf8") in made.to_record()[2]
