"""Whether the output has anything of a batch that was planned and is not complete.

Theory
    The records of a batch are numbered from the last one of the batch before on, in each output
    partition. So nothing of it has been written iff no partition ends with a higher number than
    its bucket had emitted by then. Dead letters and evidence are not looked at: they may be there
    twice anyway.
"""

from pyspark.sql import SparkSession

from lmerge_service.errors import StateError
from lmerge_service.formats.headers import seq_of
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.find import windows
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.merge.internal_topics import largest_record
from lmerge_service.spark.merge.plan import Work
from lmerge_service.spark.merge.processor import fresh
from lmerge_service.spark.merge.stored import StoredVariables
from lmerge_service.spark.state import Stored

__all__ = ("emitted", "require_unwritten")


def emitted(spark: SparkSession, work: Work, checkpoint: str, *, batches: int) -> list[int]:
    """By bucket, the number of its last record as of the last of so many complete batches."""
    _ = spark.streams  # starts what reads state, in a session that has run no query yet
    found = []
    for number, key in enumerate(work.keys):
        last = Stored(StoredVariables(spark, checkpoint, key)).emitted if batches else None
        found.append(fresh(work, number).state.output_records if last is None else last)
    return found


async def require_unwritten(cluster: Cluster, work: Work, emitted: list[int], why: str) -> None:
    """Makes sure that a batch that cannot be run may be planned again; `why` is why it cannot.

    Raises:
        StateError: the output has records of it, so what comes behind them cannot be known.
        TransportError: Kafka cannot be reached, or refuses.
    """
    topology = work.topology
    topic = topology.output.topic
    async with cluster.source(max_record_bytes=largest_record(topology)) as source:
        for number, before in enumerate(emitted):
            last = await _last_number(source, TopicPartition(topic, number))
            if last > before:
                raise StateError(
                    f"{topic}-{number} has records {before + 1} to {last} of a batch that was not "
                    f"complete when the job ended, and what it was made of is gone: {why}; merge "
                    "into a new output topic, with a new --checkpoint"
                )


async def _last_number(source: Source, place: TopicPartition) -> int:
    """Of the last record of a partition of the output; 0: it has none."""
    begins, ends = await source.beginnings([place]), await source.ends([place])
    for start, end in windows(begins[place], ends[place]):
        last = None
        async for _, records in source.backlog({place: start}, {place: end}):
            last = records[-1]
        if last is not None:
            return seq_of(last.headers) or 0
    return 0
