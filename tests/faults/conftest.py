"""A merge of its own for each replay that needs the real service."""

from pathlib import Path

import pytest

from tests.service.cluster import Merge


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path)
