"""The pytest plugin that runs in each copy: which tests come first, and on which examples.

pytest -p tests.mutants.order --copy . --first test_killed.py,test_lmr4.py
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

import lmerge_service

__all__ = ("pytest_addoption", "pytest_collection_modifyitems", "pytest_configure")

# tests/conftest.py loads it: HYPOTHESIS_PROFILE=mutants
settings.register_profile(
    "mutants",
    max_examples=100,
    database=None,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
_OTHERS = ("test_baselines.py", "test_choosing.py", "test_cleanse.py", "test_normaliser.py")
"""Of tests/core, what tests no operator that has mutants: left out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--copy", default=".", help="the folder whose package must be the one tested")
    parser.addoption("--first", default="", help="test files that come first, with commas between")


def pytest_configure(config: pytest.Config) -> None:
    tested, copy = Path(lmerge_service.__file__).resolve(), Path(config.getoption("--copy"))
    if not tested.is_relative_to(copy.resolve()):
        raise pytest.UsageError(f"the tests would run {tested}, which is not in {copy.resolve()}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = str(config.getoption("--first")).split(",")
    rank = {name: place for place, name in enumerate(first)}

    def key(item: pytest.Item) -> tuple[bool, int]:
        return is_property(item), rank.get(item.path.name, len(rank))

    items[:] = sorted((item for item in items if item.path.name not in _OTHERS), key=key)


def is_property(item: pytest.Item) -> bool:
    """It draws examples, whether by `given` or as a state machine."""
    test = getattr(item, "obj", None)
    return is_hypothesis_test(test) or item.name == "runTest"
