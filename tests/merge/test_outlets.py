"""Topics that cannot be written: which of them the output goes on without, and from when on."""

from lmerge_service.merge.outlets import Outlets
from tests.simulation.test_unknown_decisions import TOPOLOGY

OUTPUT = TOPOLOGY.output


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_n5_a_side_topic_is_left_out_when_it_has_been_away_for_some_seconds() -> None:
    clock = Clock()
    outlets, topic = Outlets(TOPOLOGY, clock), OUTPUT.dead_letter_topic
    assert outlets.note(topic, "was deleted")
    assert outlets.leaves_out(topic) is None, "it is about to be created again"
    clock.now += 2
    assert outlets.note(topic, "has no leader"), "another reason, but as old"
    clock.now += 2
    assert outlets.leaves_out(topic) is not None
    assert outlets.writable_again(topic)
    assert outlets.leaves_out(topic) is None


def test_n5_what_a_commit_was_refused_is_left_out_at_once_and_not_tried_all_the_time() -> None:
    clock = Clock()
    outlets, topic = Outlets(TOPOLOGY, clock), OUTPUT.events_topic
    outlets.refuse(topic, "cannot be written", None)
    assert outlets.leaves_out(topic) is not None
    assert not outlets.writable_again(topic), "the watch sees nothing wrong, and may be wrong"
    clock.now += 11
    assert outlets.writable_again(topic)


def test_n5_output_and_state_are_never_left_out() -> None:
    clock = Clock()
    outlets = Outlets(TOPOLOGY, clock)
    for topic in (OUTPUT.topic, OUTPUT.state_topic):
        outlets.refuse(topic, "cannot be written", None)
        clock.now += 60
        assert outlets.leaves_out(topic) is None
        assert outlets.stops_output
        assert outlets.writable_again(topic)
    outlets.note(OUTPUT.dead_letter_topic, "was deleted")
    assert not outlets.stops_output
