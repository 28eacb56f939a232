"""The HTTP route of the run, which reports its progress and decides nothing."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from gymfleet_contracts.run import RunProgress

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
