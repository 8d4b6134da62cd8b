"""The control API: each answer, and that no request whatever is answered otherwise than by the
schema."""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import pytest
import schemathesis
from fastapi import Depends, FastAPI, HTTPException
from hypothesis import settings
from schemathesis import GenerationMode

from lmerge_service.errors import TransportError
from lmerge_service.http.api import routes
from lmerge_service.merge.decisions.control_log import Control
from lmerge_service.merge.decisions.ledger import Entry, Ledger
from lmerge_service.merge.decisions.records import Decision, ReportCutover
from tests.merge.test_ledger import Log, topology

T = TypeVar("T")


class MemoryControl:
    """Control over a log in memory."""

    def __init__(self) -> None:
        self.log = Log(topology("a", "b", "c"))
        self.failure: TransportError | None = None

    @property
    def ledger(self) -> Ledger:
        return self.log.ledger

    async def decide(self, decision: Decision) -> Entry:
        if self.failure is not None:
            raise self.failure
        entry = self.ledger.entry(decision.id) or self.log.append(decision)
        assert entry is not None
        return entry


def application(control: Callable[[], Control | None], **dependencies: Any) -> FastAPI:
    app = FastAPI(title="control")
    app.include_router(routes(control, **dependencies))
    return app


class Client:
    """Asks an application in this process."""

    def __init__(self, app: FastAPI):
        self.app = app

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
                return await client.request(method, f"/v1{path}", **options)

        return asyncio.run(ask())

    def get(self, path: str) -> Any:
        return self.ask("GET", path).json()

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        answer = self.ask("POST", path, json=body)
        return answer.status_code, answer.json()


@pytest.fixture
def control() -> MemoryControl:
    return MemoryControl()


@pytest.fixture
def client(control: MemoryControl) -> Client:
    return Client(application(lambda: control))


def test_each_decision_is_answered_with_the_version_that_it_made(client: Client) -> None:
    decisions: list[tuple[str, dict[str, Any], str]] = [
        ("/replicas/d/attach", {"topic": "D", "joining_at": 5, "expects": 1}, "attach d"),
        ("/replicas/d/detach", {}, "detach d"),
        ("/replicas/b/quarantine", {"reason": "a day ahead"}, "quarantine b"),
        ("/replicas/b/release", {"joining_at": 9}, "release b"),
        ("/accept-gap", {"input": "b", "until": 9}, "accept the gap until b is correct, at 9"),
        (
            "/policy",
            {"insert": "quorum(0.5)", "adjust": "eager", "stable": "lag(7)"},
            "policy quorum(0.5), eager, lag(7)",
        ),
        (
            "/cutover/begin",
            {"leaving": "a", "coming": "d", "attach": {"topic": "D"}},
            "cutover a → d",
        ),
        ("/cutover/abort", {"reason": "too slow"}, "abort the cutover"),
    ]
    for version, (path, body, action) in enumerate(decisions, 2):
        status, answer = client.post(path, **body)
        assert status == 200, answer
        assert (answer["version"], answer["offset"]) == (version, version - 1)
        assert answer["action"] == action


def test_what_was_decided_is_shown_replica_by_replica(client: Client) -> None:
    client.post("/replicas/b/quarantine", reason="a day ahead", who="anna")
    client.post("/replicas/d/attach", topic="D", properties={"ordered": True})
    decided = client.get("/replicas")
    assert (decided["version"], decided["offset"], decided["case"]) == (3, 3, "R3")
    assert decided["policy"] == {"insert": "first", "adjust": "lazy", "stable": "max"}
    states = {each["name"]: each["state"] for each in decided["replicas"]}
    assert states == {"a": "attached", "b": "quarantined", "c": "attached", "d": "attached"}
    held, fresh = decided["replicas"][1], decided["replicas"][3]
    assert (held["reason"], held["who"], held["since"], held["epoch"]) == (
        "a day ahead", "anna", 2, 1,
    )  # fmt: skip
    assert (fresh["topic"], fresh["properties"]["ordered"], fresh["epoch"]) == ("D", True, 3)
    assert (held["decided"], decided["replicas"][0]["decided"]) == (True, False)


def test_the_history_has_the_verdicts_the_latest_first(client: Client) -> None:
    client.post("/replicas/b/detach", who="anna", expects=1)
    client.post("/replicas/x/detach", id="mine")
    history = client.get("/decisions")
    assert history["version"] == 2
    refused, accepted, declared = history["decisions"]
    assert (refused["accepted"], refused["refusal"], refused["version"]) == (False, "unknown", 2)
    assert refused["why"] == "there is no replica x; there are: a, b, c"
    assert refused["action"] == {"do": "detach", "replica": "x"}
    assert (accepted["what"], accepted["who"], accepted["expects"]) == ("detach b", "anna", 1)
    assert declared["who"] == "the topology file"
    assert client.get("/decisions?limit=1")["decisions"] == [refused]
    assert client.get("/decisions/mine") == refused
    missing = client.ask("GET", "/decisions/other")
    assert (missing.status_code, missing.json()["error"]) == (404, "unknown")


def test_a_cutover_is_shown_as_it_stands(client: Client, control: MemoryControl) -> None:
    assert client.ask("GET", "/cutover").status_code == 404
    status, made = client.post("/cutover/begin", leaving="a", coming="b", who="anna", max_behind=9)
    assert status == 200
    found = client.get("/cutover")
    assert found == {
        "leaving": "a", "coming": "b", "state": "joining", "since": 2, "began": made["version"],
        "who": "anna", "why": None, "watch": 60_000, "max_behind": 9, "max_divergences": 0,
        "tasks": [{"partition": 0, "ready": False, "at": None, "watched_until": None}],
    }  # fmt: skip
    control.log.do(ReportCutover(2, 2, 0, "ready", at=1_000), who="task 0")
    found = client.get("/cutover")
    assert (found["state"], found["tasks"][0]["watched_until"]) == ("watching", 61_000)
    assert client.get("/replicas")["cutover"] == found


def test_where_times_are_none_of_a_day_the_span_must_be_given(control: MemoryControl) -> None:
    control.log = Log(topology("a", "b", time_unit="none"))
    client = Client(application(lambda: control))
    status, problem = client.post("/cutover/begin", leaving="a", coming="b")
    assert (status, problem["error"]) == (409, "invalid")
    assert "time_unit is none" in problem["message"]
    assert client.post("/cutover/begin", leaving="a", coming="b", watch=0)[0] == 200


def test_of_two_that_saw_the_same_version_the_second_is_refused(client: Client) -> None:
    client.post("/replicas/b/detach", expects=1, who="anna")
    status, problem = client.post("/replicas/c/detach", expects=1, id="c-1")
    assert (status, problem) == (
        409,
        {
            "error": "version",
            "message": "made against version 1, but the version is 2: "
            '"detach b" by anna came between',
            "version": 2,
            "id": "c-1",
        },
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/replicas/x/detach", {}, 404, "unknown"),
        ("/replicas/a/release", {}, 409, "state"),
        ("/replicas/a/attach", {"topic": "A"}, 409, "state"),
        ("/replicas/d/attach", {"topic": "A"}, 409, "invalid"),
        ("/policy", {"insert": "first", "adjust": "lazy", "stable": "quorum(4)"}, 409, "invalid"),
        ("/accept-gap", {"input": "x", "until": 1}, 404, "unknown"),
        ("/cutover/begin", {"leaving": "a", "coming": "x"}, 404, "unknown"),
        ("/cutover/begin", {"leaving": "a", "coming": "a"}, 409, "invalid"),
        ("/cutover/begin", {"leaving": "a", "coming": "b", "attach": {"topic": "B"}}, 409, "state"),
        ("/cutover/begin", {"leaving": "a", "coming": "b", "watch": -1}, 422, "malformed"),
        ("/cutover/begin", {"leaving": "a", "coming": "d", "attach": {"topic": ".."}},
         422, "malformed"),
        ("/cutover/abort", {}, 409, "state"),
        ("/replicas/d/attach", {}, 422, "malformed"),
        ("/replicas/d/attach", {"topic": "D", "colour": "red"}, 422, "malformed"),
        ("/replicas/d/attach", {"topic": ".."}, 422, "malformed"),
        ("/replicas/d/attach", {"topic": "D", "joining_at": "5"}, 422, "malformed"),
        ("/replicas/d/attach", {"topic": "D", "normalise": True, "joining_at": 5},
         422, "malformed"),
        ("/replicas/a/detach", {"expects": True}, 422, "malformed"),
        ("/replicas/a/detach", {"expects": 0.5}, 422, "malformed"),
        ("/replicas/d/attach", {"topic": "D", "properties": {"key": 1}}, 422, "malformed"),
        ("/replicas/a b/detach", {}, 422, "malformed"),
        ("/replicas/a/detach", {"expects": -1}, 422, "malformed"),
        ("/replicas/a/detach", {"who": "\ud800"}, 422, "malformed"),
        ("/replicas/a/detach", {"who": ""}, 422, "malformed"),
        ("/replicas/a/detach", {"id": "a/b"}, 422, "malformed"),
        ("/replicas/a/quarantine", {"reason": "x" * 2_001}, 422, "malformed"),
        ("/policy", {"insert": "last", "adjust": "lazy", "stable": "max"}, 422, "malformed"),
        ("/policy", {"insert": "first"}, 422, "malformed"),
        ("/accept-gap", {"input": "a", "until": 2**63}, 422, "malformed"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(
    client: Client, control: MemoryControl, path: str, body: Any, status: int, error: str
) -> None:
    content = json.dumps(body).encode()
    answer = client.ask("POST", path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text
    assert control.ledger.version == 1


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[" * 50_000, b"null"])  # fmt: skip
def test_a_body_that_is_none_is_malformed(client: Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = client.ask("POST", "/replicas/a/detach", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (422, "malformed")


def test_a_body_may_be_left_out_where_no_field_is_required(client: Client) -> None:
    for path in ("/replicas/a/quarantine", "/replicas/a/release", "/replicas/a/detach"):
        assert client.ask("POST", path).status_code == 200


def test_asking_again_with_an_id_is_the_same_decision(client: Client) -> None:
    first = client.post("/replicas/a/detach", id="once")
    client.post("/replicas/a/attach", topic="A")
    assert client.post("/replicas/a/detach", id="once") == first
    status, problem = client.post("/replicas/b/detach", id="once")
    assert (status, problem["error"], problem["id"]) == (409, "id", "once")
    assert client.get("/replicas")["version"] == 3


@pytest.mark.parametrize(
    ("retriable", "error", "message"),
    [(True, "outcome_unknown", "look for its id in /v1/decisions"), (False, "not_made", "refused")],
)
def test_when_the_log_cannot_be_written_the_answer_contains_what_is_known(
    client: Client, control: MemoryControl, retriable: bool, error: str, message: str
) -> None:
    control.failure = TransportError("writing to out.control: refused", retriable=retriable)
    status, problem = client.post("/replicas/a/detach", id="mine")
    assert (status, problem["error"], problem["id"]) == (503, error, "mine")
    assert message in problem["message"]


def test_until_there_is_a_control_the_worker_is_starting() -> None:
    client = Client(application(lambda: None))
    for method, path in (
        ("GET", "/replicas"),
        ("GET", "/decisions"),
        ("POST", "/replicas/a/detach"),
    ):
        answer = client.ask(method, path)
        assert (answer.status_code, answer.json()["error"]) == (503, "starting")


def test_who_may_read_and_who_may_decide_are_distinguished(control: MemoryControl) -> None:
    def nobody() -> None:
        raise HTTPException(403, "not you")

    reading = Client(application(lambda: control, controls=[Depends(nobody)]))
    assert reading.ask("GET", "/replicas").status_code == 200
    for path in reading.app.openapi()["paths"]:
        if "post" in reading.app.openapi()["paths"][path]:
            deciding = path.removeprefix("/v1").format(name="a")
            assert reading.ask("POST", deciding, json={}).status_code == 403
    closed = Client(application(lambda: control, reads=[Depends(nobody)]))
    for path in ("/replicas", "/decisions", "/decisions/x", "/cutover"):
        assert closed.ask("GET", path).status_code == 403
    assert control.ledger.version == 1


# Whatever is asked

FUZZED = MemoryControl()
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", application(lambda: FUZZED))
ANSWERED = Counter[int]()


@pytest.fixture(scope="module")
def swept() -> None:
    """No garbage of other tests is found in the middle of these: its report contains a
    traceback, which is parsed; older CPythons (gh-106905) cannot while Hypothesis parses, too."""
    gc.collect()


@pytest.mark.full
@pytest.mark.xdist_group("asked")
@pytest.mark.usefixtures("swept")
@SCHEMA.parametrize()
@settings(max_examples=25)
def test_every_answer_matches_the_schema(case: schemathesis.Case[Any]) -> None:
    sound = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if sound and "name" in case.path_parameters:
        case.path_parameters["name"] = "abcd"[len(str(case.path_parameters["name"])) % 4]
    ANSWERED[case.call_and_validate().status_code] += 1


@pytest.mark.full
@pytest.mark.xdist_group("asked")
def test_those_requests_were_accepted_and_refused_in_every_way() -> None:
    if not ANSWERED:
        pytest.skip("they were not asked")
    assert set(ANSWERED) >= {200, 404, 409, 422}
