"""Which topics are read, from where, and why not: decisions, without a broker."""

from collections.abc import Mapping

from lmerge_service.core import lmerge
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.snapshots.beginnings import PartitionStart
from lmerge_service.reader.inlets import Inlets, ReadPosition, StartedOver, TopicStatus
from lmerge_service.reader.token import Token
from tests.merge.test_step import events, numbered, records


class Reading:
    """Topics "a" and "b" as a reader sees them; `look` is what Kafka answers."""

    def __init__(
        self,
        case: str = "R3",
        joining_at: Mapping[str, int] | None = None,
        token: Token | None = None,
    ):
        self.merge = lmerge(case) if token is None else token.merge()
        places = {} if token is None else token.places
        self.inlets = Inlets(self.merge, "ab", WireDecoder(), joining_at or {}, places)
        self.check()

    def check(self) -> None:
        self.inlets.check()
        self.merge.check()

    def look(
        self,
        begins: int = 0,
        ends: int = 100,
        **topics: tuple[str | None, int],
    ) -> bool:
        """Each topic as (id, partitions); whether something was let go."""
        found = {name: TopicInfo(*info) for name, info in topics.items()}
        let_go = self.inlets.forget(found)
        self.check()
        wanted = self.inlets.unplaced(found)
        self.inlets.admit(found, dict.fromkeys(wanted, begins), dict.fromkeys(wanted, ends))
        self.check()
        return let_go

    def begin(self, topic: str, *beginnings: PartitionStart) -> list[Element]:
        """Begins a topic in its middle."""
        found = {topic: TopicInfo(topic, len(beginnings))}
        wanted = self.inlets.unplaced(found)
        begins, ends = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 100)
        out = self.inlets.admit(found, begins, ends, {topic: beginnings})
        self.check()
        return out

    def take(self, topic: str, *elements: Element, partition: int = 0, **of: int) -> list[Element]:
        out: list[Element] = []
        tp = TopicPartition(topic, partition)
        batch = records(*elements, partition=partition, **of)
        self.inlets.take(tp, batch, out, [])
        self.inlets.advance(tp, self.inlets.positions()[tp] + len(batch))
        self.check()
        return out

    def status(self, topic: str) -> TopicStatus:
        return {each.topic: each for each in self.inlets.status()}[topic]

    def token(self) -> Token:
        return Token.unsealed(Token.of(self.merge, self.inlets.places(), [], nfc=False).sealed())


X = Insert(b'"x"', 1, 9)


def test_a_topic_that_gets_more_partitions_is_held_back_by_the_new_ones() -> None:
    reading = Reading()
    reading.look(a=("1", 1))
    assert reading.take("a", X, Stable(3)) == [X, Stable(3)]
    reading.look(a=("1", 3))
    assert reading.status("a").partitions == 3
    assert reading.take("a", Stable(5)) == []
    assert reading.take("a", Stable(5), partition=1) == []
    assert reading.take("a", Stable(4), partition=2) == [Stable(4)]
    assert reading.inlets.positions() == {
        TopicPartition("a", 0): 3,
        TopicPartition("a", 1): 1,
        TopicPartition("a", 2): 1,
    }


def test_a_topic_is_missed_twice_before_it_counts_as_deleted() -> None:
    reading = Reading()
    reading.look(a=("1", 1))
    assert [reading.look(), reading.look(a=("1", 1)), reading.look()] == [False, False, False]
    assert reading.status("a").state == "reading"
    assert reading.look()
    assert (reading.status("a").state, reading.status("a").why) == (
        "missing",
        "topic a was deleted",
    )
    assert reading.inlets.positions() == {}


def test_a_topic_with_another_id_is_read_from_its_beginning() -> None:
    reading = Reading()
    reading.look(a=("1", 2))
    reading.take("a", X)
    assert reading.look(a=("2", 1))
    assert reading.inlets.positions() == {TopicPartition("a", 0): 0}
    assert reading.take("a", X) == [], "it is on the output already"


def test_where_brokers_have_no_ids_a_topic_is_known_by_its_name() -> None:
    reading = Reading()
    reading.look(a=(None, 1))
    assert not reading.look(a=(None, 1))
    assert not reading.look(a=("1", 1))
    assert reading.status("a").state == "reading"


def test_a_topic_that_is_left_out_stays_so_until_it_is_made_anew() -> None:
    reading = Reading()
    reading.look(a=("1", 1), b=("7", 1))
    assert reading.inlets.leave_out("a", "partition 0: cannot be read")
    assert not reading.look(a=("1", 1), b=("7", 1))
    assert (reading.status("a").state, reading.status("a").why) == (
        "left out",
        "topic a partition 0: cannot be read",
    )
    assert set(reading.inlets.positions()) == {TopicPartition("b", 0)}
    reading.look(a=("2", 1), b=("7", 1))
    assert (reading.status("a").state, reading.status("a").why) == ("reading", None)


def test_a_beginning_that_is_gone_is_named_unless_a_joining_time_is_given() -> None:
    reading = Reading()
    reading.look(begins=4, a=("1", 1))
    assert "begins at offset 4 of partition 0" in str(reading.status("a").why)
    joining = Reading(joining_at={"a": 50})
    joining.look(begins=4, a=("1", 1))
    assert joining.status("a").state == "joining"
    assert joining.inlets.positions() == {TopicPartition("a", 0): 4}


def test_of_a_beginning_that_is_gone_an_incarnation_is_believed_no_more_than_was_stated() -> None:
    reading = Reading(joining_at={"a": 50})
    reading.look(begins=4, a=("1", 1))
    again = Reading(joining_at={"a": 50}, token=reading.token())  # which has read nothing of it
    again.look(begins=4, a=("1", 1))
    for each in (reading, again):
        each.take("a", X, incarnation=1)
        assert each.status("a").correct_from == 50


def test_a_joining_time_was_stated_of_what_the_topic_had_then() -> None:
    reading = Reading(joining_at={"a": 50})
    reading.look(begins=4, a=("1", 1))
    reading.take("a", X)
    token = reading.token()
    again = Reading(joining_at={"a": 50}, token=token)
    again.look(begins=9, a=("1", 1))  # offsets 5 to 8 were deleted before they were read
    why = str(again.status("a").why)
    assert "begins at offset 9 of partition 0" in why
    assert "state from when on what is left is correct (joining_at, beyond 50)" in why
    later = Reading(joining_at={"a": 70}, token=token)
    later.look(begins=9, a=("1", 1))
    assert later.status("a").state == "joining"
    another = Reading(joining_at={"a": 50}, token=token)
    another.look(begins=9, a=("2", 1))
    assert another.status("a").state == "joining"


def test_a_token_brings_back_position_incarnation_and_joining_time() -> None:
    reading = Reading()
    reading.look(a=("1", 1), b=("7", 1))
    reading.take("b", X, Stable(2))
    reading.take("a", X, incarnation=3, joining_at=50)
    resumed = Reading(token=reading.token())
    resumed.look(a=("1", 1), b=("7", 2))
    assert resumed.status("a").incarnation == 3
    assert resumed.status("a").state == "joining"
    assert resumed.inlets.places() == {
        "a": ReadPosition("1", [1], 3, 50),
        "b": ReadPosition("7", [2, 0], 0, START),
    }
    resumed.take("a", Stable(7), incarnation=2)
    assert resumed.status("a").stale == 1


def test_a_token_brings_back_which_numbers_were_read() -> None:
    reading = Reading()
    reading.look(a=("1", 1))
    records = numbered(1, 2)
    reading.inlets.take(TopicPartition("a", 0), records, [], [])
    resumed = Reading(token=reading.token())
    resumed.look(a=("1", 1))
    out: list[Element] = []
    resumed.inlets.take(TopicPartition("a", 0), numbered(2, 3), out, [])
    assert out == events(3)
    assert resumed.status("a").repeated == 1


def test_a_topic_of_a_token_that_is_not_seen_yet_keeps_its_place() -> None:
    reading = Reading()
    reading.look(a=("1", 1), b=("7", 1))
    reading.take("b", X)
    resumed = Reading(token=reading.token())
    for _ in range(3):
        resumed.look(a=("1", 1))
    assert resumed.status("b").state == "missing"
    assert resumed.inlets.places()["b"] == ReadPosition("7", [1], 0, START)
    resumed.look(a=("1", 1), b=("7", 1))
    assert resumed.inlets.positions()[TopicPartition("b", 0)] == 1


def test_a_place_that_the_topic_no_longer_has_is_read_anew_or_left_out() -> None:
    reading = Reading()
    reading.look(a=("1", 1), b=("7", 1))
    reading.take("a", X, Stable(2))
    reading.take("b", X)
    token = reading.token()
    cut = Reading(token=token)
    cut.look(ends=1, a=("1", 1))  # a position behind the end: what was read is gone
    assert cut.inlets.positions() == {TopicPartition("a", 0): 0}
    forgotten = Reading(token=token)
    forgotten.look(begins=5, a=("1", 1))  # retention has passed the position
    assert forgotten.status("a").state == "left out"
    assert "a" not in forgotten.merge.inputs
    other = Reading(token=token)
    other.look(a=("2", 1))
    assert other.inlets.positions() == {TopicPartition("a", 0): 0}


def test_an_ordered_case_takes_one_partition_only() -> None:
    reading = Reading("R1")
    reading.look(a=("1", 2))
    assert "give no order together" in str(reading.status("a").why)
    reading.look(b=("7", 1))
    assert reading.status("b").state == "reading"
    reading.look(b=("7", 2))
    assert reading.status("b").state == "left out"


def test_a_topic_that_is_not_read_any_more_is_let_go_with_a_token() -> None:
    reading = Reading()
    reading.look(a=("1", 1), b=("7", 1))
    token = reading.token()
    merge = token.merge()
    Inlets(merge, "a", WireDecoder(), {}, token.places)
    assert list(merge.inputs) == ["a"]


def test_a_topic_that_starts_over_is_reported_with_from_when_on_it_is_correct() -> None:
    reading = Reading()
    reading.look(a=("1", 1))
    reading.take("a", X, Stable(40))
    assert reading.inlets.started_over == []
    reading.take("a", Insert(b'"y"', 60, 90), Stable(70), incarnation=1, joining_at=50)
    assert reading.inlets.started_over == [StartedOver("a", 1, 50, 40)]
    status = reading.status("a")
    assert (status.state, status.incarnation, status.correct_from) == ("joining", 1, 50)
    assert reading.merge.gap is not None
    assert reading.merge.accept_gap()[1] == [Stable(70)]


def test_a_topic_is_missing_until_it_is_read_or_left_out() -> None:
    reading = Reading()
    reading.look(a=("1", 1))
    assert not reading.inlets.all_found
    reading.inlets.leave_out("b", "cannot be read")
    assert reading.inlets.all_found
