"""The paper's workload."""

import itertools
import json

from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.lifetime import Life


def alive_on_average(lives: list[Life]) -> float:
    span = lives[-1].vs - lives[0].vs
    return sum(life.ve - life.vs for life in lives) / span


def test_payloads_are_canonical_json_of_the_size_asked_for() -> None:
    for life in workload(events=100, payload_bytes=33):
        assert isinstance(life.payload, bytes)
        fields = json.loads(life.payload)
        assert list(fields) == ["data", "key"]
        assert len(fields["data"]) == 33
        assert 0 <= fields["key"] <= 400
        assert json.dumps(fields, separators=(",", ":")).encode() == life.payload


def test_gaps_stay_within_their_range_and_about_as_many_events_are_active() -> None:
    for varied in (False, True):
        lives = list(workload(events=4000, payload_bytes=8, active=300, varied=varied))
        gaps = [b.vs - a.vs for a, b in itertools.pairwise(lives)]
        assert min(gaps) >= 0
        assert 19_000 < max(gaps) <= 20_000
        assert 270 < alive_on_average(lives) < 330


def test_payload_and_vs_are_a_key_even_when_nearly_everything_collides() -> None:
    lives = list(workload(events=2000, payload_bytes=0, max_gap=1))
    assert len({(life.payload, life.vs) for life in lives}) == 2000


def test_with_a_least_gap_vs_rises_strictly() -> None:
    lives = list(workload(events=500, payload_bytes=4, min_gap=1, max_gap=2))
    assert all(a.vs < b.vs for a, b in itertools.pairwise(lives))


def test_seeds_matter_and_nothing_else() -> None:
    one, same, other = (list(workload(events=50, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
