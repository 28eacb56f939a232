"""HTTP surface of scoring: parsing and status codes only."""

from fastapi import APIRouter
from gymfleet_contracts.reward import ScoreBatch, ScoredBatch

from gymfleet_reward.composer import score

router = APIRouter(prefix="/v1/scores", tags=["scores"])


@router.post("")
def score_batch(body: ScoreBatch) -> ScoredBatch:
    """Score trajectories without the streams; the answers stand in the order of the request."""
    # Not a coroutine: FastAPI runs it on a thread, and a large batch does not hold up the worker.
    return ScoredBatch(items=tuple(score(item) for item in body.items))
