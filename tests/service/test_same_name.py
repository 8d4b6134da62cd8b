"""Two merges that were given one name: the second is kept out, and the first never notices."""

from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.tdb import TDB
from tests.service.cluster import Merge
from tests.service.test_several_tasks import led, wait_until

pytestmark = pytest.mark.kafka


@pytest.mark.full
@pytest.mark.parametrize("tasks", [1, 2])
def test_n8_the_second_merge_of_a_name_ends_and_names_the_output_of_the_first(
    bootstrap: str, tmp_path: Path, tasks: int
) -> None:
    first, second = Merge(bootstrap, tmp_path), Merge(bootstrap, tmp_path)
    for merge in (first, second):
        output = {"topic": merge.output, "partitions": tasks}
        merge.extra = {"name": first.name, "output": output}
        merge.write()
    events = [Insert(b"%d" % number, number, number + 5) for number in range(10)]
    stream: list[Element] = [*events, Stable(INFINITY)]
    for merge in (first, second):
        merge.publish("a", stream)
    with first.worker() as winner:
        wait_until(lambda: led(winner) == set(range(tasks)), "the first merge is led")
        with second.worker() as loser:
            assert loser.process.wait(30) == 2, loser.text()
        log = loser.text()
        refusal = f"with output {first.output}, not {second.output}: give this one another name"
        assert refusal in log
        assert led(winner) == set(range(tasks)), winner.text()
        winner.wait_until_ended()
    assert first.output_is(TDB((each.payload, each.vs, each.ve) for each in events))
    assert "sharing tasks out" not in log
