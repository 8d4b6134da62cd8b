"""An action that no merge does: an event of the output is written there again."""

from aiokafka import AIOKafkaProducer

from lmerge_service.drills.dump import dump
from lmerge_service.drills.environment import OUTPUT, Environment
from lmerge_service.drills.session import in_environment

__all__ = ("double",)


def double() -> str:
    """Gives the record."""
    return in_environment(_double)


async def _double(environment: Environment) -> str:
    output = (await dump(environment.broker.bootstrap, [OUTPUT]))[OUTPUT]
    record = next(each for each in output.records if b'"insert"' in (each.value or b""))
    async with AIOKafkaProducer(bootstrap_servers=environment.broker.bootstrap) as producer:
        await producer.send_and_wait(
            OUTPUT, record.value, key=record.key, partition=record.partition
        )
    return record.place
