"""Who may look at the dashboard: requests that no friend sends, and a login where it is not local.

Theory
    The page is served on loopback to whoever is on this machine, by a name or an address of ours
    only, and to pages of no other origin: a stranger's page in the same browser can neither read
    it nor open its web socket (`http.access` has the reasons). Elsewhere, or where a token is
    configured, a browser logs in once: the token comes by POST, and a cookie that scripts cannot
    read stands for it until the dashboard ends. Programs may send the token as a bearer.

Invariants
    E1  Nothing of the page, its web socket or its files is served before the checks; a GET changes
        nothing but who is logged out.
    E2  Of the token only the digest is kept, compared in constant time.
    E3  Nothing is loaded from another host, and the page is in no frame (Content-Security-Policy).
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmerge_service.config.http import Http
from lmerge_service.http.access import Access
from lmerge_service.page import render

__all__ = ("COOKIE", "Door")

COOKIE: Final = "lmerge-dashboard"
_SOCKET: Final = "/_nicegui_ws/"
_LONGEST_FORM: Final = 16 * 1024
_SESSIONS: Final = 1_000
_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""Vue compiles templates in the browser, and so needs eval; what is not from here is not loaded."""
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
)
"""With `no-referrer` a browser would give the login form's origin as `null`, as a stranger's."""


class Door:
    """ASGI middleware before the page."""

    def __init__(self, app: ASGIApp, http: Http):
        self._app, self._access = app, Access(http)
        token = None if http.read_token is None else http.read_token.read().get_secret_value()
        self._token = None if token is None else hashlib.sha256(token.encode()).digest()
        self._secure = http.tls is not None
        self._sessions: dict[str, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is None and not self._knows(headers):
            refusal = await self._log_in(scope, headers, receive)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._access.knows_host(host):
            return PlainTextResponse("the dashboard is not known by that name (--name)", 421)
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return PlainTextResponse("a page of another origin may not use the dashboard", 403)
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"}:
            ours = scope["path"] == "/login" or scope["path"].startswith(_SOCKET)
            if scope["method"] != "POST" or not ours:
                return PlainTextResponse("that is not done here", 405)
        return None

    def _knows(self, headers: Headers) -> bool:
        if self._token is None:
            return True  # loopback, or a client's certificate: `Http` allows nothing else
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._same(token.strip()):
            return True
        return _cookie(headers) in self._sessions

    def _same(self, token: str) -> bool:
        presented = hashlib.sha256(token.encode()).digest()
        return self._token is not None and hmac.compare_digest(presented, self._token)

    async def _log_in(self, scope: Scope, headers: Headers, receive: Receive) -> Response:
        if scope["type"] == "websocket" or scope["path"] not in {"/", "/login"}:
            return PlainTextResponse("log in first", 401)
        if scope["method"] != "POST":
            return _form("", 401 if scope["path"] == "/" else 200)
        body = await _body(receive)
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not self._same(given.strip()):
            return _form("This is not the token of the dashboard.", 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE, self._session(), httponly=True, samesite="strict", secure=self._secure
        )
        return answer

    def _session(self) -> str:
        while len(self._sessions) >= _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = None
        return name


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= _LONGEST_FORM:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body


def _form(problem: str, status: int) -> Response:
    return HTMLResponse(render("dashboard/login.html", problem=problem), status)


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            ours = {name for name, _ in _HEADERS}
            kept: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
            left = [(name, value) for name, value in kept if name.lower() not in ours]
            message = {**message, "headers": [*left, *_HEADERS]}
        await send(message)

    return sent
