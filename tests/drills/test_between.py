"""Links between nodes: who connects is found out, and one node is cut off from the others alone."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations

import pytest

from lmerge_service.drills.between import BROKERS, CONTROLLERS, Between

_NODE = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def echo(connection):
    while data := connection.recv(99):
        connection.sendall(data)
def serve():
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
for line in sys.stdin:  # a port: whether its other side answers within so many seconds
    port, seconds = line.split()
    with socket.create_connection(("127.0.0.1", int(port)), 5) as far:
        far.settimeout(float(seconds))
        far.sendall(b"x")
        try:
            print(far.recv(1) == b"x", flush=True)
        except TimeoutError:
            print(False, flush=True)
"""


class Node:
    """A process that answers on a port, and asks others when it is asked to."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self._process = process
        self.pid = process.pid
        self.port = int(self._line())

    async def reaches(self, port: int, seconds: float) -> bool:
        assert self._process.stdin is not None
        print(port, seconds, file=self._process.stdin, flush=True)
        return await asyncio.to_thread(self._line) == "True"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def node() -> Iterator[Node]:
    command = [sys.executable, "-c", _NODE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Node(process)
        process.kill()


@pytest.mark.full
def test_n18_a_node_is_cut_off_from_the_others_and_they_are_not_from_each_other() -> None:
    async def play(nodes: dict[int, Node]) -> None:
        def behind(number: int, _listener: str) -> tuple[str, int]:
            return "127.0.0.1", nodes[number].port

        def process(number: int) -> int:
            return nodes[number].pid

        async def reached(seconds: float) -> set[tuple[int, int, str]]:
            return {
                (a, b, listener)
                for a, b in pairs
                for listener, port in (
                    (BROKERS, between.door(b)), (CONTROLLERS, between.controllers(a)[b]),
                )
                if await nodes[a].reaches(port, seconds)
            }  # fmt: skip

        pairs = list(permutations(nodes, 2))
        every = {(a, b, listener) for a, b in pairs for listener in (BROKERS, CONTROLLERS)}
        async with Between(nodes, behind, process) as between:
            assert await reached(10) == every
            between.cut(2)
            assert await reached(1) == {each for each in every if 2 not in each}
            between.mend()
            assert await reached(10) == every

    with node() as one, node() as two, node() as three:
        asyncio.run(play({1: one, 2: two, 3: three}))


def test_n18_who_is_no_node_is_not_let_in() -> None:
    async def play() -> None:
        async with Between([1], lambda *_: ("127.0.0.1", 1), lambda _: None) as between:
            port = between.door(1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read(1) == b"", "it is closed"
            writer.close()

    asyncio.run(play())
