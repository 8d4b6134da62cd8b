"""Semi-join and anti-join."""

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import pytest

from lmerge_service.queries.meaning import semijoins as meaning
from lmerge_service.queries.operators.semijoins import AntiJoin, SemiJoin
from tests.queries.promises import Make, Meaning, Run, check_batches, check_promises, seeds
from tests.queries.streams import Feed, interleaved, legal_stream

PAYLOADS = ("a1", "a2", "b1", None)
Key = Callable[[Any], Hashable]
Residual = Callable[[Any, Any], object] | None
KEYS: dict[str, tuple[Key, Residual]] = {
    "by key": (lambda p: p and p[0], None),
    "all": (lambda p: (), None),
    "residual": (lambda p: p and p[0], lambda left, right: left != right),
    "residual alone": (lambda p: (), lambda left, right: str(left) < str(right)),
}
KINDS: dict[str, tuple[Callable[..., SemiJoin], Meaning]] = {
    "semi": (SemiJoin, meaning.semi_join),
    "anti": (AntiJoin, meaning.anti_join),
}


def both(kind: str, keys: str) -> tuple[Make, Meaning]:
    operator, means = KINDS[kind]
    key, residual = KEYS[keys]
    return (
        lambda: operator(key, key, residual),
        lambda left, right: means(left, right, key, key, residual),
    )


def drawn(rng: Random, length: int = 9) -> list[Feed]:
    streams = [
        legal_stream(rng, payloads=rng.choice((PAYLOADS, PAYLOADS[:2])), length=length)
        for _ in range(2)
    ]
    return interleaved(rng, *streams)


def least(run: Run) -> int:
    return min(tdb.stable for tdb in run.inputs)


def live(run: Run, key: Key) -> int:
    return sum(e.ve >= least(run) and key(e.payload) is not None for t in run.inputs for e in t)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("kind", KINDS)
@seeds(40)
def test_promises(kind: str, keys: str, seeds: range) -> None:
    make, means = both(kind, keys)
    for seed in seeds:
        rng = Random(seed)
        feeds = drawn(rng)
        retained = lambda run: live(run, KEYS[keys][0])  # noqa: E731
        check_promises(make, means, feeds, stable=least, retained=retained)
        check_batches(make, means, feeds, rng)
