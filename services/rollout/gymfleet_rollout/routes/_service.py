"""The service as a dependency of the routes."""

from typing import Annotated

from fastapi import Depends, Request

from gymfleet_rollout.service import RolloutService


def _get_service(request: Request) -> RolloutService:
    service: RolloutService = request.app.state.service
    return service


ServiceDep = Annotated[RolloutService, Depends(_get_service)]
