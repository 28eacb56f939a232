"""HTTP surface of scoring: parsing and status codes only."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from gymfleet_contracts.reward import ScoreBatch, ScoredBatch

from gymfleet_reward.composer import Scorer

router = APIRouter(prefix="/v1/scores", tags=["scores"])


def get_scorer(request: Request) -> Scorer:
    """Return the service's scorer."""
    scorer: Scorer = request.app.state.scorer
    return scorer


@router.post("")
def score_batch(body: ScoreBatch, scorer: Annotated[Scorer, Depends(get_scorer)]) -> ScoredBatch:
    """Score trajectories without the streams; the answers are in the order of the request."""
    # Not a coroutine: FastAPI runs it on a thread, and a large batch does not hold up the worker.
    scorer.check(body.items)
    return ScoredBatch(items=tuple(scorer.score(body.items)))
