"""Workers that are killed in the middle of each step, while the output forgets."""

from collections import Counter
from pathlib import Path

import pytest

from tests.service.cluster import Merge
from tests.service.kill_schedules import compose, play, reader_group
from tests.service.mortal_worker import STEPS

SCHEDULES = 100


def test_seven_schedules_in_a_row_kill_in_every_step() -> None:
    for first in range(SCHEDULES - 7):
        kills = [kill.step for seed in range(first, first + 7) for kill in compose(seed)]
        assert set(kills) == set(STEPS)
    all_kills = Counter(kill.step for seed in range(SCHEDULES) for kill in compose(seed))
    assert min(all_kills.values()) >= 15


def test_who_dies_while_the_last_commit_is_looked_up_again_stands_by_first() -> None:
    """Who leads at once looks it up once: the schedule stood still."""
    kill = next(each for each in compose(34) if each.step == "last commit")
    assert (kill.entry, kill.stands_by) == (2, True)


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.timeout(2_000)  # three workers die, and each step may come late
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed in (3, 4) else pytest.mark.deep)
        for seed in range(SCHEDULES)
    ],
)
def test_whatever_step_a_worker_is_killed_in_the_next_goes_on(
    bootstrap: str, tmp_path: Path, seed: int
) -> None:
    merge = Merge(bootstrap, tmp_path)
    merge.extra = {
        "snapshot_seconds": 0.2,
        "output": {
            "topic": merge.output,
            "keep": "1s",
            "table": True,
            "readers": [reader_group(merge)],
        },
    }
    merge.write()
    play(merge, seed)
