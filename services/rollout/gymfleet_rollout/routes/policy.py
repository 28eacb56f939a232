"""The policy: which version answers, and how it is replaced."""

from typing import Annotated

from fastapi import APIRouter, Path, status
from gymfleet_contracts.rollout import Policy, StagedVersion, StageVersion
from gymfleet_kit.problems import problem_responses

from gymfleet_rollout.errors import PolicyUnavailable, PolicyUpdateFailed, PolicyVersionConflict
from gymfleet_rollout.routes._service import ServiceDep

router = APIRouter(prefix="/v1/policy", tags=["policy"])
Version = Annotated[int, Path(ge=0)]


@router.get("", responses=problem_responses(PolicyUnavailable))
async def get(service: ServiceDep) -> Policy:
    """The live version and what serves it."""
    return service.policy.state()


@router.post(
    "/versions",
    status_code=status.HTTP_201_CREATED,
    responses=problem_responses(PolicyVersionConflict, PolicyUpdateFailed, PolicyUnavailable),
)
async def stage(body: StageVersion, service: ServiceDep) -> StagedVersion:
    """Load a version on every replica and answer the probe with it; generation waits for the decision."""
    return await service.policy.stage(body)


@router.post("/versions/{version}/commit", responses=problem_responses(PolicyVersionConflict, PolicyUnavailable))
async def commit(version: Version, service: ServiceDep) -> Policy:
    """Make the staged version live."""
    return await service.policy.commit(version)


@router.delete("/versions/{version}", responses=problem_responses(PolicyVersionConflict, PolicyUnavailable))
async def refuse(version: Version, service: ServiceDep) -> Policy:
    """Bring the last live version back."""
    return await service.policy.refuse(version)
