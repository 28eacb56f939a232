"""The rollout service's policy endpoint, as the trainer uses it."""

import asyncio
import time
from http import HTTPStatus
from typing import Any

import httpx
import structlog
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import Policy, StagedVersion, StageVersion
from pydantic import ValidationError

from gymfleet_trainer.errors import Stalled, TrainerError

log = structlog.get_logger()
# Well under the servers' keep-alive, so that no request meets a connection that the server is closing.
_KEEP_ALIVE_S = 30.0
_PAUSE_S = 0.25


class VersionRefused(TrainerError):
    """The rollout service could not load the version, or has another one staged. `problem` says why."""

    exit_code = 4

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.title}: {problem.detail}" if problem.detail else problem.title)
        self.problem = problem


class _NoAnswer(Exception):
    """Nobody listens, the connection was lost, or the service is still starting: worth another try."""


class PolicyEndpoint:
    """`/v1/policy` of one rollout service. Every call is repeated until its deadline while nobody answers."""

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        limits = httpx.Limits(max_connections=4, keepalive_expiry=_KEEP_ALIVE_S)
        self._http = httpx.AsyncClient(base_url=base_url, limits=limits, trust_env=False)
        self._base_url = base_url
        self._timeout_s = timeout_s

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def policy(self, *, timeout_s: float | None = None) -> Policy:
        """What is live now."""
        return Policy.model_validate(await self._call("GET", "/v1/policy", timeout_s=timeout_s))

    async def stage(self, body: StageVersion) -> StagedVersion:
        """Load weights everywhere and get the probe's answers.

        A stage whose answer was lost is taken back before it is repeated.

        Raises:
            VersionRefused: the service said no.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                answer = await self._send("POST", "/v1/policy/versions", body.model_dump(mode="json"), deadline)
            except _NoAnswer as error:
                if time.monotonic() > deadline:
                    raise self._stalled("staging a version", error) from None
                await asyncio.sleep(_PAUSE_S)
                await self.refuse(body.version)
            else:
                return StagedVersion.model_validate(answer)

    async def commit(self, version: int) -> None:
        """Make the staged version live. Repeating it is harmless.

        Raises:
            VersionRefused: it is not staged any more.
        """
        try:
            await self._call("POST", f"/v1/policy/versions/{version}/commit")
        except VersionRefused:
            # The first try may have done it and lost its answer.
            if (await self.policy()).live_version != version:
                raise

    async def refuse(self, version: int) -> None:
        """Take a staged version back; one that is not staged is no error."""
        try:
            await self._call("DELETE", f"/v1/policy/versions/{version}")
        except VersionRefused as refusal:
            log.info("version.not_staged", version=version, reason=str(refusal))

    async def readiness(self) -> str:
        """What `/readyz` says, for an error message."""
        return await readiness(self._base_url)

    async def _call(self, method: str, path: str, *, timeout_s: float | None = None) -> Any:
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                return await self._send(method, path, None, deadline)
            except _NoAnswer as error:
                if time.monotonic() > deadline:
                    raise self._stalled(f"{method} {path}", error) from None
                await asyncio.sleep(_PAUSE_S)

    async def _send(self, method: str, path: str, body: Any, deadline: float) -> Any:
        left_s = max(deadline - time.monotonic(), 0.1)
        try:
            response = await self._http.request(method, path, json=body, timeout=left_s)
        except httpx.TransportError as error:
            raise _NoAnswer(str(error) or type(error).__name__) from error
        if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise _NoAnswer(_problem(response).detail)
        if response.is_error:
            raise VersionRefused(_problem(response))
        return response.json() if response.content else None

    def _stalled(self, what: str, error: Exception) -> Stalled:
        return Stalled(f"{what}: no answer from the rollout service at {self._base_url} ({error})")


def _problem(response: httpx.Response) -> Problem:
    try:
        return Problem.model_validate(response.json())
    except (ValueError, ValidationError):
        return Problem(title=f"HTTP {response.status_code}", status=response.status_code)


async def readiness(base_url: str) -> str:
    """What a service's `/readyz` says, in a few words; never raises."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            response = await client.get(f"{base_url.rstrip('/')}/readyz")
    except httpx.HTTPError as error:
        return f"no answer ({type(error).__name__})"
    if response.is_success:
        return "ready"
    return f"{response.status_code}: {_problem(response).detail or _problem(response).title}"[:300]
