"""`lmerge query readings` and `select`: mistakes in one line."""

import pytest

from tests.cli.conftest import Lmerge

SELECT = "query select --plan 1 --readings r --to t"
NOWHERE = " --bootstrap 127.0.0.1:1"


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        (
            SELECT.replace("--plan 1", "--plan 7"),
            2,
            "there is no plan 7: there are 6",
        ),
        (SELECT.replace("--to t", "--to t/u"), 2, "'t/u' is no name of a topic"),
        (SELECT + " --feedback o/p", 2, "'o/p' is no name of a topic"),
        (SELECT + " --name a", 2, "--name is whose feedback is used: give --feedback and --name"),
        (SELECT + " --feedback o", 2, "--name is whose feedback is used: give --feedback and --n"),
        (SELECT + NOWHERE, 3, "connecting to 127.0.0.1:1: Kafka cannot"),
        ("query readings r --batch 30-10", 2, "--batch takes the least size and the largest"),
        ("query readings r --batch 0-1", 2, "--batch takes the least size and the largest"),
        ("query readings r" + NOWHERE, 3, "connecting to 127.0.0.1:1: Kafka cannot"),
    ],
)
def test_a_mistake_is_one_line(command: str, code: int, error: str, lmerge: Lmerge) -> None:
    outcome = lmerge(*command.split())
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.error.startswith(error)
