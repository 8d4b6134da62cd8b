"""Which records were written before: by their numbers, and by what they hold."""

import random

import pytest

from lmerge_service.errors import StateError
from lmerge_service.formats.headers import SEQ_HEADER
from lmerge_service.formats.repeats import FLIGHT, Numbers, RecordReading, Repeats, content_of

NEW, REPEAT, CONTRADICTION = RecordReading.NEW, RecordReading.REPEAT, RecordReading.CONTRADICTION


def content(writer: str, number: int) -> int:
    return content_of(f"{writer}{number}".encode())


def readings(numbers: Numbers, writer: str, *those: int) -> list[RecordReading]:
    return [numbers.read(number, content(writer, number)) for number in those]


def count(numbers: Numbers, writer: str, those: range) -> dict[RecordReading, int]:
    found = readings(numbers, writer, *those)
    return {reading: found.count(reading) for reading in RecordReading if reading in found}


def test_what_is_written_again_is_a_repeat() -> None:
    numbers = Numbers()
    assert readings(numbers, "a", 1, 2, 1, 2, 3) == [NEW, NEW, REPEAT, REPEAT, NEW]


@pytest.mark.parametrize("seed", range(20))
def test_of_any_mixture_of_two_attempts_each_record_counts_once(seed: int) -> None:
    rng, numbers = random.Random(seed), Numbers()
    attempts = [iter(range(1, 301)), iter(range(1, 301))]
    kept = []
    while attempts:
        one = rng.choice(attempts)
        if (number := next(one, None)) is None:
            attempts.remove(one)
        elif numbers.read(number, content("a", number)) is not REPEAT:
            kept.append(number)
    assert kept == list(range(1, 301))


@pytest.mark.parametrize("before", [1, 201, 300, 10_000, 100_000])
def test_n4_who_counts_again_from_1_is_found_out_at_once_and_nothing_is_lost(before: int) -> None:
    numbers = Numbers()
    assert count(numbers, "a", range(1, before + 1)) == {NEW: before}
    assert count(numbers, "b", range(1, 152)) == {CONTRADICTION: 1, NEW: 150}
    assert numbers.last == 151


@pytest.mark.parametrize("same", [1, 100, 255])
def test_n4_also_when_both_begin_with_the_same_records(same: int) -> None:
    numbers = Numbers()
    count(numbers, "a", range(1, 100_001))
    assert count(numbers, "a", range(1, same + 1)) == {REPEAT: same}
    assert count(numbers, "b", range(same + 1, 1_000)) == {CONTRADICTION: 1, NEW: 998 - same}


def test_n4_who_goes_back_within_a_flight_loses_nothing() -> None:
    numbers = Numbers()
    count(numbers, "a", range(1, 50_001))
    start = 50_001 - FLIGHT
    assert count(numbers, "b", range(start, 50_001)) == {CONTRADICTION: 1, NEW: FLIGHT - 1}


@pytest.mark.parametrize(
    ("total", "back", "trusted"), [(100_000, 50_000, 63), (300_000, 290_000, 4_095)]
)
def test_n4_who_goes_back_further_is_found_out_at_the_next_number_that_is_known(
    total: int, back: int, trusted: int
) -> None:
    numbers = Numbers()
    count(numbers, "a", range(1, total + 1))
    found = count(numbers, "b", range(total - back, total + 1))
    assert found[CONTRADICTION] == 1
    assert found[REPEAT] <= trusted


def test_n4_a_run_of_unknown_numbers_is_no_longer_than_a_flight() -> None:
    """Beyond what is kept at all, and with nothing known on the way."""
    numbers = Numbers()
    count(numbers, "a", range(1, 300))
    for number in range(300, 40_000_000, 4_097):  # a writer that leaves numbers out
        numbers.read(number, content("a", number))
    unknown = [n for n in range(5_000, 20_000) if numbers.known(n) is None]
    found = readings(numbers, "b", *unknown[: FLIGHT + 1])
    assert found == [REPEAT] * FLIGHT + [CONTRADICTION]


def test_a_large_batch_that_is_written_again_is_a_repeat_throughout() -> None:
    numbers = Numbers()
    count(numbers, "a", range(1, 100_001))
    assert count(numbers, "a", range(1, 100_002)) == {REPEAT: 100_000, NEW: 1}


@pytest.mark.parametrize("seed", range(20))
def test_n4_of_two_writers_that_use_the_same_numbers_nothing_is_left_out(seed: int) -> None:
    rng, numbers = random.Random(seed), Numbers()
    left = {"a": list(range(1, 401)), "b": list(range(1, 401))}
    while left:
        name = rng.choice(list(left))
        for _ in range(rng.choice([1, 1, 3, 50])):
            if left[name]:
                number = left[name].pop(0)
                assert numbers.read(number, content(name, number)) is not REPEAT
        if not left[name]:
            del left[name]


def test_n4_a_number_that_was_left_out_is_no_repeat() -> None:
    numbers = Numbers()
    assert readings(numbers, "a", 1, 2, 4, 3) == [NEW, NEW, NEW, CONTRADICTION]


def test_n4_numbers_below_the_first_are_no_repeats() -> None:
    numbers = Numbers()
    assert readings(numbers, "a", 5_001, 5_002, 1, 2) == [NEW, NEW, CONTRADICTION, NEW]


@pytest.mark.parametrize("seed", range(10))
def test_it_is_a_function_of_what_was_read(seed: int) -> None:
    """Whatever was taken back and read again, and saved and restored, on the way."""
    rng, numbers, plain = random.Random(seed), Numbers(), Numbers()
    at = 0
    for _ in range(12_000):
        at = rng.randrange(1, at + 2) if rng.random() < 0.001 else at + rng.randrange(1, 3)
        body = content(rng.choice("ab"), at)
        reading = plain.read(at, body)
        assert numbers.read(at, body) is reading
        if reading is not REPEAT and rng.random() < 0.05:
            numbers.take_back()
            assert numbers.read(at, body) is reading
        if rng.random() < 0.001:
            numbers = Numbers.restored(numbers.saved())
    assert numbers.saved() == plain.saved()


def test_what_is_kept_is_bounded() -> None:
    numbers = Numbers()
    for number in range(1, 20_000):
        numbers.read(number, number & 0xFFFF)
    assert len(numbers.saved()) < 110_000
    for number in range(64 * 4_096, 400_000_000, 4_096):  # of all tiers, the most that there can be
        numbers.read(number, number & 0xFFFF)
    assert len(numbers.saved()) < 410_000


def test_a_damaged_memory_is_refused() -> None:
    whole = Numbers()
    whole.read(1, 2)
    for damaged in (b"", b"\x01", whole.saved()[:-1]):
        with pytest.raises(StateError):
            Repeats({0: damaged})


def test_a_null_value_is_no_empty_one_and_keys_count_where_they_are_given() -> None:
    assert content_of(None) != content_of(b"")
    assert content_of(None, b"k") != content_of(None, b"l")
    assert content_of(b"v", b"k") != content_of(b"v", b"l")


def test_partitions_count_for_themselves_and_what_has_no_number_is_new() -> None:
    repeats = Repeats()
    one = [(SEQ_HEADER, b"1")]
    assert repeats.read(0, one, b"x") is NEW
    assert repeats.read(1, one, b"x") is NEW
    assert repeats.read(0, [], b"x") is NEW
    assert Repeats(repeats.saved()).read(0, one, b"x") is REPEAT
