"""The routes of every merging process: those of `observed`, and decisions."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from prometheus_client import CollectorRegistry

from lmerge_service.http.access import Access
from lmerge_service.http.api import routes
from lmerge_service.http.observed import behind_access, observing

if TYPE_CHECKING:
    from lmerge_service.merge.decisions.control_log import Control

__all__ = ("guarded",)


def guarded(
    access: Access,
    registry: CollectorRegistry,
    control: "Callable[[], Control | None]",
    *,
    reasons: Callable[[], list[str]],
    state: Callable[[], str],
) -> FastAPI:
    """An application of these."""
    app = FastAPI(title="lmerge", docs_url=None, redoc_url=None)
    behind_access(app, access)
    for path, handler in observing(access, registry, reasons=reasons, state=state).items():
        app.get(path)(handler)
    reads, controls = [Depends(access.reads)], [Depends(access.controls)]
    app.include_router(routes(control, reads=reads, controls=controls))
    return app
