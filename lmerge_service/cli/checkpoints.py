"""A checkpoint in whatever form it was kept: lines, Parquet, a table, the state of a merge.

Where the time comes from, from which on it is correct: of lines and elements it is the last stable
that was recorded (of Parquet the least one of its partitions, and not before the `joining_at` of a
replica that has started over); of a table its stable point, which is the same; of a state each
task's stable point, since a task lets go of what ended before, or where its output has started
over, from when on that is correct.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from lmerge_service.cli.streams import is_parquet, label, reading
from lmerge_service.elements import START
from lmerge_service.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from lmerge_service.offline.checkpoint import Checkpoint

__all__ = ("checkpoint_in",)


def checkpoint_in(source: str, *, nfc: bool, drop_nulls: bool = False) -> "Checkpoint":
    """What a file or folder holds, whatever its form.

    Raises:
        ConfigurationError, ElementError, IllegalStreamError: it is damaged, or no checkpoint.
        EnvironmentMissingError: it is Parquet, and nothing is installed that reads it.
    """
    from lmerge_service.formats.bulk import Rule
    from lmerge_service.merge.state_file import is_state, outputs
    from lmerge_service.offline.checkpoint import checkpoint, composed, held

    place, name, rule = Path(source), label(source), Rule(nfc=nfc, drop_nulls=drop_nulls)
    try:
        if any((place / each).is_dir() for each in ("_delta_log", "manifests")):
            from lmerge_service.spark.table.read import held as held_by_table

            return composed(name, [(held_by_table(source, rule), START)])
        if is_parquet(source):
            from lmerge_service.spark.io.recorded import recorded

            streams = recorded(source, rule)
            at = f"{name}: partition {{}} at offset ".format
            return composed(
                name,
                [(held(at(each.partition), each.elements), each.joining_at) for each in streams],
            )
        if place.is_file() and is_state(place):
            return composed(name, outputs(place))
    except StateError as error:  # of a merge's own state it would be another matter
        raise ConfigurationError(str(error)) from error
    with reading([source], rule=rule) as (stream,):
        return checkpoint(name, stream)
