"""A client of the reward service's `POST /v1/scores`."""

from collections.abc import Sequence
from typing import Final, Self

import httpx
from gymfleet_contracts.reward import ScoreBatch, ScoredBatch, ScoreRequest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.retries import Retries
from pydantic import ValidationError

from gymfleet_cli.console import CliError

_ATTEMPTS: Final = 6
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_KEEP_ALIVE_S: Final = 30.0
"""Well below the service's own limit, so that no request uses a connection that the service is closing."""
_MAX_TOLD: Final = 500


class Unscorable(Exception):
    """The service refuses the episodes as they are; the message says why."""


class _Passing(Exception):
    """The service does not answer at the moment."""


class RewardApi:
    """Scores episodes over HTTP; several threads may call it."""

    def __init__(self, url: str, api_key: str | None, *, timeout_s: float) -> None:
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        limits = httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S)
        self._http = httpx.Client(base_url=url, headers=headers, limits=limits, timeout=timeout_s, trust_env=False)
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoredTrajectory]:
        """Return the episodes with their rewards, in their order.

        Raises:
            Unscorable: the request is refused because of its components or options, or an incomplete group.
            CliError: the service does not answer, or does not answer as the reward service does.
        """
        body = ScoreBatch(items=tuple(requests)).model_dump_json()
        retries = Retries("reward.failing", on=_Passing, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S)
        try:
            content = retries.call_blocking(lambda: self._post(body), attempts=_ATTEMPTS)
        except _Passing as error:
            raise CliError(f"the reward service at {self._http.base_url}: {error}") from None
        try:
            items = ScoredBatch.model_validate_json(content).items
        except ValidationError as error:
            raise CliError(f"the reward service's answer is none: {error.error_count()} faults") from None
        asked = [request.trajectory.trajectory_id for request in requests]
        if [item.trajectory.trajectory_id for item in items] != asked:
            raise CliError(f"the reward service answered {len(items)} others than the {len(asked)} asked for")
        return list(items)

    def _post(self, body: str) -> bytes:
        try:
            answer = self._http.post("/v1/scores", content=body)
        except httpx.TimeoutException:
            raise CliError(f"the reward service gave no answer within --timeout-s {self._timeout_s:g}") from None
        except httpx.TransportError as error:
            raise _Passing(str(error) or type(error).__name__) from None
        if answer.is_success:
            return answer.content
        if answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise _Passing(f"status {answer.status_code}")
        if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
            raise Unscorable(_detail(answer))
        raise CliError(f"the reward service refuses with status {answer.status_code}: {_detail(answer)}")


def _detail(answer: httpx.Response) -> str:
    try:
        told = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        told = "it does not say why"
    return " ".join(told.split())[:_MAX_TOLD]
