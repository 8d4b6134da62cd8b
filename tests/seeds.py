"""How many random cases a test has, by how much time there is."""

import pytest

__all__ = ("seeds",)


def seeds(fast: int) -> pytest.MarkDecorator:
    """Runs a test with so many seeds in `make test`, 10 times as many in `make test-full`, and 100
    times in `make test-deep`, none twice."""
    return pytest.mark.parametrize(
        "seeds",
        [
            pytest.param(range(fast), id="fast"),
            pytest.param(range(fast, 10 * fast), id="full", marks=pytest.mark.full),
            pytest.param(range(10 * fast, 100 * fast), id="deep", marks=pytest.mark.deep),
        ],
    )
