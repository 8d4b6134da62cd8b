"""Long answers are read in place: the same bytes as from asyncio's reader, however they arrive."""

import asyncio
import io
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka import conn
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service.kafka import frames
from lmerge_service.kafka.frames import Frames
from tests.certificates import Authority

LONG = frames._LONG
SIZES = st.sampled_from([1, 4, 100, LONG - 1, LONG, LONG + 1, 3 * LONG])


async def connected(
    sent: Sequence[bytes],
    use: Callable[[asyncio.StreamReader], Awaitable[None]],
    *,
    hangs_up: bool = False,
    tls: Path | None = None,
) -> None:
    """Uses a reader as the client makes it, of a server that sends pieces; `tls` is a folder for
    certificates."""

    async def serve(client: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in sent:
            writer.write(piece)
            with suppress(ConnectionError):
                await writer.drain()
            await asyncio.sleep(0)
        if not hangs_up:
            await client.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    ours, its = (None, None) if tls is None else _contexts(tls)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=its)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=conn.READER_LIMIT, loop=loop)
    protocol = conn.AIOKafkaProtocol(loop.create_future(), reader, loop=loop)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(20):
        transport, _ = await loop.create_connection(lambda: protocol, "127.0.0.1", port, ssl=ours)
        try:
            await use(reader)
        finally:
            transport.close()
            await ended.wait()


def _contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority(folder)
    server = authority.sign("server")
    ours = ssl.create_default_context(cafile=str(authority.certificate))
    its = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    its.load_cert_chain(server.certificate, server.key)
    return ours, its


def test_a_long_answer_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    places = list[int]()

    class Noting(io.BytesIO):
        def __init__(self, place: bytes) -> None:
            places.append(id(place))
            super().__init__(place)

    monkeypatch.setattr(io, "BytesIO", Noting)

    async def use(reader: asyncio.StreamReader) -> None:
        answer = await reader.readexactly(3 * LONG)
        assert [id(answer)] == places

    asyncio.run(connected([bytes(3 * LONG)], use))


def test_an_answer_behind_a_long_one_is_read_by_tls_as_well(tmp_path: Path) -> None:
    """TLS asks for room at once where an answer has filled all that there was."""
    answers = [
        bytes([number]) * size for number, size in enumerate((10, 2 * LONG, 20, 50 * LONG, 5))
    ]

    async def use(reader: asyncio.StreamReader) -> None:
        for answer in answers:
            assert await reader.readexactly(len(answer)) == answer

    asyncio.run(connected(answers, use, tls=tmp_path))


@settings(max_examples=25, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=8), st.lists(SIZES, min_size=1, max_size=5))
def test_whatever_is_read_is_what_was_sent(reads: list[int], pieces: list[int]) -> None:
    whole = b"".join(number.to_bytes(4, "big") for number in range(sum(reads) // 4 + 1))
    whole, sent, at = whole[: sum(reads)], list[bytes](), 0
    while at < len(whole):
        for size in (*pieces, LONG):
            sent.append(whole[at : at + size])
            at += size

    async def use(reader: asyncio.StreamReader) -> None:
        assert isinstance(reader, Frames)
        at = 0
        for size in reads:
            found = await reader.readexactly(size)
            assert type(found) is bytes
            assert found == whole[at : at + size]
            at += size

    asyncio.run(connected(sent, use))


def test_a_connection_that_ends_within_a_long_answer_ends_its_reader() -> None:
    async def use(reader: asyncio.StreamReader) -> None:
        assert await reader.readexactly(4) == b"\0" * 4
        with pytest.raises(asyncio.IncompleteReadError) as found:
            await reader.readexactly(2 * LONG)
        assert found.value.partial == b"\1" * LONG
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(LONG)

    asyncio.run(connected([b"\0" * 4, b"\1" * LONG], use, hangs_up=True))


def test_a_connection_that_breaks_within_a_long_answer_raises_to_its_reader() -> None:
    async def use(reader: asyncio.StreamReader) -> None:
        waiting = asyncio.ensure_future(reader.readexactly(2 * LONG))
        await asyncio.sleep(0.01)
        reader.set_exception(ConnectionResetError("gone"))
        with pytest.raises(ConnectionResetError):
            await waiting
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(2 * LONG)

    asyncio.run(connected([b"\1" * LONG], use))


def test_long_answers_are_not_copied_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what came with the end of another is read where it stays."""
    buffered = 0
    feed = asyncio.StreamReader.feed_data

    def counted(self: asyncio.StreamReader, data: bytes) -> None:
        nonlocal buffered
        buffered += len(data)
        feed(self, data)

    monkeypatch.setattr(asyncio.StreamReader, "feed_data", counted)

    async def use(reader: asyncio.StreamReader) -> None:
        for _ in range(3):
            assert len(await reader.readexactly(100 * LONG)) == 100 * LONG

    asyncio.run(connected([bytes(300 * LONG)], use))
    assert buffered <= 12 * LONG
