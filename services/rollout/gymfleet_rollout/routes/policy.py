"""The policy: which version answers, and how it is replaced."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Request, status
from gymfleet_contracts.rollout import Policy, SleepRequest, StagedVersion, StageVersion
from gymfleet_kit.problems import problem_responses

from gymfleet_rollout.errors import CannotSleep, PolicyUnavailable, PolicyUpdateFailed, PolicyVersionConflict, WrongPort
from gymfleet_rollout.routes._service import ServiceDep

router = APIRouter(prefix="/v1/policy", tags=["policy"])
control = APIRouter(prefix="/v1/policy", tags=["policy"])
Version = Annotated[int, Path(ge=0)]


def control_port(port: int | None) -> Callable[[Request], None]:
    """Return a dependency of the routes that replace the policy: if they have a port, all other ports refuse them."""

    def arrived_there(request: Request) -> None:
        # This is the listening socket's own port, which no header can change.
        server = request.scope.get("server")
        if port is not None and (server is None or server[1] != port):
            raise WrongPort(f"send this to port {port}, GYMFLEET_ROLLOUT_CONTROL_PORT, which the trainer alone may use")

    return arrived_there


@router.get("", responses=problem_responses(PolicyUnavailable))
async def get(service: ServiceDep) -> Policy:
    """The live version and what serves it."""
    service.policy.require_usable()
    return service.policy.state()


@control.post(
    "/versions",
    status_code=status.HTTP_201_CREATED,
    responses=problem_responses(PolicyVersionConflict, PolicyUpdateFailed, PolicyUnavailable, WrongPort),
)
async def stage(body: StageVersion, service: ServiceDep) -> StagedVersion:
    """Load a version on every engine and answer the probe with it; generation waits for the decision."""
    return await service.policy.stage(body)


@control.post(
    "/versions/{version}/commit", responses=problem_responses(PolicyVersionConflict, PolicyUnavailable, WrongPort)
)
async def commit(version: Version, service: ServiceDep) -> Policy:
    """Make the staged version live."""
    return await service.policy.commit(version)


@control.delete("/versions/{version}", responses=problem_responses(PolicyVersionConflict, PolicyUnavailable, WrongPort))
async def refuse(version: Version, service: ServiceDep) -> Policy:
    """Bring the last live version back."""
    return await service.policy.refuse(version)


@control.post("/sleep", responses=problem_responses(PolicyVersionConflict, CannotSleep, PolicyUnavailable, WrongPort))
async def sleep(body: SleepRequest, service: ServiceDep) -> Policy:
    """Free the engines' memory for a lease, which the same call renews; generation waits."""
    return await service.policy.sleep(body.lease_s)


@control.post("/wake", responses=problem_responses(PolicyUnavailable, WrongPort))
async def wake(service: ServiceDep) -> Policy:
    """Go on with the live version. If the engines are awake, this changes nothing."""
    return await service.policy.wake()
