"""A checkpoint of a recorded stream: what is whole, what is not, and what a replica begins with."""

from collections.abc import Iterable

import pytest

from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, IllegalStreamError, LMergeError
from lmerge_service.offline.checkpoint import checkpoint, composed
from lmerge_service.tdb import TDB, reconstitute
from tests.service.cluster import logical, meaning, replica_streams

STREAM: list[Element] = [
    Insert("p", 1, 5), Insert("q", 2, 9), Stable(3), Adjust("q", 2, 9, 8), Stable(7),
    Insert("r", 8, 12),
]  # fmt: skip


def lines(elements: Iterable[Element]) -> Iterable[tuple[int, Element]]:
    return enumerate(elements, 1)


def test_a_replica_begins_with_what_is_not_over() -> None:
    found = checkpoint("f", lines(STREAM))
    assert list(found.beginning()) == [Insert("q", 2, 8), Insert("r", 8, 12), Stable(7)]
    assert found.correct_from == 7


def test_parts_that_have_let_go_of_what_was_final_make_it_correct_later() -> None:
    """Of the part at 7 nobody knows any more what ended in [4, 7); the query goes on from 4."""
    ahead, behind = TDB([("q", 2, 9), ("u", 5, 7)], stable=7), TDB([("s", 1, 3), ("t", 3, 4)], 4)
    found = composed("f", [(ahead, 7), (behind, 4)])
    assert list(found.beginning()) == [
        Insert("q", 2, 9), Insert("t", 3, 4), Insert("u", 5, 7), Stable(4),
    ]  # fmt: skip
    assert found.correct_from == 7
    with pytest.raises(ConfigurationError, match="f has no stable"):
        composed("f", [(ahead, 7), (TDB(), START)])
    with pytest.raises(ConfigurationError, match="a part of f has ended"):
        composed("f", [(ahead, 7), (TDB(stable=INFINITY), INFINITY)])


def test_a_long_stream_is_held_to_its_word_though_what_was_final_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmerge_service.offline.checkpoint._LOOKED_AFTER", 3)
    stream = replica_streams(logical(300, seed=4), seed=4)["a"][:-1]
    found = checkpoint("f", lines(stream))
    whole = reconstitute(stream)
    assert reconstitute(found.beginning()) == TDB(e for e in whole if e.ve >= whole.stable)
    final = next(event for event in whole if event.ve < whole.stable)
    with pytest.raises(IllegalStreamError, match=f"f:{len(stream) + 1}: "):
        checkpoint("f", lines([*stream, Adjust(*final, whole.stable + 1)]))


@pytest.mark.parametrize(
    ("elements", "kind", "why"),
    [
        ([Insert("p", 1, 5)], ConfigurationError, "f has no stable"),
        ([*STREAM, Stable(INFINITY)], ConfigurationError, "f has ended"),
        ([*STREAM, Insert("p", 1, 5)], IllegalStreamError, "f:7: "),
        ([*STREAM, Adjust("q", 2, 9, 5)], IllegalStreamError, "f:7: "),
    ],
)
def test_what_is_no_checkpoint_is_refused(
    elements: list[Element], kind: type[LMergeError], why: str
) -> None:
    with pytest.raises(kind) as raised:
        checkpoint("f", lines(elements))
    assert str(raised.value).startswith(why)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_from_any_stable_on_it_is_the_stream_that_it_was_cut_from(name: str) -> None:
    """And can be merged with any other from there on, without a contradiction."""
    lives = logical(120, seed=7)
    streams = replica_streams(lives, seed=7)
    stream, other = streams[name], streams["abca"["abc".index(name) + 1]]
    stables = [at for at, each in enumerate(stream) if type(each) is Stable]
    for at in stables[:-1:3]:
        found = checkpoint(name, lines(stream[: at + 1]))
        copy = [*found.beginning(), *stream[at + 1 :]]
        left = [each for each in reconstitute(stream) if each.ve >= found.stable]
        assert reconstitute(copy) == TDB(left, stable=INFINITY)
        merge = lmerge("R3")
        merge.attach("other")
        merge.attach("copy", joining_at=found.correct_from)
        out = [*merge.process_batch("copy", copy[: len(copy) // 2])]
        out += merge.process_batch("other", other[: len(other) // 2])
        out += merge.process_batch("copy", copy[len(copy) // 2 :])
        out += merge.process_batch("other", other[len(other) // 2 :])
        assert reconstitute(out) == meaning(lives)
        assert not merge.breaches()
