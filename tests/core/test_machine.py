"""A state machine: inputs attach, publish, leave and come back; the operator is swapped for a
restored or a rebuilt one at any time. Whatever happens, an honest input at the end completes the
output, nobody was to blame, and every invariant held on the way."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmerge_service.core import lmerge, restore
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event
from tests.strategies import logical_streams, presentations

NAMES = "abcd"


@dataclass
class Feed:
    """What an attached input has published, and what it is going to publish."""

    joining_at: int
    coming: list[Element]
    published: list[Element] = field(default_factory=list)


class Merging(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.merge: Any = lmerge()
        self.logical: list[Event] = []
        self.feeds: dict[str, Feed] = {}
        self.output = TDB()
        self.emitted: list[Element] = []

    @initialize(logical=logical_streams())
    def mean(self, logical: list[Event]) -> None:
        self.logical = logical

    @rule(
        name=st.sampled_from(NAMES),
        joining_at=st.sampled_from((START, START, 3, 9)),
        data=st.data(),
    )
    def attach(self, name: str, joining_at: int, data: st.DataObject) -> None:
        meant = [event for event in self.logical if event.ve >= joining_at]
        (coming,) = data.draw(presentations(meant, 1))
        self.feeds[name] = Feed(joining_at, coming)
        self.merge.attach(name, joining_at)

    @precondition(lambda self: self.feeds)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.feeds)))
        for _ in range(data.draw(st.integers(1, 8))):
            self._publish_next(name)

    @precondition(lambda self: self.feeds)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.feeds)))
        del self.feeds[name]
        self._take(self.merge.detach(name))

    @rule()
    def restart_from_a_snapshot(self) -> None:
        saved = self.merge.snapshot()
        self.merge = restore(saved)
        assert self.merge.snapshot() == saved

    @rule()
    def restart_from_prefixes(self) -> None:
        rebuilt = lmerge()
        rebuilt.replay_output(self.emitted)
        for name, feed in self.feeds.items():
            rebuilt.attach(name, feed.joining_at)
            assert rebuilt.process_batch(name, feed.published) == []
        assert rebuilt.max_stable == self.merge.max_stable
        assert len(rebuilt) == len(self.merge)
        self.merge = rebuilt

    @invariant()
    def everything_holds(self) -> None:
        self.merge.check()
        assert self.merge.breaches() == []
        assert self.merge.max_stable == self.output.stable

    def _publish_next(self, name: str) -> None:
        feed = self.feeds[name]
        if feed.coming:
            element = feed.coming.pop(0)
            feed.published.append(element)
            self._take(self.merge.process(name, element))

    def _take(self, emitted: list[Element]) -> None:
        for element in emitted:
            self.output.apply(element)
        self.emitted += emitted

    def teardown(self) -> None:
        """An honest input from the beginning of time publishes all there is."""
        self.merge.attach("last")
        for event in self.logical:
            self._take(self.merge.process("last", Insert(*event)))
        self._take(self.merge.process("last", Stable(INFINITY)))
        self.everything_holds()
        assert self.output == TDB(self.logical)
        assert self.output.stable == INFINITY
        assert len(self.merge) == 0


TestMerging = Merging.TestCase
