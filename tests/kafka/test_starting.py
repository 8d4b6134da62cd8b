"""A client that does not start is not left behind."""

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from lmerge_service.errors import TransportError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.starting import started
from lmerge_service.local.broker import free_port


class Client:
    def __init__(self, error: BaseException | None) -> None:
        self.stopped = False
        self._error = error

    async def start(self) -> None:
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        self.stopped = True


def start(client: Client) -> None:
    connection = Connection(f"127.0.0.1:{free_port()}")
    asyncio.run(started(client.start(), client.stop, connection))


def test_a_client_that_starts_goes_on() -> None:
    client = Client(None)
    start(client)
    assert not client.stopped


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KafkaConnectionError("nobody is there"), TransportError),
        (ValueError("something else"), ValueError),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
)
def test_a_client_that_does_not_start_is_stopped(
    error: BaseException, raised: type[BaseException]
) -> None:
    client = Client(error)
    with pytest.raises(raised):
        start(client)
    assert client.stopped
