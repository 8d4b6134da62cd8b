"""What Spark's checkpoint has of batches: which were planned, and from where they read.

Theory
    Before Spark runs batch N it writes `offsets/N`: up to where the batch reads. When the batch is
    complete it writes `commits/N`, and batch N + 1 reads from `offsets/N` on. So what a query that
    is started reads next stands in one file. While no query runs, it is changed in two cases:

    When topics come or go, the file gets those that the next batch is to read (`align`). Spark
    takes a topic that is not subscribed any more for one that has lost its data, and one that is
    new for one that may have; so that it stops where data is really lost, it must not see either.

    A batch that can never be run, since its records are gone, is forgotten (`unplan`).

What happens on a crash
    A file is whole, the old one or the new one; the job does again what it had not done.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow.fs as pafs

from lmerge_service.errors import StateError
from lmerge_service.spark.io.places import located
from lmerge_service.spark.merge.planning import Planned

__all__ = ("align", "committed", "planned", "unplan")

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


def align(checkpoint: str, topics: Mapping[str, Mapping[int, int]]) -> None:
    """Has the next batch read these topics from these offsets on; the last one that was planned
    must be complete.

    Raises:
        StateError: as `planned`.
    """
    files, root = pafs.FileSystem.from_uri(located(checkpoint))
    last = _last(files, f"{root}/offsets")
    if last < 0:  # nothing was planned: what the query is started with counts
        _remove(files, f"{root}/sources/0", "0")
        return
    version, metadata, _ = _lines(files, f"{root}/offsets/{last}")
    offsets = {topic: {str(n): at for n, at in found.items()} for topic, found in topics.items()}
    text = "\n".join([version, metadata, json.dumps(offsets, separators=(",", ":"))])
    partial = f"{root}/offsets/.{last}.partial"
    with files.open_output_stream(partial) as stream:
        stream.write(text.encode())
    _remove(files, f"{root}/offsets", f".{last}.crc")
    files.move(partial, f"{root}/offsets/{last}")


def unplan(checkpoint: str, batch: int) -> None:
    """Forgets the last planned batch, of which nothing may have been written. Of the first one also
    what it began of the state: Spark begins in an empty folder only."""
    files, root = pafs.FileSystem.from_uri(located(checkpoint))
    if batch == 0 and files.get_file_info(f"{root}/state").type != pafs.FileType.NotFound:
        files.delete_dir(f"{root}/state")
    _remove(files, f"{root}/offsets", str(batch))


def _remove(files: Any, folder: str, name: str) -> None:
    """A file, and the checksum that Hadoop keeps of it."""
    for each in (f"{folder}/{name}", f"{folder}/.{name}.crc"):
        if files.get_file_info(each).type != pafs.FileType.NotFound:
            files.delete_file(each)


def _as_of(checkpoint: str, log: str) -> Planned:
    files, root = pafs.FileSystem.from_uri(located(checkpoint))
    last = _last(files, f"{root}/{log}")
    if last < 0:
        return Planned(0, {})
    path = f"{root}/offsets/{last}"
    try:
        return Planned(last + 1, _offsets(json.loads(_lines(files, path)[-1])))
    except (ValueError, AttributeError) as error:
        raise StateError(f"{path} is damaged: {error}") from error


def _last(files: Any, folder: str) -> int:
    """The highest number of a file; -1: there is none."""
    found = files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return max((int(each.base_name) for each in found if each.base_name.isdigit()), default=-1)


def _lines(files: Any, path: str) -> tuple[str, str, str]:
    """Version, metadata, and the offsets of the one source."""
    try:
        with files.open_input_stream(path) as stream:
            version, *rest = stream.read().decode().splitlines()
        if version != _VERSION:
            raise StateError(f"{path} is of version {version}, and {_VERSION} is known")
        metadata, offsets = rest
    except (OSError, ValueError) as error:
        raise StateError(f"{path} is damaged: {error}") from error
    return version, metadata, offsets


def _offsets(document: Any) -> Mapping[str, Mapping[int, int]]:
    return {
        topic: {int(number): offset for number, offset in partitions.items()}
        for topic, partitions in document.items()
    }
