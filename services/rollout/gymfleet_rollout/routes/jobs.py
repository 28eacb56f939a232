"""Jobs: groups played on request."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, status
from fastapi.responses import StreamingResponse
from gymfleet_contracts.rollout import Job, SubmitJob
from gymfleet_kit.problems import problem_responses
from pydantic import BaseModel

from gymfleet_rollout.errors import (
    GatewayFailed,
    PolicyUnavailable,
    QueueFull,
    RefusedTemplate,
    UnknownFormat,
    UnknownJob,
    UnknownStrategy,
    Unsuited,
)
from gymfleet_rollout.routes._service import ServiceDep

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
checks = APIRouter(prefix="/v1/playable", tags=["jobs"])


@router.post(
    "",
    status_code=status.HTTP_202_ACCEPTED,
    responses=problem_responses(QueueFull, PolicyUnavailable, UnknownFormat, RefusedTemplate, UnknownStrategy),
)
async def submit(body: SubmitJob, service: ServiceDep) -> Job:
    """Play groups outside the stream."""
    service.require_newest()
    return service.jobs.submit(body)


@checks.post(
    "",
    status_code=status.HTTP_204_NO_CONTENT,
    responses=problem_responses(
        Unsuited, GatewayFailed, PolicyUnavailable, UnknownFormat, RefusedTemplate, UnknownStrategy
    ),
)
async def check(body: SubmitJob, service: ServiceDep) -> None:
    """Say whether groups could be played: the environment has what their strategies and formats need."""
    await service.jobs.check(body)


@router.get("/{job_id}", responses=problem_responses(UnknownJob))
async def get(job_id: str, service: ServiceDep) -> Job:
    """Progress of a job."""
    return service.jobs.get(job_id)


@router.delete("/{job_id}", responses=problem_responses(UnknownJob))
async def cancel(job_id: str, service: ServiceDep) -> Job:
    """End a job and close its sessions; finished episodes stay."""
    return await service.jobs.cancel(job_id)


@router.get(
    "/{job_id}/trajectories",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/x-ndjson": {}}, "description": "One `Trajectory` a line"},
        **problem_responses(UnknownJob),
    },
)
async def trajectories(
    job_id: str,
    service: ServiceDep,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> StreamingResponse:
    """Finished episodes, in the order in which they ended."""
    return _lines(service.jobs.trajectories(job_id, offset, limit))


@router.get(
    "/{job_id}/trees",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/x-ndjson": {}}, "description": "One `SearchTree` a line"},
        **problem_responses(UnknownJob),
    },
)
async def trees(
    job_id: str,
    service: ServiceDep,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> StreamingResponse:
    """The searches that strategies made, in the order in which they ended."""
    return _lines(service.jobs.trees(job_id, offset, limit))


def _lines(records: Sequence[BaseModel]) -> StreamingResponse:
    def lines() -> Iterator[str]:
        for record in records:
            yield record.model_dump_json() + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")
