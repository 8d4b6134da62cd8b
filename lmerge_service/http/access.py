"""Who may do what over HTTP: tokens, client certificates, and requests that no friend sends.

Theory
    Two rights: *reads* and *controls*; whoever controls may read. There are two tokens, since the
    one for reading is given to monitoring and lies about on many machines, and must not be enough
    to change what is merged there.

    | configured                  | reads                       | controls                        |
    |-----------------------------|-----------------------------|---------------------------------|
    | nothing, on loopback        | anybody                     | nobody (403 explains it)        |
    | control_token, on loopback  | anybody                     | the control token               |
    | control_token elsewhere     | the control token           | the control token               |
    | read_token                  | either token                | the control token, else nobody  |
    | tls.client_ca, no tokens    | a client certificate        | a client certificate            |
    | tls.client_ca and tokens    | as without it, and a certificate in any case                  |

    Loopback is not private: the user's browser runs what strangers wrote. A page of theirs can
    send requests to 127.0.0.1 (its `Origin` gives it away), or have its own name point there and
    read the answers (`Host` gives it away: an attack of that kind needs a name, so names other
    than localhost must be configured, and addresses need not).

Invariants
    A1  Tokens are compared by digests, in constant time; only digests are kept.
    A2  An application behind an `AccessMiddleware` sees only requests to a host of ours, from no
        other origin, with headers and a body that are complete, within their limits, and came in
        time.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmerge_service.config.credentials import Secret
from lmerge_service.config.http import Http
from lmerge_service.errors import EnvironmentMissingError

__all__ = ("BODY_BYTES", "BODY_SECONDS", "HEADER_BYTES", "Access", "AccessMiddleware")

BODY_BYTES = 64 * 1024
BODY_SECONDS = 10.0
HEADER_BYTES = 16 * 1024

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:\d{1,5})?")
_NOBODY = (
    "nobody may change anything here: the worker's topology has no http.control_token; name "
    "there where one is, {file: PATH} or {env: NAME}, and restart the worker"
)


class Access:
    """What a request may do; `reads` and `controls` are dependencies of routes."""

    def __init__(self, http: Http):
        self._read, self._control = _digest(http.read_token), _digest(http.control_token)
        self._certified = http.tls is not None and http.tls.client_ca is not None
        self._open = self._read is None and (
            http.on_loopback or (self._certified and self._control is None)
        )
        self._names = {name.lower() for name in http.names} | {"localhost"}

    def may_read(self, request: Request) -> bool:
        """Whether reading is open to all, or the request has the read or the control token."""
        token = _presented(request)
        return self._open or any(_same(token, known) for known in (self._read, self._control))

    async def reads(self, request: Request) -> None:
        """
        Raises:
            HTTPException: 401, no token or a wrong one.
        """
        if not self.may_read(request):
            raise _unauthorized("reading needs the read token or the control token")

    async def controls(self, request: Request) -> None:
        """
        Raises:
            HTTPException: 401, no token or a wrong one; 403, the read token, or nobody may.
        """
        token = _presented(request)
        if self._control is None:
            if not self._certified or self._read is not None:
                raise HTTPException(403, _NOBODY)
        elif _same(token, self._read):
            raise HTTPException(403, "this is the read token; changes need the control token")
        elif not _same(token, self._control):
            raise _unauthorized("changes need the control token")

    def knows_host(self, host: str) -> bool:
        """Whether a `Host` header names this worker: by address, or by a name that it has."""
        if (found := _HOST.fullmatch(host)) is None:
            return False
        name = found["name"].lower()
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.removesuffix(".") in self._names
        return True


def _digest(token: Secret | None) -> bytes | None:
    if token is None:
        return None
    try:
        return _hashed(token.read())
    except ValueError as error:
        raise EnvironmentMissingError(f"a token of the HTTP API: {error}") from None


def _hashed(token: SecretStr) -> bytes:
    return hashlib.sha256(token.get_secret_value().encode()).digest()


def _presented(request: Request) -> bytes:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return _hashed(SecretStr(token.strip() if scheme.lower() == "bearer" else ""))


def _same(presented: bytes, known: bytes | None) -> bool:
    return known is not None and hmac.compare_digest(presented, known)


def _unauthorized(why: str) -> HTTPException:
    detail = f"{why}: send it as `Authorization: Bearer TOKEN`"
    return HTTPException(401, detail, headers={"WWW-Authenticate": "Bearer"})


class AccessMiddleware:
    """ASGI middleware before everything else (A2): refused requests go no further."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets: uvicorn is configured without them, too
        if (refused := self._refusal(scope["headers"])) is not None:
            await _answer(send, *refused)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _whole_body(receive)
        except TimeoutError:
            await _answer(send, 408, f"the request took longer than {BODY_SECONDS:g} s to arrive")
            return
        if body is None:
            await _answer(send, 413, f"a request's body may have {BODY_BYTES} bytes at the most")
            return
        await self._app(scope, _again(body, receive), send)

    def _refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        found = {name: value.decode("latin-1") for name, value in headers}
        if sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES:
            return 431, f"a request's headers may have {HEADER_BYTES} bytes at the most"
        host, origin = found.get(b"host", ""), found.get(b"origin")
        if not self._access.knows_host(host):
            return 421, "this worker is not known by that name; http.names in the topology adds it"
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "a page of another origin may not use this worker"
        length = found.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES:
            return 413, f"a request's body may have {BODY_BYTES} bytes at the most"
        return None


async def _whole_body(receive: Receive) -> bytes | None:
    """None: it is too large."""
    body = b""
    while len(body) <= BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):  # the end, or the client is gone
            return body if len(body) <= BODY_BYTES else None
    return None


def _again(body: bytes, receive: Receive) -> Receive:
    """Hands a body out once more; then the client's leaving may be waited for."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received


async def _answer(send: Send, status: int, detail: str) -> None:
    """A refusal, in the form of the API's; what may still come of the request is not read."""
    body = json.dumps({"detail": detail}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
