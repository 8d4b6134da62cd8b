"""Decisions that are asked for from the page: what will happen in words, the request, its answer.

Theory
    A decision is requested of any worker that answers, by POST, with the token of whoever looks and
    with the version that was seen: if another decision came between, it is refused. Nothing is sent
    in the clear to another machine.

What happens when the worker does not answer
    The decision's id is chosen here, so whether it holds can be looked up: the answer names it.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx

from lmerge_service.dashboard.merged import MergeView, ReplicaRow

__all__ = ("ACTIONS", "Action", "Field", "Outcome", "ask", "in_clear", "may_control", "request_of")

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SECONDS: Final = httpx.Timeout(20.0, connect=5.0)
Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Field:
    """What is asked of the person who acts."""

    name: str
    label: str
    kind: str = "text"
    """text, whole (a number), replica (one of the merge's) or one of `choices`."""
    required: bool = False
    choices: tuple[str, ...] = ()
    default: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """A kind of decision."""

    title: str
    fields: tuple[Field, ...]
    path: str
    """With the names of fields in braces; they are no part of the body."""
    happens: Callable[[MergeView, Values], Iterator[str]]
    """What will happen, in sentences."""


def _named(view: MergeView, values: Values) -> ReplicaRow | None:
    return next((each for each in view.replicas if each.name == values.get("name")), None)


def _others(view: MergeView, name: str | None) -> int:
    """Replicas that are joined, but this one."""
    return sum(
        each.state == "joined" and not each.ended and each.name != name for each in view.replicas
    )


def _without(view: MergeView, values: Values) -> Iterator[str]:
    if view.ended:
        yield "The output is complete, and stays as it is."
        return
    name, left = values.get("name"), _others(view, values.get("name"))
    row = _named(view, values)
    if row is not None and row.leads:
        yield f"{name} leads now: another replica takes over at once."
    yield f"Events that only {name} has and that are not final leave the output."
    if left == 0:
        yield "No other replica is joined: the output will stand still."
    elif left == 1:
        yield "One replica is left: there is no redundancy until another one joins."
    else:
        yield f"{left} other replicas go on."


def _attach(view: MergeView, values: Values) -> Iterator[str]:
    yield "The topic is read from its beginning, and merged as one more replica of this stream."
    if values.get("joining_at"):
        yield "It joins when the output has reached the given time."
    yield "If it contradicts the output, guards report it."


def _detach(view: MergeView, values: Values) -> Iterator[str]:
    yield f"{values.get('name')} is merged no more, until somebody attaches it again."
    yield from _without(view, values)


def _quarantine(view: MergeView, values: Values) -> Iterator[str]:
    yield f"{values.get('name')} is not trusted any more, until somebody releases it."
    yield from _without(view, values)


def _release(view: MergeView, values: Values) -> Iterator[str]:
    yield f"{values.get('name')} is attached again, read from its beginning, and joins in time."


def _accept_gap(view: MergeView, values: Values) -> Iterator[str]:
    yield "The output goes on without a range of time that no replica vouches for."
    yield "What was in that range is lost for every reader. This cannot be undone."
    if view.gap:
        yield f"The gap: {view.gap}."


def _policy(view: MergeView, values: Values) -> Iterator[str]:
    now = ", ".join(f"{part} {value}" for part, value in view.policy.items())
    yield f"From now on the output is emitted by another policy; now it is: {now or 'unknown'}."
    yield "What has been emitted stays. All workers follow within a second."


def _cutover(view: MergeView, values: Values) -> Iterator[str]:
    leaving, coming = values.get("leaving") or "?", values.get("coming") or "?"
    yield f"{coming} is merged beside {leaving} and watched; when it alone suffices in every task,"
    yield f"{leaving} is detached. The output goes on meanwhile, and readers notice nothing."
    yield "More contradictions than allowed abort it, and both stay attached."


def _abort(view: MergeView, values: Values) -> Iterator[str]:
    yield "The cutover that runs is ended. Both replicas stay attached."


_NAME: Final = Field("name", "Replica", "replica", required=True)
_WHEN: Final = Field("joining_at", "Correct from (time of the stream; empty: always)", "whole")
_INSERTS: Final = ("first", "leader", "half_frozen")
_ADJUSTS: Final = ("lazy", "eager", "leader")

ACTIONS: Final[Mapping[str, Action]] = {
    "attach": Action(
        "Attach a replica",
        (
            Field("name", "Name", required=True),
            Field("topic", "Topic that it publishes", required=True),
            _WHEN,
        ),
        "/v1/replicas/{name}/attach",
        _attach,
    ),
    "detach": Action("Detach a replica", (_NAME,), "/v1/replicas/{name}/detach", _detach),
    "quarantine": Action(
        "Quarantine a replica",
        (_NAME, Field("reason", "Why, for people to read")),
        "/v1/replicas/{name}/quarantine",
        _quarantine,
    ),
    "release": Action("Release a replica", (_NAME, _WHEN), "/v1/replicas/{name}/release", _release),
    "accept-gap": Action(
        "Accept a gap",
        (
            Field("input", "Replica that goes on after the gap", required=True),
            Field("until", "End of the gap (time of the stream)", "whole", required=True),
        ),
        "/v1/accept-gap",
        _accept_gap,
    ),
    "policy": Action(
        "Change the policy",
        (
            Field("insert", "Inserts: first, leader, half_frozen or quorum(N)", required=True),
            Field("adjust", "Adjusts", "choice", required=True, choices=_ADJUSTS),
            Field("stable", "Stables: max, lag(N) or quorum(N)", required=True),
        ),
        "/v1/policy",
        _policy,
    ),
    "cutover": Action(
        "Cut over to another replica",
        (
            Field("leaving", "Who leaves", "replica", required=True),
            Field("coming", "Who takes its place", required=True),
            Field("topic", "Its topic, if it is not attached yet"),
            Field("watch", "Watch both for (time of the stream; empty: a minute)", "whole"),
            Field("max_behind", "May be behind, in seconds", "whole", default="5"),
            Field("max_divergences", "Contradictions allowed", "whole", default="0"),
        ),
        "/v1/cutover/begin",
        _cutover,
    ),
    "abort": Action(
        "Abort the cutover",
        (Field("reason", "Why, for people to read"),),
        "/v1/cutover/abort",
        _abort,
    ),
}


def request_of(action: Action, values: Values, version: int | None) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request.

    Raises:
        ValueError: a field is missing or no number; the message names it.
    """
    body: dict[str, Any] = {}
    for each in action.fields:
        text = (values.get(each.name) or "").strip()
        if not text:
            if each.required:
                raise ValueError(f"{each.label}: is missing")
            continue
        body[each.name] = _whole(each, text) if each.kind == "whole" else text
    path = action.path
    if "{name}" in path:
        path = path.format(name=quote(str(body.pop("name")), safe=""))
    if path == "/v1/cutover/begin" and "topic" in body:
        body["attach"] = {"topic": body.pop("topic")}
    if version is not None:
        body["expects"] = version
    return path, body


def _whole(asked: Field, text: str) -> int:
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise ValueError(f"{asked.label}: {text!r} is no whole number") from None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request."""

    good: bool
    text: str
    denied: bool = False
    """The token was none or a wrong one."""


@dataclass(slots=True)
class _Asked:
    path: str
    body: Mapping[str, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


async def ask(
    workers: Sequence[Mapping[str, Any]], token: str, path: str, body: Mapping[str, Any], who: str
) -> Outcome:
    """Requests a decision of the first worker that can be reached; `workers` are settings of HTTP
    clients. Who asks is `who`."""
    asked = _Asked(path, {**body, "who": who})
    unreachable = "no worker answers"
    for settings in workers:
        at = str(settings["base_url"])
        if in_clear(at):
            return Outcome(False, f"a token is not sent in the clear: {at} needs https")
        try:
            return await _post(settings, token, asked)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            unreachable = f"{at} cannot be reached: {error}"
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            text = (
                f"{at} did not answer ({why}); whether the decision {asked.id} holds is not known"
            )
            return Outcome(False, f"{text}: the log of decisions will show it")
    return Outcome(False, unreachable)


def in_clear(address: str) -> bool:
    """Whether a token for this address would go over a wire in the clear."""
    url = urlsplit(address)
    return url.scheme == "http" and url.hostname not in _LOOPBACK


async def _post(settings: Mapping[str, Any], token: str, asked: _Asked) -> Outcome:
    given = {**settings, "headers": {"authorization": f"Bearer {token}"}}
    async with httpx.AsyncClient(**given, timeout=_SECONDS) as client:
        answer = await client.post(asked.path, json={**asked.body, "id": asked.id})
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if answer.is_success:
        text = f"version {document.get('version')}: {document.get('action')}"
        return Outcome(True, f"{text} (decision {document.get('id')})")
    why = document.get("message") or document.get("detail") or f"status {answer.status_code}"
    return Outcome(False, f"refused: {why}", denied=answer.status_code in {401, 403})


async def may_control(workers: Sequence[Mapping[str, Any]], token: str) -> Outcome:
    """Whether workers accept a token for decisions. What is sent is no decision: a body without the
    fields that it needs, which is refused (422) after the token was looked at."""
    for settings in workers:
        if in_clear(str(settings["base_url"])):
            return Outcome(False, f"a token is not sent in the clear: {settings['base_url']}")
        try:
            outcome = await _post(settings, token, _Asked("/v1/accept-gap", {}))
        except httpx.HTTPError:
            continue
        return outcome if outcome.denied else Outcome(True, "the workers accept this token")
    return Outcome(False, "no worker answers, so the token is not known to be right")
