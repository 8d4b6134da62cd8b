"""The worker's routes: those of every merging process, and its status."""

from typing import Annotated

from fastapi import Depends, FastAPI, Query

from lmerge_service.http.access import Access
from lmerge_service.http.guarded import guarded
from lmerge_service.merge.feedback import FeedbackOut
from lmerge_service.service.status.bounds import Reused, part_of
from lmerge_service.service.status.build import readiness_of, status_of
from lmerge_service.service.status.document import Status
from lmerge_service.service.status.metrics import metrics_of
from lmerge_service.service.worker import Worker

__all__ = ("application",)


def application(worker: Worker, access: Access, feedback: FeedbackOut) -> FastAPI:
    """The routes over a worker; all run on the event loop, where nothing changes under them."""
    latest = Reused(lambda: status_of(worker))
    app = guarded(
        access,
        metrics_of(worker, feedback),
        lambda: worker.control,
        reasons=lambda: latest().reasons,
        state=lambda: readiness_of(worker),
    )

    @app.get("/status", dependencies=[Depends(access.reads)])
    async def status(
        partition: Annotated[list[int] | None, Query()] = None,
        replica: Annotated[list[str] | None, Query()] = None,
        rows: bool = True,
    ) -> Status:
        """What the worker knows about its replicas and its output; `partition` and `replica`, which
        may be repeated, choose tasks and replicas, and `rows=false` leaves out how each task sees
        each replica."""
        return part_of(latest(), partition or (), replica or (), with_rows=rows)

    return app
