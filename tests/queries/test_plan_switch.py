"""A query whose plan is switched: its output goes on as one stream of the same meaning."""

from random import Random

import pytest

from lmerge_service.core import Policy, lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan_switch import RunningQuery, saved_output
from lmerge_service.tdb import TDB, reconstitute
from tests.queries.composed import drawn
from tests.queries.promises import seeds
from tests.queries.switching import (
    EQUIVALENT,
    LEVELS,
    Switching,
    A,
    B,
    history_of,
    plans_of,
    streams_for,
)

NAMES = pytest.mark.parametrize("name", EQUIVALENT)


@NAMES
@seeds(12)
def test_plans_switched_at_any_time_mean_one_query(name: str, seeds: range) -> None:
    queries = EQUIVALENT[name]
    for seed in seeds:
        rng = Random(seed)
        run = Switching(plans_of(rng, queries))
        often = rng.choice((0.1, 0.3))
        for source, element in streams_for(rng, queries[0]):
            run.feed(source, [element])
            draw = rng.random()
            if draw < often:
                run.switch(plans_of(rng, queries))
            elif draw < 1.5 * often:
                run.resume(plans_of(rng, queries))
            elif draw < 2 * often:
                run.restart()
        run.check_end()
