"""Coalesce, distinct and the set operators."""

from random import Random

import pytest

from lmerge_service.queries.meaning.multisets import combined
from lmerge_service.queries.operators.multisets import COMBINATIONS, MultisetOps
from lmerge_service.tdb import TDB
from tests.queries.promises import Make, Run, check_batches, check_promises, seeds
from tests.queries.streams import Feed, interleaved, legal_stream


def making(combine: str) -> Make:
    return lambda: MultisetOps(combine)


def drawn(rng: Random, ports: int, length: int = 14) -> list[Feed]:
    """Streams of one or two payloads, which overlap a lot."""
    payloads = rng.choice((("a",), ("a", "b")))
    streams = [legal_stream(rng, payloads=payloads, length=length) for _ in range(ports)]
    return interleaved(rng, *streams)


def least(run: Run) -> int:
    return min(tdb.stable for tdb in run.inputs)


def retained(run: Run) -> int:
    return sum(event.ve >= least(run) for tdb in run.inputs for event in tdb)


@pytest.mark.parametrize("combine", COMBINATIONS)
@seeds(60)
def test_promises(combine: str, seeds: range) -> None:
    def means(*tdbs: TDB) -> TDB:
        return combined(combine, *tdbs)

    for seed in seeds:
        rng = Random(seed)
        feeds = drawn(rng, len(COMBINATIONS[combine].leads))
        check_promises(making(combine), means, feeds, stable=least, retained=retained)
        check_batches(making(combine), means, feeds, rng)
