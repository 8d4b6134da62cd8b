"""Whole workers by the engine: in the simulation, and on a topology that asks for it."""

from collections import Counter

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.errors import ConfigurationError
from tests.seeds import seeds
from tests.simulation.simulate import simulate


@seeds(4)
def test_whatever_the_schedule_the_output_is_right(seeds: range) -> None:
    seen = Counter[str]()
    for seed in seeds:
        played = simulate(seed, pauses=seed % 4 == 3, native=True)
        assert played.good, f"{played}\n{played.report}\nseed {seed}"
        seen += played.seen
    assert seen["snapshot"]


def _topology(**more: object) -> Topology:
    return Topology.model_validate(
        {
            "name": "merge",
            "kafka": {"bootstrap": "127.0.0.1:9"},
            "output": {"topic": "out"},
            "replicas": [{"name": "a", "topic": "a"}],
            **more,
        }
    )


def test_what_is_asked_for_is_what_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMERGE_ENGINE", raising=False)
    assert _topology().engine_choice.engine == "native"
    assert _topology(engine="python").engine_choice.engine == "python"
    assert _topology(engine="native", case="R4").engine_choice.engine == "python"
    assert _topology(policy={"adjust": "eager"}).engine_choice.engine == "python"
    assert "R4" in _topology(case="R4").engine_choice.why
    monkeypatch.setenv("LMERGE_ENGINE", "python")
    assert _topology(engine="native").engine_choice.engine == "python"
    monkeypatch.setenv("LMERGE_ENGINE", "rust")
    with pytest.raises(ConfigurationError, match="LMERGE_ENGINE must be one of auto, python, nat"):
        _ = _topology().engine_choice
