"""What Spark's checkpoint tells of batches: which were planned, and from where they read."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow.fs as pafs

from lmerge_service.errors import StateError
from lmerge_service.spark.merge.planning import Planned
from lmerge_service.spark.places import located

__all__ = ("committed", "planned")

_VERSION: Final = "v1"


def planned(checkpoint: str) -> Planned:
    """As of the last batch that was planned, whether it was run or not.

    Raises:
        StateError: the checkpoint is damaged, or of a Spark that writes it otherwise.
    """
    return _as_of(checkpoint, "offsets")


def committed(checkpoint: str) -> Planned:
    """As of the last batch that was run to its end."""
    return _as_of(checkpoint, "commits")


def _as_of(checkpoint: str, log: str) -> Planned:
    files, root = pafs.FileSystem.from_uri(located(checkpoint))
    folder = pafs.FileSelector(f"{root}/{log}", allow_not_found=True)
    names = [each.base_name for each in files.get_file_info(folder)]
    last = max((int(name) for name in names if name.isdigit()), default=-1)
    if last < 0:
        return Planned(0, {})
    path = f"{root}/offsets/{last}"
    try:
        with files.open_input_stream(path) as stream:
            version, _, *sources = stream.read().decode().splitlines()
        if version != _VERSION:
            raise StateError(f"{path} is of version {version}, and {_VERSION} is known")
        return Planned(last + 1, _offsets(json.loads(sources[0])))
    except (OSError, ValueError, IndexError, AttributeError) as error:
        raise StateError(f"{path} is damaged: {error}") from error


def _offsets(told: Any) -> Mapping[str, Mapping[int, int]]:
    return {
        topic: {int(number): offset for number, offset in partitions.items()}
        for topic, partitions in told.items()
    }
