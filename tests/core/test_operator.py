"""Inputs that come, go and misbehave; snapshots; literal cases of faults seen in the field."""

import gc
import subprocess
import sys
import weakref
from hashlib import sha256

import pytest

from lmerge_service.core import Breach, BreachKind, Gap, LMerge, lmerge, restore
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.tdb import Event


def merge_of(*names: str) -> LMerge:
    merge = lmerge()
    for name in names:
        merge.attach(name)
    return merge


def kinds(merge: LMerge) -> list[BreachKind]:
    return [breach.kind for breach in merge.breaches()]


def test_a_breach_contains_who_what_and_what_was_kept() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process("b", Stable(15))
    assert merge.breaches() == [
        Breach(
            "b",
            0,
            BreachKind.HALF_FROZEN_MISSING,
            Stable(15),
            Event("A", 2, 20),
            (("a", (20,)), ("b", ())),
        )
    ]
    assert merge.breaches() == [], "handed over once"


def test_a_contradiction_is_reported_once_however_often_it_is_repeated() -> None:
    """materialize PR#38196: replicas disagree for ever; one decision, one report, no rewriting."""
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, INFINITY), Stable(10)])
    emitted = [merge.process("b", Stable(t)) for t in range(11, 100)]
    assert emitted == [[Stable(t)] for t in range(11, 100)]
    assert kinds(merge) == [BreachKind.HALF_FROZEN_MISSING]


def test_a_kept_event_follows_the_input_with_the_highest_stable_that_has_it() -> None:
    merge = merge_of("a", "b", "c", "liar")
    for name, ve, stable in (("a", 20, 10), ("b", 12, 11), ("c", 15, 12)):
        merge.process_batch(name, [Insert("A", 2, ve), Stable(stable)])
    assert merge.process("liar", Stable(13)) == [Stable(13)], "nothing forces a change yet"
    assert merge.process("liar", Stable(18)) == [Adjust("A", 2, 20, 15), Stable(18)]


def test_among_equal_stables_the_input_attached_first_is_followed() -> None:
    merge = merge_of("first", "second", "liar")
    merge.process_batch("second", [Insert("A", 2, 13), Stable(5)])
    merge.process_batch("first", [Insert("A", 2, 12), Stable(5)])
    assert merge.process("liar", Stable(20)) == [Adjust("A", 2, 13, 12), Stable(20)]


def test_elements_after_detach_are_a_breach_and_unknown_names_a_mistake() -> None:
    merge = merge_of("a", "b")
    merge.detach("a")
    assert merge.process("a", Insert("A", 1, 2)) == []
    assert kinds(merge) == [BreachKind.AFTER_DETACH]
    with pytest.raises(ValueError, match="no input 'z' was ever attached"):
        merge.process("z", Stable(1))
    with pytest.raises(ValueError, match="no input 'a' is attached"):
        merge.detach("a")


def test_unfrozen_events_that_only_a_leaver_had_go_with_the_next_stable() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("half", 2, 20), Stable(5), Insert("un", 6, 9)])
    merge.process("b", Insert("half", 2, 20))
    merge.detach("a")
    assert merge.process("b", Stable(7)) == [Adjust("un", 6, 9, 6), Stable(7)]
    assert kinds(merge) == []


def test_a_new_incarnation_knows_nothing_of_the_old_one() -> None:
    """thanos#7807: identical copies, one restarts; the other carries the output on."""
    merge = merge_of("a", "b")
    for name in ("a", "b"):
        merge.process_batch(name, [Insert("A", 1, 50), Stable(40)])
    merge.attach("a", joining_at=80)
    assert (merge.inputs["a"].incarnation, merge.inputs["a"].joined) == (1, False)
    assert merge.process("b", Adjust("A", 1, 50, 60)) == []
    assert merge.process_batch("a", [Insert("C", 85, 90), Stable(84)]) == [Insert("C", 85, 90)]
    assert merge.process("b", Insert("C", 85, 90)) == []
    assert merge.process("b", Stable(80)) == [Adjust("A", 1, 50, 60), Stable(80), Stable(84)]
    assert merge.inputs["a"].joined
    assert kinds(merge) == []


def test_a_joiner_whose_snapshot_is_ahead_of_the_output_waits() -> None:
    """materialize#16615: cannot serve requested as_of."""
    merge = merge_of("a")
    merge.process("a", Stable(60))
    merge.attach("jumpstarted", joining_at=80)
    assert merge.process("jumpstarted", Stable(95)) == []
    assert merge.process("a", Stable(80)) == [Stable(80), Stable(95)]


def test_the_gap_is_the_range_nobody_vouches_for() -> None:
    merge = merge_of("a")
    merge.process("a", Stable(10))
    assert not merge.gap
    merge.attach("b", joining_at=30)
    merge.attach("c", joining_at=20)
    merge.detach("a")
    assert merge.gap == Gap(10, 20, "c")
    merge.process("b", Stable(99))
    gap, emitted = merge.accept_gap()
    assert gap == Gap(10, 20, "c")
    assert emitted == []
    assert merge.process("c", Stable(31)) == [Stable(31), Stable(99)]
    with pytest.raises(ValueError, match="no gap"):
        merge.accept_gap()


def test_repeats_after_a_restart_without_headers_are_absorbed() -> None:
    """materialize#14211: a second snapshot in mid-stream doubles the table."""
    merge = merge_of("a", "b")
    events: list[Element] = [Insert(k, k, k + 5) for k in range(1, 101)]
    assert merge.process_batch("a", [*events, Stable(100)])
    assert merge.process_batch("a", events[:99]) == []
    assert set(kinds(merge)) == {BreachKind.BROKE_OWN_STABLE}
    assert merge.inputs["a"].breaches[BreachKind.BROKE_OWN_STABLE] == 99


def test_tiny_regressions_of_stable_stall_nothing() -> None:
    """numaflow#3424: 100, 99, 101, 100, 102."""
    merge = merge_of("a")
    emitted = [merge.process("a", Stable(t)) for t in (100, 99, 101, 100, 101, 102)]
    assert emitted == [[Stable(100)], [], [Stable(101)], [], [], [Stable(102)]]
    assert kinds(merge) == [BreachKind.STABLE_REGRESSION] * 2


def test_an_idle_input_holds_nobody_back() -> None:
    """arroyo PR#222 and many others: one idle input blocks all."""
    merge = merge_of("idle", "a")
    assert merge.process("a", Stable(100)) == [Stable(100)]


def test_a_laggard_is_distinguished_from_a_liar() -> None:
    """laminardb#65: below the own stable is a breach, below the output's alone is a laggard."""
    merge = merge_of("leader", "laggard")
    merge.process("leader", Stable(100))
    merge.process_batch("laggard", [Insert("A", 50, 60), Stable(55), Insert("B", 50, 60)])
    assert merge.inputs["laggard"].late == 1
    assert kinds(merge) == [BreachKind.BROKE_OWN_STABLE]


def test_removal_of_what_an_input_never_inserted() -> None:
    """materialize#16044: (a) the event is another's: it stays theirs; (b) nobody's: counted."""
    merge = merge_of("a", "b")
    merge.process("b", Insert("k", 5, 9))
    assert merge.process("a", Adjust("k", 5, 9, 5)) == []
    assert merge.process("a", Adjust("nobody", 5, 9, 5)) == []
    assert kinds(merge) == [BreachKind.UNKNOWN_EVENT] * 2
    assert merge.process("a", Stable(6)) == [Adjust("k", 5, 9, 5), Stable(6)]
    assert len(merge) == 0


def test_a_claim_alone_puts_nothing_out() -> None:
    merge = merge_of("a", "b")
    assert merge.process_batch("a", [Adjust("k", 5, 9, 12), Stable(6)]) == [Stable(6)]
    assert len(merge) == 0
    assert merge.process("b", Insert("k", 5, 12)) == []
    assert merge.inputs["b"].late == 1


def test_a_second_insert_is_one_event() -> None:
    """risingwave#14031: the same insert twice on one input."""
    merge = merge_of("a")
    assert merge.process_batch("a", [Insert("k", 5, 9)] * 2) == [Insert("k", 5, 9)]
    assert kinds(merge) == [BreachKind.DUPLICATE_KEY]


def test_a_wrong_old_end_is_advisory() -> None:
    """risingwave#12140: panic on delete whose old value differs."""
    merge = merge_of("a")
    merge.process_batch("a", [Insert("k", 5, 12), Adjust("k", 5, 9, 20)])
    assert kinds(merge) == [BreachKind.WRONG_VOLD]
    assert merge.process("a", Stable(15)) == [Adjust("k", 5, 12, 20), Stable(15)]


def test_revisions_at_one_time_keep_their_order() -> None:
    """drasi-core#814: same-timestamp updates are reordered, results lost."""
    merge = merge_of("a", "b")
    batch = [e for k in range(1_000) for e in (Insert(k, 7, INFINITY), Adjust(k, 7, INFINITY, 8))]
    merge.process_batch("b", batch[::2])
    merge.process_batch("a", batch)
    emitted = merge.process("a", Stable(9))
    assert emitted == [*[Adjust(k, 7, INFINITY, 8) for k in range(1_000)], Stable(9)]


def test_different_payloads_at_one_time_are_two_events_whatever_the_order() -> None:
    """VictoriaMetrics#3333: which of two values at one timestamp wins is random."""
    outputs = set()
    for order in (("a", "b"), ("b", "a")):
        merge = merge_of("a", "b")
        emitted: list[Element] = []
        for name in order:
            emitted += merge.process(name, Insert(("k", name), 10, 20))
        emitted += merge.process("a", Stable(30))
        outputs.add(tuple(sorted(map(repr, emitted[2:]))))
        assert emitted[-2:] == [Adjust(("k", "b"), 10, 20, 10), Stable(30)]
    assert len(outputs) == 1


def test_kept_breaches_are_bounded_and_still_counted() -> None:
    merge = merge_of("a")
    merge.process("a", Stable(10))
    merge.process_batch("a", [Insert("A", 1, 2)] * 5_000)
    assert len(merge.breaches()) == 1_000
    assert merge.inputs["a"].breaches[BreachKind.BROKE_OWN_STABLE] == 5_000
    assert merge.stats().breaches_dropped == 4_000


class Payload:
    """Equal to every other one; can be watched by weak references."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload)

    def __hash__(self) -> int:
        return 1


def test_a_payload_is_held_once_however_many_inputs_carry_it() -> None:
    """Promise 4, by counting which of ten equal payloads live on."""
    merge = merge_of(*"abcdefghij")
    alive = []
    for name in "abcdefghij":
        copy = Payload()
        alive.append(weakref.ref(copy))
        merge.process(name, Insert(copy, 1, 5))
        del copy
    gc.collect()
    assert [ref() is not None for ref in alive] == [True] + [False] * 9
    merge.process("b", Stable(6))
    assert alive[0]() is None, "final: the index has let go of it"


@pytest.mark.parametrize("damage", [b"", b"\x00", b"not a snapshot", None])
def test_a_damaged_or_foreign_snapshot_is_refused(damage: bytes | None) -> None:
    merge = merge_of("a")
    saved = merge.snapshot()
    with pytest.raises(StateError):
        restore(saved[:-1] if damage is None else damage)
    other = saved[32:].replace(b"\xa7version\x03", b"\xa7version\x09")
    with pytest.raises(StateError, match="version 9"):
        restore(sha256(other).digest() + other)


def test_no_damaged_byte_of_a_snapshot_passes_for_state() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert(("k", "x"), 1, 50), Stable(10), Insert("y", 11, 20)])
    saved = merge.snapshot()
    for place in range(len(saved)):
        damaged = bytearray(saved)
        damaged[place] ^= 0x41
        with pytest.raises(StateError):
            restore(bytes(damaged))


def test_snapshots_keep_tuples_and_bytes_as_payloads() -> None:
    merge = merge_of("a")
    inserts: list[Element] = [Insert(("k", 1, ("x", None)), 1, 5), Insert(b"bytes", 1, 5)]
    merge.process_batch("a", inserts)
    twin = restore(merge.snapshot())
    twin.attach("b")
    assert twin.process_batch("b", inserts) == []


@pytest.mark.parametrize(
    "unexpected_output",
    [
        [Stable(5), Insert("A", 4, 9)],
        [Insert("A", 4, 9), Insert("A", 4, 9)],
        [Adjust("A", 4, 9, 10)],
        [Insert("A", 4, 9), Adjust("A", 4, 8, 10)],
        [Insert("A", 4, 9), Stable(6), Adjust("A", 4, 9, 4)],
        [Stable(5), Stable(5)],
    ],
)
def test_an_output_that_no_merge_has_written_is_refused(unexpected_output: list[Element]) -> None:
    with pytest.raises(StateError, match="something else writes to this output"):
        lmerge().replay_output(unexpected_output)


def test_the_output_does_not_depend_on_the_hash_seed() -> None:
    program = """
from lmerge_service.core import Case, Policy, lmerge
from lmerge_service.elements import Insert, Stable
policies = Policy(), Policy("leader", "eager", "quorum(2)"), Policy("quorum(2)", "leader", "lag(3)")
for case in Case:
    for policy in policies:
        merge = lmerge(case, policy)
        for name in "abc": merge.attach(name)
        for k in range(50):
            for name in "abc":
                end = k + 9 + (ord(name) if case in ("R3", "R4") else 0)
                vs = k if case == "R0" else k // 7 if case < "R3" else k % 5 + 1
                merge.process(name, Insert(f"p{k * 7 % 13}", vs, end))
        for name in "cb": print(merge.process(name, Stable(130)))
        print(merge.snapshot(), merge.breaches())
"""
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(printed) == 1
    assert b"Adjust" in printed.pop()
