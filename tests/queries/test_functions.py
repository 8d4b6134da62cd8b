"""Functions that compute the same: plans call one or the other, and mean the same."""

import pytest

from lmerge_service.elements import Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.physical import build
from lmerge_service.queries.plan import Query, facts
from lmerge_service.queries.plan_numbering import numbered_plans, query_variants

HERE = "tests.queries.costly"
LEFT, RIGHT = f"{HERE}:accepts_left", f"{HERE}:accepts_right"
numbers = facts("numbers", time="t", fields={"n": int})
even = udf(LEFT, col.n, returns=bool, also=[RIGHT])


def test_each_function_has_its_plan() -> None:
    query = numbers.where(even | (col.n == 1))
    called = [str(Query(plan)).split("'")[1] for plan in query_variants(query)]
    assert called == [LEFT, RIGHT]


def test_of_three_each_is_called_and_all_plans_agree() -> None:
    three = udf(LEFT, col.n, returns=bool, also=[RIGHT, "tests.queries.test_functions:is_even"])
    query = numbers.select("n", even=three)
    plans = numbered_plans(query)
    called = {str(Query(plan.plan)).split("'")[1].rpartition(":")[2] for plan in plans}
    assert called == {"accepts_left", "accepts_right", "is_even"}
    for each in query_variants(query):
        emitted = build(each).process_batch("numbers", [Insert((4,), 1, 2), Insert((5,), 2, 3)])
        assert emitted == [Insert((4, True), 1, 2), Insert((5, False), 2, 3)]


def is_even(value: int) -> bool:
    """A third one."""
    return not value % 2


@pytest.mark.parametrize("also", [[LEFT], [RIGHT, RIGHT]])
def test_a_function_is_named_once(also: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^udf '.*', also=.*: a function is named twice$"):
        udf(LEFT, col.n, returns=bool, also=also)


def test_one_that_is_not_there_is_noticed_when_its_plan_begins() -> None:
    query = numbers.where(udf(LEFT, col.n, returns=bool, also=[f"{HERE}:nothing"]))
    with pytest.raises(ConfigurationError, match="nothing"):
        build(list(query_variants(query))[1])
