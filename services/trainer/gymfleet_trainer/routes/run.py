"""The HTTP routes of the run, which report its progress and decide nothing."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from gymfleet_contracts.run import RunEvents, RunProgress

from gymfleet_trainer.run.progress import Reporter

router = APIRouter(prefix="/v1/run", tags=["run"])


def get_reporter(request: Request) -> Reporter:
    """Return the run's reporter, which `create` stored in the app."""
    reporter: Reporter = request.app.state.reporter
    return reporter


@router.get("")
async def run(reporter: Annotated[Reporter, Depends(get_reporter)]) -> RunProgress:
    """Phase, step, rate and headline metrics; the same as `progress.json`."""
    return reporter.current


@router.get("/events", response_model_exclude_defaults=True)
def events(
    reporter: Annotated[Reporter, Depends(get_reporter)],
    after: Annotated[int, Query(ge=0, lt=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> RunEvents:
    """Events of the run after event number `after`, in order; to continue, ask again after the last one returned."""
    return reporter.events(after, limit)
