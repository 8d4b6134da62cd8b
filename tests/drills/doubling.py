"""An action that no merge does: an event of the output is written there again."""

from aiokafka import AIOKafkaProducer

from lmerge_service.drills.dump import dump
from lmerge_service.drills.environment import Environment
from lmerge_service.drills.plan import OUTPUT
from lmerge_service.drills.session import in_environment

__all__ = ("double",)


@in_environment
async def double(environment: Environment) -> str:
    """Gives the record."""
    output = (await dump(environment.brokers.bootstrap, [OUTPUT]))[OUTPUT]
    record = next(each for each in output.records if b'"insert"' in (each.value or b""))
    async with AIOKafkaProducer(bootstrap_servers=environment.brokers.bootstrap) as producer:
        await producer.send_and_wait(
            OUTPUT, record.value, key=record.key, partition=record.partition
        )
    return record.place
