"""The trainer's client for the policy endpoint of rollout replicas, which makes each call once."""

from http import HTTPStatus
from typing import Any, Final

import httpx
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import Policy, SleepRequest, StagedVersion, StageVersion, SubmitJob
from pydantic import SecretStr, ValidationError

from gymfleet_trainer.errors import TrainerError

# Well below the servers' keep-alive, so that no request uses a connection that the server is closing.
_KEEP_ALIVE_S: Final = 30.0
_CONNECT_S: Final = 5.0
"""Needed because a machine that is gone does not refuse connections; it does not answer at all."""
_READY_S: Final = 5.0


class VersionRefused(TrainerError):
    """The rollout service could not load the version, has another staged, or cannot play groups; `problem` says why."""

    exit_code = 4

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.title}: {problem.detail}" if problem.detail else problem.title)
        self.problem = problem


class NoAnswer(Exception):
    """Nothing listens, the connection was lost, or the service is still starting: the call is worth retrying."""


class PolicyCalls:
    """Call `/v1/policy` of any rollout replica, named by its base URL, and have it check groups.

    Every method raises `NoAnswer`, or `VersionRefused` when the replica refuses.
    """

    def __init__(self, api_key: SecretStr | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key.get_secret_value()}"}
        limits = httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S)
        self._http = httpx.AsyncClient(headers=headers, limits=limits, trust_env=False)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def policy(self, url: str, *, timeout_s: float) -> Policy:
        """Return the policy that is live now."""
        return Policy.model_validate(await self._call("GET", f"{url}/v1/policy", timeout_s))

    async def check(self, url: str, body: SubmitJob, *, timeout_s: float) -> None:
        """Check that groups could be played."""
        await self._call("POST", f"{url}/v1/playable", timeout_s, body.model_dump(mode="json"))

    async def stage(self, url: str, body: StageVersion, *, timeout_s: float) -> StagedVersion:
        """Load weights, and return the answers to the probe."""
        answer = await self._call("POST", f"{url}/v1/policy/versions", timeout_s, body.model_dump(mode="json"))
        return StagedVersion.model_validate(answer)

    async def commit(self, url: str, version: int, *, timeout_s: float) -> None:
        """Make the staged version live. Repeating it is harmless."""
        await self._call("POST", f"{url}/v1/policy/versions/{version}/commit", timeout_s)

    async def refuse(self, url: str, version: int, *, timeout_s: float) -> None:
        """Withdraw a staged version."""
        await self._call("DELETE", f"{url}/v1/policy/versions/{version}", timeout_s)

    async def sleep(self, url: str, body: SleepRequest, *, timeout_s: float) -> None:
        """Free the engines' memory for a lease, or renew it."""
        await self._call("POST", f"{url}/v1/policy/sleep", timeout_s, body.model_dump(mode="json"))

    async def wake(self, url: str, *, timeout_s: float) -> None:
        """Let the engines continue with the live version. Repeating it is harmless."""
        await self._call("POST", f"{url}/v1/policy/wake", timeout_s)

    async def _call(self, method: str, url: str, timeout_s: float, body: Any = None) -> Any:
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
        try:
            response = await self._http.request(method, url, json=body, timeout=timeout)
        except httpx.TransportError as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise NoAnswer(_problem(response).detail)
        if response.is_error:
            raise VersionRefused(_problem(response))
        return response.json() if response.content else None


def _problem(response: httpx.Response) -> Problem:
    try:
        return Problem.model_validate(response.json())
    except (ValueError, ValidationError):
        return Problem(title=f"HTTP {response.status_code}", status=response.status_code)


async def readiness(base_url: str) -> str:
    """Return a service's answer to `/readyz` in a few words; never raises."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_READY_S) as client:
            response = await client.get(f"{base_url.rstrip('/')}/readyz")
    except httpx.HTTPError as error:
        return f"no answer ({type(error).__name__})"
    if response.is_success:
        return "ready"
    return f"{response.status_code}: {_problem(response).detail or _problem(response).title}"[:300]
