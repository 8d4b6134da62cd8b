"""The control API of a worker: what was decided, and deciding.

Who owns what
    Nothing: the routes work on a `Control`, which the worker opens and closes. Until it is there
    they answer 503 `starting`.

What happens on a crash at each await
    A decision that was asked for and not answered may hold or not. The log shows it by its id: the
    answer 503 contains it, and a client that chooses the id (`id` in the request) knows it before.

| status | error | means |
|---|---|---|
| 200 | | the decision holds; it was read back from the control log |
| 401, 403 | | who asks may not; `detail` says why, as wherever requests are refused at the door |
| 404 | `unknown` | there is no such replica, or decision |
| 409 | `version`, `state`, `invalid`, `id` | refused, with the version that there is |
| 422 | `malformed` | the request does not match the schema |
| 503 | `outcome_unknown`, `not_made`, `starting` | the control log does not answer in time |
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from lmerge_service.config.topology import Name
from lmerge_service.errors import TransportError, fault_message
from lmerge_service.http import documents
from lmerge_service.http.cutover_view import CutoverView
from lmerge_service.http.documents import (
    Decided,
    Decisions,
    DecisionView,
    Denied,
    Made,
    Problem,
)
from lmerge_service.merge.decisions.control_log import Control
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import (
    AbortCutover,
    AcceptGap,
    Action,
    Attach,
    BeginCutover,
    Detach,
    Quarantine,
    Release,
    SetPolicy,
    decide,
)

__all__ = ("routes",)

Responses = dict[int | str, dict[str, Any]]
ControlSource = Callable[[], Control | None]


def _problems(*statuses: int) -> Responses:
    models = dict.fromkeys(statuses, Problem) | dict.fromkeys((401, 403), Denied)
    return {
        status: {"model": model, "description": _MEANING[status]}
        for status, model in models.items()
    }


_MEANING: Final = {
    401: "No token, or one that is not known.",
    403: "The caller may not do this.",
    404: "There is no such replica or decision.",
    409: "Refused: by version, by state, or by what would not go together.",
    422: "The request does not match the schema.",
    503: "The control log does not answer in time, or the worker is starting.",
}
_READING: Final = _problems(422, 503)
_FINDING: Final = _problems(404, 422, 503)
_DECIDING: Final = _problems(404, 409, 422, 503)


def routes(
    control: ControlSource, *, reads: Sequence[Depends] = (), controls: Sequence[Depends] = ()
) -> APIRouter:
    """The routes below /v1; `control` gives None until there is one.

    `reads` and `controls` are dependencies, such as who may: of all that read, and of all that
    decide.
    """
    router = APIRouter(prefix="/v1", tags=["control"])
    router.include_router(_reading(control), dependencies=list(reads))
    router.include_router(_deciding(control), dependencies=list(controls))
    return router


def _reading(control: ControlSource) -> APIRouter:
    router = APIRouter(route_class=_Route)

    @router.get("/replicas", responses=_problems(503))
    async def replicas() -> Decided:
        """What was decided about every replica, and the version."""
        return Decided.of(_there(control).ledger)

    @router.get("/decisions", responses=_READING)
    async def decisions(limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> Decisions:
        """The last decisions with their verdicts, the latest first."""
        return Decisions.of(_there(control).ledger, limit)

    @router.get("/decisions/{id}", responses=_FINDING)
    async def decision(id: documents.Identity) -> DecisionView:  # noqa: A002 - its name in the URL
        """What became of one decision; 404: it has not come, or was long ago."""
        ledger = _there(control).ledger
        entry = ledger.entry(id)
        if entry is None:
            message = f"decision {id} is not among the last ones"
            raise _ProblemError(404, "unknown", message, version=ledger.version)
        return DecisionView.of(entry)

    @router.get("/cutover", responses=_problems(404, 503))
    async def cutover() -> CutoverView:
        """The latest cutover, whether it runs or has ended; 404: there was none."""
        ledger = _there(control).ledger
        if ledger.cutover is None:
            message = "there was no cutover yet"
            raise _ProblemError(404, "unknown", message, version=ledger.version)
        return CutoverView.of(ledger.cutover)

    return router


def _deciding(control: ControlSource) -> APIRouter:
    router = APIRouter(route_class=_Route, responses=_DECIDING)

    @router.post("/replicas/{name}/attach")
    async def attach(name: Name, asked: documents.AttachRequest, request: Request) -> Made:
        """Merge a replica, from its topic's beginning on."""
        return await _decide(control, Attach(asked.replica(name)), asked, request)

    @router.post("/replicas/{name}/detach")
    async def detach(name: Name, request: Request, asked: _Plain = _PLAIN) -> Made:
        """Merge a replica no more; what only it had and is not frozen goes."""
        return await _decide(control, Detach(name), asked, request)

    @router.post("/replicas/{name}/quarantine")
    async def quarantine(name: Name, request: Request, asked: _Quarantine = _DOUBT) -> Made:
        """As detach, until it is released; its topic stays its own."""
        return await _decide(control, Quarantine(name, asked.reason), asked, request)

    @router.post("/replicas/{name}/release")
    async def release(name: Name, request: Request, asked: _Release = _TRUST) -> Made:
        """End a quarantine: the replica is attached again."""
        return await _decide(control, Release(name, asked.joining_at), asked, request)

    @router.post("/accept-gap")
    async def accept_gap(asked: documents.GapRequest, request: Request) -> Made:
        """Go on without a range of time that no replica vouches for: it is lost."""
        return await _decide(control, AcceptGap(asked.input, asked.until), asked, request)

    @router.post("/policy")
    async def policy(asked: documents.PolicyRequest, request: Request) -> Made:
        """The output policy from now on: when elements are emitted."""
        action = SetPolicy(asked.insert, asked.adjust, asked.stable)
        return await _decide(control, action, asked, request)

    @router.post("/cutover/begin")
    async def cutover(asked: documents.CutoverRequest, request: Request) -> Made:
        """Put one replica into another's place; the workers carry that on (`GET`)."""
        action = BeginCutover(
            leaving=asked.leaving,
            coming=asked.coming,
            watch=_span(_there(control).ledger, asked.watch),
            max_behind=asked.max_behind,
            max_divergences=asked.max_divergences,
            attach=None if asked.attach is None else asked.attach.replica(asked.coming),
        )
        return await _decide(control, action, asked, request)

    @router.post("/cutover/abort")
    async def abort_cutover(request: Request, asked: _Abort = _UNWANTED) -> Made:
        """End a cutover that runs; both replicas stay attached."""
        return await _decide(control, AbortCutover(asked.reason), asked, request)

    return router


def _span(ledger: Ledger, asked: int | None) -> int:
    """How much of the streams' time is watched: as asked, or a minute."""
    unit = ledger.topology.unit_nanoseconds
    if asked is None and unit is None:
        message = "time_unit is none: give the time to be watched (watch)"
        raise _ProblemError(409, "invalid", message, version=ledger.version)
    return _MINUTE // (unit or 1) if asked is None else asked


_MINUTE: Final = 60_000_000_000
"""In nanoseconds."""
_Abort = Annotated[documents.AbortRequest, Body()]
_UNWANTED: Final = documents.AbortRequest()
_Plain = Annotated[documents.Request, Body()]
_Quarantine = Annotated[documents.QuarantineRequest, Body()]
_Release = Annotated[documents.ReleaseRequest, Body()]
_PLAIN: Final = documents.Request()
_DOUBT: Final = documents.QuarantineRequest()
_TRUST: Final = documents.ReleaseRequest()


def _there(control: ControlSource) -> Control:
    found = control()
    if found is None:
        raise _ProblemError(503, "starting", "the worker is starting: ask again")
    return found


async def _decide(
    control: ControlSource, action: Action, asked: documents.Request, request: Request
) -> Made:
    who = asked.who or f"somebody at {request.client.host if request.client else 'the worker'}"
    decision = decide(action, who, expects=asked.expects, decision_id=asked.id)
    try:
        entry = await _there(control).decide(decision)
    except TransportError as error:
        raise _not_in_time(error, decision.id) from error
    if entry.decision.action != action:
        message = f"decision {decision.id} is another one: choose another id"
        raise _ProblemError(409, "id", message, version=entry.version, id=decision.id)
    if (refusal := entry.refusal) is not None:
        status = 404 if refusal.kind == "unknown" else 409
        raise _ProblemError(
            status, refusal.kind, refusal.reason, version=entry.version, id=decision.id
        )
    return Made.of(entry)


def _not_in_time(error: TransportError, decision_id: str) -> "_ProblemError":
    if not error.retriable:
        return _ProblemError(503, "not_made", str(error), id=decision_id)
    message = (
        f"{error}; whether it holds is not known: look for its id in /v1/decisions, or ask again "
        "with that id"
    )
    return _ProblemError(503, "outcome_unknown", message, id=decision_id)


class _ProblemError(Exception):
    def __init__(self, status: int, error: Any, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(error=error, message=message, **more)

    def response(self) -> Response:
        return JSONResponse(self.problem.model_dump(mode="json"), self.status)


class _Route(APIRoute):
    """Answers every mistake with a `Problem`."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except _ProblemError as error:
                return error.response()
            except RequestValidationError as error:
                return _ProblemError(422, "malformed", _message_of(error)).response()
            except HTTPException as error:
                if error.status_code != 400:  # 400: a body that is no JSON at all
                    raise
                return _ProblemError(422, "malformed", str(error.detail)).response()

        return answer


def _message_of(error: RequestValidationError) -> str:
    """All faults in one line; nothing of the request is repeated."""
    faults = []
    for fault in error.errors():
        place = ".".join(str(part) for part in fault["loc"] if part != "body")
        text = fault_message(fault)
        faults.append(f"{place}: {text}" if place else text)
    return "; ".join(faults).encode(errors="replace").decode()[:2_000]
