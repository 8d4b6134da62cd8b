"""Programs that some tests need and not every machine has."""

import os
import shutil

import pytest

__all__ = ("need",)


def need(program: str, package: str, required: str) -> str:
    """Where a program is; without it a test is skipped with one line, and fails where the variable
    `required` is set, as CI does."""
    if (found := shutil.which(program)) is not None:
        return found
    missing = f"there is no {program}: `apt-get install {package}`"
    if os.environ.get(required):
        pytest.fail(missing)
    pytest.skip(missing)
