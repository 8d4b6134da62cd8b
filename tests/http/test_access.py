"""Who may do what over HTTP, and what nobody may: sent for real, to a real server."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import Body, Depends, FastAPI

from lmerge_service.config.http import Http
from lmerge_service.config.topology import load
from lmerge_service.errors import ConfigurationError, EnvironmentMissingError
from lmerge_service.http import access as limits
from lmerge_service.http import listener
from lmerge_service.http.access import Access, AccessMiddleware
from lmerge_service.http.server import serve
from tests.certificates import Authority, Identity

READ, CONTROL = "read-token-of-the-tests", "control-token-of-the-tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens, and certificates of a server and of a client."""
    folder = tmp_path_factory.mktemp("access")
    (folder / "read").write_text(READ + "\n")
    (folder / "control").write_text(CONTROL)
    (folder / "short").write_text("secret")
    authority = Authority(folder)
    authority.sign("server")
    authority.sign("client")
    return folder


def http_of(folder: Path, **fields: Any) -> Http:
    path = folder / "topology.yaml"
    topology = {
        "name": "t",
        "kafka": {"bootstrap": "k:1"},
        "output": {"topic": "o"},
        "replicas": [{"name": "a", "topic": "a"}],
        "http": {"port": 0, **fields},
    }
    path.write_text(json.dumps(topology))
    return load(path).http


def tokens(*names: str) -> dict[str, dict[str, str]]:
    return {f"{name}_token": {"file": name} for name in names}


@asynccontextmanager
async def serving(http: Http) -> AsyncIterator[str]:
    """A server with a route to read and a route to control, guarded as the worker's are."""
    access = Access(http)
    app = FastAPI()
    app.add_middleware(AccessMiddleware, access=access)

    @app.get("/read", dependencies=[Depends(access.reads)])
    async def read(size: int = 2) -> str:
        return "x" * size

    @app.post("/control", dependencies=[Depends(access.controls)])
    async def control(body: Annotated[bytes, Body()] = b"") -> int:
        return len(body)

    async with serve(app, http) as address:
        yield address


def played(http: Http, play: Callable[[str], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with serving(http) as address, asyncio.timeout(20):
            return await play(address)

    return asyncio.run(run())


def answers(http: Http, *asked: tuple[str, str | None], **options: Any) -> list[int]:
    """The status of each `("GET /read", token)`."""

    async def play(address: str) -> list[int]:
        async with httpx.AsyncClient(base_url=address, **options) as client:
            found = []
            for what, token in asked:
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                method, path = what.split()
                found.append((await client.request(method, path, headers=headers)).status_code)
            return found

    result: list[int] = played(http, play)
    return result


def everybody(http: Http, **options: Any) -> tuple[list[int], list[int]]:
    """What reading and controlling come to without a token, with a wrong one, and with each."""
    who = (None, "wrong", READ, CONTROL)
    reads = answers(http, *(("GET /read", token) for token in who), **options)
    return reads, answers(http, *(("POST /control", token) for token in who), **options)


def test_without_tokens_all_may_read_on_loopback_and_nobody_may_control(folder: Path) -> None:
    assert everybody(http_of(folder)) == ([200] * 4, [403] * 4)


def test_the_refusal_explains_how_to_allow_changes(folder: Path) -> None:
    async def play(address: str) -> Any:
        async with httpx.AsyncClient() as client:
            return (await client.post(f"{address}/control")).json()

    assert "http.control_token; name there where one is" in played(http_of(folder), play)["detail"]


def test_a_control_token_controls_and_loopback_still_reads(folder: Path) -> None:
    http = http_of(folder, **tokens("control"))
    assert everybody(http) == ([200] * 4, [401, 401, 401, 200])


def test_a_read_token_reads_only_and_the_control_token_does_both(folder: Path) -> None:
    http = http_of(folder, **tokens("read", "control"))
    assert everybody(http) == ([401, 401, 200, 200], [401, 401, 403, 200])


def test_a_read_token_alone_lets_nobody_control(folder: Path) -> None:
    assert everybody(http_of(folder, **tokens("read"))) == ([401, 401, 200, 401], [403] * 4)


def _tls(folder: Path, **more: str) -> dict[str, Any]:
    return {"certificate": "server.pem", "key": "server.key", **more}


def _verify(folder: Path, client: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def _client(folder: Path) -> Identity:
    return Identity(folder / "client.pem", folder / "client.key", folder / "client.both")


def test_a_client_certificate_is_enough_and_nobody_is_served_without(folder: Path) -> None:
    http = http_of(folder, tls=_tls(folder, client_ca="ca.pem"))
    known = _verify(folder, _client(folder))
    assert everybody(http, verify=known) == ([200] * 4, [200] * 4)
    with pytest.raises(httpx.TransportError):
        answers(http, ("GET /read", CONTROL), verify=_verify(folder))


def test_a_client_certificate_does_not_stand_in_for_tokens(folder: Path) -> None:
    http = http_of(folder, tls=_tls(folder, client_ca="ca.pem"), **tokens("read", "control"))
    known = _verify(folder, _client(folder))
    assert everybody(http, verify=known) == ([401, 401, 200, 200], [401, 401, 403, 200])


def test_off_loopback_the_control_token_alone_guards_reading_too(folder: Path) -> None:
    http = http_of(folder, tls=_tls(folder), **tokens("control"))
    elsewhere = http.model_copy(update={"host": "0.0.0.0"})  # noqa: S104
    access = Access(elsewhere)
    assert not access._open
    assert Access(http)._open


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": "0.0.0.0"}, "topology.yaml:1: http: host 0.0.0.0 can be reached by others"),  # noqa: S104
        ({"host": "10.0.0.1", **tokens("control")}, "that needs tls (so that nobody listens in"),
        ({"host": "::", "tls": {"certificate": "server.both"}}, "and read_token, control_token o"),
        ({"host": "example.com"}, "http.host: an IP address of this machine is needed"),
        ({"control_token": CONTROL}, "http.control_token: a secret is not written here"),
        ({"control_token": {"file": "short"}}, "a token has 16 or more visible ASCII characters"),
        (
            {"control_token": {"file": "read"}, "read_token": {"file": "read"}},
            "read_token and control_token are the same",
        ),
        ({"tls": {"key": "server.key"}}, "http.tls.certificate: is missing"),
        ({"names": ["a b"]}, "http.names[0]: "),
    ],
)
def test_what_would_not_be_safe_is_refused(
    folder: Path, fields: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        http_of(folder, **fields)
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    assert CONTROL not in message


def test_others_are_served_with_tls_and_a_token(folder: Path) -> None:
    http = http_of(folder, host="0.0.0.0", tls=_tls(folder), **tokens("control"))  # noqa: S104
    assert not http.on_loopback
    assert Access(http).knows_host("10.1.2.3:8321")


def test_tokens_are_shown_nowhere(folder: Path) -> None:
    http = http_of(folder, **tokens("read", "control"))
    shown = f"{http!r} {http.model_dump_json()} {vars(Access(http))}"
    assert READ not in shown
    assert CONTROL not in shown


def test_a_token_that_is_gone_is_one_line(folder: Path) -> None:
    http = http_of(folder, **tokens("read"))
    (folder / "read").rename(folder / "moved")
    try:
        with pytest.raises(EnvironmentMissingError, match=r"^a token of the HTTP API: cannot read"):
            Access(http)
    finally:
        (folder / "moved").rename(folder / "read")


# What arrives on the wire


async def raw(address: str, *parts: bytes, pause: float = 0) -> bytes:
    """Sends bytes as they are; everything that comes back until the server hangs up."""
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    answer = b""

    async def receive() -> None:
        nonlocal answer
        with suppress(ConnectionError):
            while part := await reader.read(1 << 16):
                answer += part

    receiving = asyncio.create_task(receive())
    with suppress(ConnectionError):  # a server that has had enough need not take it all
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
    await receiving
    writer.close()
    return answer


def _get(*headers: str, host: str = "127.0.0.1") -> bytes:
    lines = ["GET /read HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _post(*headers: str) -> bytes:
    lines = ["POST /control HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {CONTROL}"]
    return ("\r\n".join([*lines, *headers]) + "\r\n\r\n").encode()


def _status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


def sent(http: Http, *parts: bytes, pause: float = 0) -> int:
    """The status of the answer; 0: hung up without one."""
    return _status(played(http, lambda address: raw(address, *parts, pause=pause)))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1234", 200),
        ("LOCALHOST", 200),
        ("localhost.:80", 200),
        ("[::1]:8321", 200),
        ("10.0.0.7", 200),
        ("merge.example:8321", 200),
        ("attacker.example", 421),
        ("127.0.0.1.attacker.example", 421),
        ("localhost@attacker.example", 421),
        ("", 421),
    ],
)
def test_a_name_that_is_not_ours_is_a_rebinding_attack(
    folder: Path, host: str, status: int
) -> None:
    assert sent(http_of(folder, names=["merge.example"]), _get(host=host)) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:80", 200),
        ("http://127.0.0.1:81", 403),
        ("http://localhost:80", 403),
        ("https://attacker.example", 403),
        ("null", 403),
    ],
)
def test_a_page_of_another_origin_is_refused(folder: Path, origin: str, status: int) -> None:
    http = http_of(folder)
    assert sent(http, _get(f"Origin: {origin}", host="127.0.0.1:80")) == status


def test_answers_are_not_for_caches_frames_or_guessing(folder: Path) -> None:
    head, _, body = played(http_of(folder), lambda address: raw(address, _get())).partition(
        b"\r\n\r\n"
    )
    assert body == b'"xx"'
    for header in (b"x-frame-options: DENY", b"cache-control: no-store", b"nosniff"):
        assert header.lower() in head.lower()
    assert b"server:" not in head.lower()


def test_a_body_has_a_limit_with_and_without_a_content_length(folder: Path) -> None:
    http, most = http_of(folder, **tokens("control")), limits.BODY_BYTES
    close = "Connection: close"
    assert sent(http, _post(f"Content-Length: {most}", close), b"x" * most) == 200
    assert sent(http, _post(f"Content-Length: {most + 1}")) == 413
    assert sent(http, _post("Content-Length: 99999999999999999999")) == 413
    chunked = _post("Transfer-Encoding: chunked", close)
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    assert sent(http, chunked, chunk * 4, b"0\r\n\r\n") == 200
    assert sent(http, chunked, chunk * 4, b"1\r\nx\r\n", b"0\r\n\r\n") == 413


def test_headers_have_a_limit(folder: Path) -> None:
    http, most = http_of(folder), limits.HEADER_BYTES
    assert sent(http, _get("X: " + "x" * (most - 200))) == 200
    assert sent(http, _get("X: " + "x" * most)) == 431
    assert sent(http, b"GET /read HTTP/1.1\r\nX: " + b"x" * (most + 100)) == 400
    assert sent(http, b"GET /" + b"x" * (most + 100)) == 400


def test_a_body_that_comes_slowly_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.2)
    http = http_of(folder, **tokens("control"))
    assert sent(http, _post("Content-Length: 9", "Connection: close"), b"x") == 408


def test_a_head_that_comes_slowly_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.2)
    http = http_of(folder)
    assert sent(http) == 0  # no answer at all
    drops = [bytes([each]) for each in _get()]
    assert sent(http, *drops, pause=0.02) == 0
    kept_alive = _get().replace(b"Connection: close\r\n", b"")
    answer = played(http, lambda address: raw(address, kept_alive, *drops, pause=0.02))
    assert answer.count(b"HTTP/1.1 200") == 1


@pytest.mark.full
def test_an_idle_connection_is_closed(folder: Path) -> None:
    async def play(address: str) -> float:
        started = asyncio.get_running_loop().time()
        await raw(address, _get().replace(b"Connection: close\r\n", b""))
        return asyncio.get_running_loop().time() - started

    assert 4 < played(http_of(folder), play) < 9


def test_an_answer_that_nobody_takes_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TAKE_SECONDS", 0.2)
    size = 50_000_000

    async def play(address: str) -> int:
        where = urlsplit(address)
        reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1)
        writer.write(_get().replace(b"/read", f"/read?size={size}".encode()))
        await asyncio.sleep(1)  # the answer waits for us meanwhile, and is given up
        taken = 0
        try:
            while part := await reader.read(1 << 20):
                taken += len(part)
        except ConnectionError:
            pass
        writer.close()
        return taken

    assert played(http_of(folder), play) < size


def test_too_many_connections_are_warned_and_then_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(address: str) -> list[int]:
        where = urlsplit(address)
        idle = [
            await asyncio.open_connection(where.hostname, where.port)
            for _ in range(listener.CONNECTIONS // 2)
        ]
        busy = _status(await raw(address, _get()))
        idle += [
            await asyncio.open_connection(where.hostname, where.port)
            for _ in range(listener.CONNECTIONS // 2)
        ]
        full = _status(await raw(address, _get()))
        for _, writer in idle:
            writer.close()
        await _until_served(address)
        return [busy, full]

    assert played(http_of(folder), play) == [503, 0]


async def _until_served(address: str) -> None:
    while _status(await raw(address, _get())) != 200:
        pass
