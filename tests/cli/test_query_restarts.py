"""What `lmerge query run` and `lmerge query spark` refuse before they look at Kafka."""

import pytest

from tests.cli.conftest import Lmerge


@pytest.mark.parametrize("command", ["run", "spark"])
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--since", "5", "--rejoin"), "--since and --rejoin are two ways to start over: give one"),
        (("--resume", "--rejoin"), "--resume continues, --since and --rejoin start over: give one"),
        (
            ("--resume", "--since", "5"),
            "--resume continues, --since and --rejoin start over: give one",
        ),
    ],
)
def test_two_ways_to_begin_are_refused(
    command: str, options: tuple[str, ...], why: str, lmerge: Lmerge
) -> None:
    outcome = lmerge("query", command, "asked.py:departed", "--to", "out", *options)
    assert (outcome.code, outcome.error) == (2, why)
