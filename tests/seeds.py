"""How many random cases a test has, by how much time there is."""

import pytest
from _pytest.mark import ParameterSet

__all__ = ("seeds",)


def seeds(fast: int, *, deep: int | None = None, most: int | None = None) -> pytest.MarkDecorator:
    """Runs a test with so many seeds in `make test`, 5 times as many in `make test-full`, and 100
    times, or `deep`, in `make test-deep`, none twice; `most` are run at a time, where they take
    long."""
    full, whole = 5 * fast, deep or 100 * fast
    return pytest.mark.parametrize(
        "seeds",
        [
            *_cut(range(fast), most, "fast", ()),
            *_cut(range(fast, full), most, "full", pytest.mark.full),
            *_cut(range(full, whole), most, "deep", pytest.mark.deep),
        ],
    )


def _cut(
    every: range, most: int | None, name: str, mark: pytest.MarkDecorator | tuple[()]
) -> list[ParameterSet]:
    """One range, or several that are no longer than `most`, with their names and marks."""
    size = most or len(every)
    parts = [every[at : at + size] for at in range(0, len(every), size)]
    alone = len(parts) == 1
    return [
        pytest.param(part, id=name if alone else f"{name}-{part.start}", marks=mark)
        for part in parts
    ]
