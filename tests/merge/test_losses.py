"""What one replica's stable makes the output lose is distinguished from what laggards repeat."""

import itertools
from collections.abc import Sequence

import pytest

from lmerge_service.core import LMerge, Policy, lmerge, quorum
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.findings.losses import Loss, Losses
from lmerge_service.merge.findings.record_range import RecordRange


class Merged:
    """An operator, and what is seen of it."""

    def __init__(self, merge: LMerge, *inputs: str):
        self.merge = merge
        for name in inputs:
            merge.attach(name)
        self.losses = Losses(merge)
        self._at = 0

    def publish(self, name: str, *elements: Element) -> list[Loss]:
        place = RecordRange(TopicPartition(f"in.{name}", 0), self._at, self._at + len(elements) - 1)
        self._at += len(elements)
        late = self.merge.inputs[name].late
        self.losses.emitted(self.merge.process_batch(name, elements), place)
        late = self.merge.inputs[name].late - late
        return self.losses.look(name, [elements] if late else (), place)


def event(number: int) -> Insert[bytes]:
    return Insert(b"%d" % number, number, number + 5)


def test_n7_what_a_lying_stable_loses_is_reported_with_who_has_it_and_where() -> None:
    merged = Merged(lmerge("R3"), "a", "b")
    assert not merged.publish("a", *map(event, range(1, 40)), Stable(61))
    (loss,) = merged.publish("b", *map(event, range(1, 60)), Stable(60))
    assert (loss.leader, loss.holder, loss.vc, loss.count) == ("a", "b", 61, 20)
    assert loss.first == event(40)
    assert str(loss) == (
        "a published stable(61) at offsets 0 to 39 of in.a-0 without 20 events that b has, so that "
        "the output lacks them; the first starts at 40, at offsets 40 to 99 of in.b-0"
    )


def test_n7_nothing_is_reported_before_its_replica_has_made_it_final_nor_twice() -> None:
    merged = Merged(lmerge("R3"), "a", "b", "c")
    merged.publish("a", Stable(61))
    assert not merged.publish("b", event(40), event(41)), "b may take them back"
    assert not merged.publish("b", Adjust(b"41", 41, 46, 41))
    (loss,) = merged.publish("b", Stable(50))
    assert (loss.count, loss.first) == (1, event(40))
    assert not merged.publish("c", event(40), Stable(50)), "c has it as well"


def ends(number: int, *ves: int) -> list[Element]:
    revised: list[Element] = [Insert(b"%d" % number, number, ves[0])]
    revised += [Adjust(b"%d" % number, number, vold, ve) for vold, ve in itertools.pairwise(ves)]
    return revised


@pytest.mark.parametrize(
    "laggard",
    [
        [*map(event, range(1, 9)), Stable(20)],
        [*ends(1, 30, 6), *map(event, range(2, 9)), Stable(20)],
        [event(1), *ends(10, 15, 10), *map(event, range(2, 9)), Stable(20)],
    ],
    ids=["repeats", "revises", "takes back"],
)
def test_n7_an_honest_laggard_shows_no_loss(laggard: Sequence[Element]) -> None:
    merged = Merged(lmerge("R3"), "a", "b")
    assert not merged.publish("a", *map(event, range(1, 9)), Stable(20))
    assert not merged.publish("b", *laggard)


def test_n7_where_several_vote_what_they_leave_out_is_no_loss() -> None:
    merged = Merged(lmerge("R3", Policy(stable=quorum(2))), "a", "b", "c")
    merged.publish("a", Stable(61))
    merged.publish("b", Stable(61))
    assert not merged.publish("c", event(40), Stable(61))


def test_n7_after_a_takeover_what_the_output_holds_is_known() -> None:
    before = Merged(lmerge("R3"), "a", "b")
    before.publish("a", event(1), event(8), Stable(4))
    after = lmerge("R3")
    after.attach("a")
    after.attach("b")
    after.replay_output([event(1), event(8), Stable(4)])
    after.replay_input("a", [event(1), event(8), Stable(4)])
    merged = Merged(after)
    merged.publish("a", Stable(10))
    assert not merged.publish("b", event(1), event(8), Stable(9)), "1 is from before, 8 is there"
    (loss,) = merged.publish("b", event(9), Stable(10))
    assert loss.first == event(9)
