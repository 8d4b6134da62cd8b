"""Each toxic, on real sockets: a client, the proxy, and a server that echoes."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from lmerge_service.drills.proxy import API_KEYS, Proxy, Trap, toxic

_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def proxied(*, traps: bool = False) -> AsyncIterator[tuple[Proxy, list[bytes]]]:
    """A proxy before an echo; what the echo has received."""
    received: list[bytes] = []
    echoing: set[asyncio.Task[None] | None] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        echoing.add(asyncio.current_task())
        try:
            while data := await reader.read(1 << 16):
                received.append(data)
                writer.write(data)
        except ConnectionError:
            pass
        await closed(writer)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    async with server, Proxy(lambda: address, traps=traps) as proxy:
        yield proxy, received
    await asyncio.gather(*filter(None, echoing))


def test_n18_a_proxy_of_several_targets_has_a_port_for_each_and_spoils_all_alike() -> None:
    async def play() -> None:
        async with proxied() as (one, received), proxied() as (two, others):
            addresses = [("127.0.0.1", each.port) for each in (one, two)]
            async with Proxy(lambda: addresses[0], lambda: addresses[1]) as proxy:
                assert len({*proxy.ports}) == 2
                for port in proxy.ports:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"%d" % port)
                    assert await reader.read(9) == b"%d" % port
                    await closed(writer)
                assert [received, others] == [[b"%d" % port] for port in proxy.ports]
                proxy.add(toxic("timeout", "upstream"))
                for port in proxy.ports:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"held")
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.2)
                    await closed(writer)

    asyncio.run(play())


@asynccontextmanager
async def through(proxy: Proxy) -> AsyncIterator[_Pair]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def ask(pair: _Pair, data: bytes, seconds: float = 5) -> float:
    """Seconds until all came back."""
    reader, writer = pair
    began = time.monotonic()
    writer.write(data)
    async with asyncio.timeout(seconds):
        assert await reader.readexactly(len(data)) == data
    return time.monotonic() - began


def on(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_without_a_toxic_bytes_and_ends_pass() -> None:
    async def test() -> None:
        async with proxied() as (proxy, received), through(proxy) as (reader, writer):
            writer.write(b"x" * 300_000)
            writer.write_eof()
            assert await reader.read() == b"x" * 300_000
            assert sum(map(len, received)) == 300_000

    on(test)


def test_latency_makes_answers_late_in_connections_that_there_are_too() -> None:
    async def test() -> None:
        async with proxied() as (proxy, _), through(proxy) as pair:
            assert await ask(pair, b"a") < 0.2
            proxy.add(toxic("latency", latency=250, jitter=50))
            assert 0.2 <= await ask(pair, b"b") < 1
            proxy.reset()
            assert await ask(pair, b"c") < 0.2

    on(test)


def test_bandwidth_is_so_many_kilobytes_a_second() -> None:
    async def test() -> None:
        async with proxied() as (proxy, _), through(proxy) as pair:
            proxy.add(toxic("bandwidth", "upstream", rate=100))
            assert 0.3 <= await ask(pair, b"x" * 40_960) < 2

    on(test)


def test_a_black_hole_answers_nothing_and_lets_all_go_on_when_it_closes() -> None:
    async def test() -> None:
        async with proxied() as (proxy, received), through(proxy) as pair:
            proxy.add(toxic("timeout", "upstream"))
            with pytest.raises(TimeoutError):
                await ask(pair, b"lost?", seconds=0.3)
            assert not received
            proxy.reset()
            assert await pair[0].readexactly(5) == b"lost?"

    on(test)


def test_a_timeout_closes_the_connection() -> None:
    async def test() -> None:
        async with proxied() as (proxy, _), through(proxy) as pair:
            proxy.add(toxic("timeout", timeout=100))
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await ask(pair, b"x")

    on(test)


def test_reset_peer_resets() -> None:
    async def test() -> None:
        async with proxied() as (proxy, _), through(proxy) as pair:
            await ask(pair, b"x")
            proxy.add(toxic("reset_peer"))
            with pytest.raises(ConnectionResetError):
                await pair[0].read(1)

    on(test)


def test_slices_are_small() -> None:
    async def test() -> None:
        async with proxied() as (proxy, received), through(proxy) as pair:
            proxy.add(toxic("slicer", "upstream", average_size=2, delay=2_000))
            await ask(pair, b"abcdef")
            assert len(received) >= 2

    on(test)


def request(api_key: int, body: bytes) -> bytes:
    return struct.pack(">ih", 2 + len(body), api_key) + body


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_trap_springs_once_at_its_request_however_bytes_are_cut(moment: str) -> None:
    async def test() -> None:
        async with proxied(traps=True) as (proxy, received):
            sprung: list[bytes] = []

            async def spring() -> bool:
                await asyncio.sleep(0.05)  # what has gone on before is received
                sprung.append(b"".join(received))
                return True

            proxy.trap = Trap(API_KEYS["EndTxn"], moment, spring)  # type: ignore[arg-type]
            async with through(proxy) as pair:
                first, second = request(0, b"abc"), request(API_KEYS["EndTxn"], b"d" * 99)
                for each in (first[:5], first[5:] + second[:1], second[1:], second):
                    pair[1].write(each)
                    await asyncio.sleep(0.02)
                whole = first + second + second
                assert await pair[0].readexactly(len(whole)) == whole
                assert sprung == [first if moment == "before" else first + second]

    on(test)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("slow",), "no toxic 'slow'"),
        (("latency", "sideways"), "neither upstream nor downstream"),
    ],
)
def test_what_is_no_toxic_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toxic(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no attribute 'rate'"):
        toxic("latency", rate=3)
    with pytest.raises(ValueError, match="must not be negative"):
        toxic("latency", latency=-3)
