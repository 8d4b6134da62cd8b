"""What is asked of a worker over HTTP: HEAD as GET, and metrics in the format that is preferred."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parsed_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parsed_text
from starlette.types import ASGIApp

from lmerge_service.config.http import Http
from lmerge_service.elements import Insert
from lmerge_service.http.access import Access
from lmerge_service.http.guarded import guarded
from lmerge_service.http.observed import observed, observing
from lmerge_service.http.server import serve
from tests.service.cluster import Merge

TOKEN = "0123456789abcdef"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
OLD_OPENMETRICS = "application/openmetrics-text; version=0.0.1; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
NEW_TEXT = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
TEXT_FIRST = (
    "text/plain;version=0.0.4;q=0.6,text/plain;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=1.0.0;q=0.2,*/*;q=0.1"
)


def asked(method: str, *accept: str, path: str = "/metrics") -> httpx.Response:
    """The answer of the routes that a worker and a merge in Spark share."""
    registry = CollectorRegistry()
    Counter("lmerge_tries", "Tries.", registry=registry).inc(3)

    async def ask() -> httpx.Response:
        http = Http(port=0)
        app = guarded(Access(http), registry, lambda: None, reasons=list, state=lambda: "running")
        async with serve(app, http) as address, httpx.AsyncClient(base_url=address) as client:
            client.headers.pop("accept")
            return await client.request(method, path, headers=[("Accept", each) for each in accept])

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_n11_head_is_answered_as_get_is_without_the_body(path: str) -> None:
    head, get = asked("HEAD", path=path), asked("GET", path=path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "cache-control"):
        assert head.headers[name] == get.headers[name]
    # Metrics have the time at which they were made, of more or fewer digits.
    sizes = [int(each.headers["content-length"]) for each in (head, get)]
    assert abs(sizes[0] - sizes[1]) <= 5 * (path == "/metrics")
    assert sizes[1] == len(get.content)


def test_n11_head_of_what_is_not_there_or_decides_is_refused_as_ever() -> None:
    assert asked("HEAD", path="/nothing").status_code == 404
    assert asked("HEAD", path="/v1/accept-gap").status_code == 405
    assert asked("HEAD", path="/v1/replicas").status_code == 503, "there is no control log yet"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/nothing"),
     ("POST", "/healthz")],
)  # fmt: skip
@pytest.mark.parametrize("token", [None, "wrong", TOKEN])
def test_a_process_that_decides_nothing_answers_as_one_that_does(
    tmp_path: Path, method: str, path: str, token: str | None
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    http = Http.model_validate({"port": 0, "read_token": {"file": str(tmp_path / "token")}})
    access, registry = Access(http), CollectorRegistry()
    common: Any = {"reasons": lambda: ["look"], "state": lambda: "recovering"}
    merging = guarded(access, registry, lambda: None, **common)
    querying = observed(access, observing(access, registry, **common))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def ask(app: ASGIApp) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, headers=headers)

    one, other = (asyncio.run(ask(app)) for app in (merging, querying))
    assert (one.status_code, one.content) == (other.status_code, other.content)
    for name in ("content-type", "www-authenticate"):
        assert one.headers.get(name) == other.headers.get(name)
    refused = path == "/metrics" and token != TOKEN
    assert (one.status_code == 401) == refused
    assert ("look" in one.text) == (token == TOKEN and (method, path) == ("GET", "/healthz"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ([], TEXT),
        (["*/*"], TEXT),
        (["text/html"], TEXT),
        (["text/plain"], TEXT),
        (["TEXT/Plain ; Version=0.0.4"], TEXT),
        (["text/plain;version=1.0.0"], NEW_TEXT),
        (["text/plain;version=7.0.0"], TEXT),
        (["application/openmetrics-text"], OPENMETRICS),
        (["application/openmetrics-text; version=0.0.1"], OLD_OPENMETRICS),
        (["application/openmetrics-text; version=2.0.0"], TEXT),
        (["application/openmetrics-text; version=1.0.0; q=0, text/plain"], TEXT),
        (["application/openmetrics-text; version=1.0.0; q=0"], TEXT),
        (["text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.9"], OPENMETRICS),
        (["text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.5"], TEXT),
        (["text/plain;version=0.0.4", "application/openmetrics-text"], TEXT),
        (["application/openmetrics-text;q=nothing,text/plain"], TEXT),
        ([PROMETHEUS_2], OPENMETRICS),
        ([PROMETHEUS_3], OPENMETRICS.replace("underscores", "allow-utf-8")),
        ([TEXT_FIRST], TEXT),
    ],
)  # fmt: skip
def test_n11_metrics_are_in_the_format_that_accept_prefers(
    accept: list[str], content_type: str
) -> None:
    answer = asked("GET", *accept)
    assert answer.headers["content-type"] == content_type
    openmetrics = content_type.startswith("application/openmetrics")
    assert answer.text.endswith("# EOF\n") == openmetrics
    families = (parsed_openmetrics if openmetrics else parsed_text)(answer.text)
    samples = [each for family in families for each in family.samples]
    assert [each.value for each in samples if each.name == "lmerge_tries_total"] == [3]


@pytest.mark.full
def test_n11_a_worker_answers_head_and_serves_openmetrics(bootstrap: str, tmp_path: Path) -> None:
    merge = Merge(bootstrap, tmp_path, ("a",))
    merge.publish("a", [Insert(b'"e"', 1, 5)])
    with merge.worker() as worker:
        worker.wait_until_running()
        for path in ("/healthz", "/readyz", "/metrics", "/status"):
            answer = httpx.head(worker.address + path)
            assert (answer.status_code, answer.content) == (200, b""), path
        accept = {"Accept": PROMETHEUS_2}
        answer = httpx.get(f"{worker.address}/metrics", headers=accept)
    assert answer.headers["content-type"] == OPENMETRICS
    names = {family.name for family in parsed_openmetrics(answer.text)}  # type: ignore[no-untyped-call]
    assert {"lmerge_replica_elements", "lmerge_output_elements", "lmerge_build"} <= names
