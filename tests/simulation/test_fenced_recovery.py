"""A worker that recovers a task which another has taken over meanwhile: it begins anew."""

import asyncio

import pytest

from lmerge_service.errors import FencedError
from lmerge_service.kafka.source import TopicPartition
from tests.simulation.loop import run
from tests.simulation.test_unknown_decisions import TOPOLOGY, lead_with_nothing_read, merged


def test_who_is_fenced_while_it_recovers_does_not_wait_for_the_end_of_a_transaction() -> None:
    """Another has led since it fenced, and was paused with a transaction open: that may last for a
    minute, and nobody would lead (simulation, seed 10277)."""
    output, state = TOPOLOGY.output.topic, TOPOLOGY.output.state_topic

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        network = await merged()
        other = network.broker.init_producer("another")
        network.broker.produce(TopicPartition(state, 0), [(b"k", b"v", ())], other)
        began = clock()
        with pytest.raises(FencedError, match=r"out.state-0: a transaction is open from offset \d"):
            await lead_with_nothing_read(network)
        assert 5 <= clock() - began < 7
        network.broker.end(other, commit=False)
        network.broker.produce(TopicPartition(output, 0), [(None, b"x", ())], other)
        with pytest.raises(FencedError, match="out-0: a transaction is open from offset"):
            await lead_with_nothing_read(network)

    run(main())
