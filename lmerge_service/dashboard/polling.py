"""Asks workers and queries how they are, as `lmerge watch` does, without being a burden to them.

Theory
    `/status` is asked for each second at best. A worker is left alone for 125 times as long as an
    answer costs it, thirty seconds at the most. What it costs is estimated: by the rows of each
    task and replica, which a worker makes and leaves out of what it sends us, and by the size; it
    is never more than the answer took. `/metrics`, which has the memory, is asked for a tenth as
    often, and not before 500 times as long as it took has passed; decisions only when there are new
    ones. So being asked costs a worker a hundredth of a core, by these estimates.

Who owns what
    A `Target` owns its HTTP client. Nothing but GET is sent from here.

What happens when nobody answers
    The target is away, with the reason; it is asked again in a second.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

__all__ = ("Answer", "Target", "asking", "pause_after")

_EVERY_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 30.0
_SHARE: Final = 125.0
_COST_SECONDS: Final = 0.005
_COST_OF_A_BYTE: Final = 1e-7
_COST_OF_A_ROW: Final = 2.5e-5
_ANSWER_SECONDS: Final = 5.0
_METRICS_EVERY: Final = 10.0
_METRICS_SHARE: Final = 500.0
_METRICS_LONGEST: Final = 300.0
_DECISIONS: Final = 200


def pause_after(took: float, size: int, rows: int = 0) -> float:
    """Seconds to leave a worker alone whose answer took so long, has so many bytes, and lacks so
    many rows that were made.

    >>> pause_after(0.5, 10_000), pause_after(0.5, 50_000, 500), pause_after(9.0, 10_000_000)
    (1.0, 2.8125, 30.0)
    """
    cost = min(took, _COST_SECONDS + size * _COST_OF_A_BYTE + rows * _COST_OF_A_ROW)
    return min(max(cost * _SHARE, _EVERY_SECONDS), _LONGEST_SECONDS)


@dataclass(slots=True)
class Answer:
    """What is known of one address now."""

    status: Mapping[str, Any] | None = None
    """Its last answer; None while it is away."""
    away: str | None = "nothing is known yet"
    memory: float | None = None
    """Resident bytes."""
    decisions: Sequence[Mapping[str, Any]] = ()
    """The latest, the newest first."""
    pause: float = _EVERY_SECONDS
    """Seconds from one answer to the next."""


@dataclass(slots=True)
class Target:
    """A worker, or a query, that is asked."""

    address: str
    settings: Mapping[str, Any] = field(repr=False)
    """Of the HTTP client."""
    answer: Answer = field(default_factory=Answer)
    _version: object = None
    _metrics_at: float = -math.inf
    """When they are due."""

    async def keep_asking(self, changed: asyncio.Event) -> None:
        """Until it is cancelled; sets `changed` after each answer."""
        async with httpx.AsyncClient(**self.settings, timeout=_ANSWER_SECONDS) as client:
            while True:
                began = time.monotonic()
                await self._ask(client)
                changed.set()
                await asyncio.sleep(self.answer.pause - (time.monotonic() - began))

    async def _ask(self, client: httpx.AsyncClient) -> None:
        began = time.monotonic()
        try:
            status, size = await _document(client, "/status?rows=false")
            left_out = status.get("rows_left_out")
            rows = left_out if isinstance(left_out, int) else 0
            self.answer.pause = pause_after(time.monotonic() - began, size, rows)
            await self._ask_more(client, status)
        except httpx.HTTPError as error:
            self._is_away(_reason(error))
        except ValueError as error:
            self._is_away(f"it is no worker that we understand: {error}")
        else:
            self.answer.status, self.answer.away = status, None

    def _is_away(self, why: str) -> None:
        self.answer.status, self.answer.away, self.answer.pause = None, why, _EVERY_SECONDS
        self.answer.memory, self._version, self._metrics_at = None, None, -math.inf

    async def _ask_more(self, client: httpx.AsyncClient, status: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now >= self._metrics_at:
            text = (await client.get("/metrics")).text
            rest = min(_METRICS_SHARE * (time.monotonic() - now), _METRICS_LONGEST)
            self._metrics_at = now + max(_METRICS_EVERY, 10 * self.answer.pause, rest)
            self.answer.memory = _gauge(text, "process_resident_memory_bytes")
        version = status.get("version"), (status.get("control_log") or {}).get("read")
        if "tasks" in status and status.get("control_log") and version != self._version:
            found, _ = await _document(client, f"/v1/decisions?limit={_DECISIONS}")
            self.answer.decisions, self._version = found.get("decisions", ()), version


async def _document(client: httpx.AsyncClient, path: str) -> tuple[Mapping[str, Any], int]:
    """With its size in bytes."""
    answer = await client.get(path)
    if answer.status_code in {401, 403}:
        raise ValueError(
            f"it does not let us read ({answer.status_code}): --token-file names a token"
        )
    document = answer.json()
    if not answer.is_success or not isinstance(document, dict):
        raise ValueError(f"it answers {answer.status_code}")
    return document, len(answer.content)


def _reason(error: httpx.HTTPError) -> str:
    """
    >>> _reason(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"))
    'its certificate is not trusted, --ca names who signs it: certificate verify failed'
    """
    text = str(error) or type(error).__name__
    _, untrusted, why = text.partition("[SSL: CERTIFICATE_VERIFY_FAILED] ")
    return f"its certificate is not trusted, --ca names who signs it: {why}" if untrusted else text


def _gauge(text: str, name: str) -> float | None:
    """A metric without labels, of Prometheus' text."""
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return None


async def asking(targets: Sequence[Target], changed: asyncio.Event) -> None:
    """Asks all of them, until it is cancelled."""
    async with asyncio.TaskGroup() as group:
        for target in targets:
            group.create_task(target.keep_asking(changed), name=target.address)
