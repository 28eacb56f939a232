"""Values of nodes from the reward service."""

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import httpx
from gymfleet_contracts.reward import ScoreBatch, ScoredBatch, ScoreRequest
from pydantic import SecretStr, ValidationError

from gymfleet_rollout.errors import EvaluationFailed

Outcomes: TypeAlias = Sequence[float | EvaluationFailed]
"""The total reward of each episode, or why it has none."""
_KEEP_ALIVE_S: Final = 30.0
"""Well below the service's own limit, so that no request uses a connection that the service is closing."""


class Evaluator(Protocol):
    """A scorer of episodes that have not ended."""

    async def totals(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> list[float]:
        """Return the total reward of each. Raises EvaluationFailed."""


class RewardService:
    """The reward service, through its `POST /v1/scores`."""

    def __init__(self, url: str, api_key: SecretStr | None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key.get_secret_value()}"}
        limits = httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, limits=limits, trust_env=False)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def scores(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> Outcomes:
        """Return the total reward of each, or why it has none. Raises EvaluationFailed if nothing was answered."""
        body = ScoreBatch(items=tuple(requests)).model_dump_json()
        headers = {"Content-Type": "application/json"}
        try:
            answer = await self._http.post("/v1/scores", content=body, headers=headers, timeout=timeout_s)
        except httpx.HTTPError as error:
            told = str(error) or type(error).__name__
            raise EvaluationFailed(f"the reward service at {self._http.base_url} does not answer: {told}") from None
        if answer.status_code != httpx.codes.OK:
            raise EvaluationFailed(f"the reward service answered {answer.status_code}: {answer.text[:500]}")
        try:
            items = ScoredBatch.model_validate_json(answer.content).items
        except ValidationError as error:
            raise EvaluationFailed(f"the reward service's answer is none: {error.error_count()} faults") from None
        asked = [request.trajectory.trajectory_id for request in requests]
        if [item.trajectory.trajectory_id for item in items] != asked:
            raise EvaluationFailed(f"the reward service answered {len(items)} others than the {len(asked)} asked for")
        return [
            EvaluationFailed(f"the reward service gave no value: {item.reward_error or 'without a reason'}")
            if item.reward is None
            else item.reward.total
            for item in items
        ]
