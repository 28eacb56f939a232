"""The common part of AgentGym's checks: ids, and calls that succeed only with status 200."""

import math
from contextlib import suppress
from typing import Any, Final

import httpx

from gymfleet_conformance.agentgym.wire import Wire
from gymfleet_conformance.check import Protocol, Suite
from gymfleet_conformance.server_under_test import (
    NotApplicable,
    ServerUnderTest,
    Target,
    decoded,
    excerpt,
    require,
    shown,
)

DULL: Final = "look"
_MAX_TURNS: Final = 150


class AgentGymTarget(Target):
    """One environment behind AgentGym's protocol; the server's URL is a client's base URL."""

    def __init__(self, server: ServerUnderTest, wire: Wire) -> None:
        super().__init__(server, wire.env)
        self.wire = wire
        self._created: list[Any] = []

    async def release(self) -> None:
        """Close every id, if the dialect has a way to do so."""
        if self.wire.closes or self.wire.tries_close:
            for number in self._created:
                with suppress(httpx.HTTPError):
                    await self.post("/close", {self.wire.id_key: number})

    async def post(self, path: str, body: Any) -> httpx.Response:
        """Make a call as the clients do."""
        return await self.server.request("POST", path, **({} if body is None else {"json": body}))

    async def create(self) -> Any:
        """Create and return a new id. Raises `Failed`."""
        body = decoded(await self.post("/create", self.wire.create_body))
        number = self.wire.created(body)
        self._created.append(number)
        require(isinstance(number, int) and not isinstance(number, bool), f"saw {excerpt(body)}; an int id is right")
        return number

    async def try_reset(self, number: Any, task: Any = 1) -> httpx.Response:
        """Call `/reset` and return any answer."""
        return await self.post("/reset", self.wire.reset(number, task))

    async def reset(self, number: Any, task: int = 1) -> str:
        """Reset to a task and return its first observation. Raises `Failed`."""
        body = decoded(await self.try_reset(number, task))
        text = self.wire.started(body)
        require(isinstance(text, str) and bool(text), f"saw {excerpt(body)}; an observation would be right")
        return str(text)

    async def begun(self, task: int = 1) -> Any:
        """Return a new id with an episode."""
        number = await self.create()
        await self.reset(number, task)
        return number

    async def try_step(self, number: Any, action: Any = DULL) -> httpx.Response:
        """Call `/step` and return any answer."""
        return await self.post("/step", {self.wire.id_key: number, "action": action})

    async def step(self, number: Any, action: str = DULL) -> dict[str, Any]:
        """Take a step; return its result, checked to have the fields that the client reads. Raises `Failed`."""
        body = decoded(await self.try_step(number, action))
        require(isinstance(body, dict), f"saw {excerpt(body)}; an object would be right")
        require(isinstance(body.get(self.wire.seen), str), f"no {self.wire.seen} in {excerpt(body)}")
        reward = body.get("reward")
        require(isinstance(reward, int | float) and math.isfinite(reward), f"reward is {excerpt(reward)}")
        require(isinstance(body.get(self.wire.done), bool), f"{self.wire.done} is {excerpt(body.get(self.wire.done))}")
        result: dict[str, Any] = body
        return result

    async def play(self, number: Any, *actions: str) -> list[dict[str, Any]]:
        """Return the results of `actions` up to the episode's end; some episodes have one step. Raises `Failed`."""
        results: list[dict[str, Any]] = []
        for action in actions:
            results.append(await self.step(number, action))
            if results[-1][self.wire.done]:
                break
        return results

    def ended(self, response: httpx.Response) -> bool:
        """Return whether a step was the last one of its episode."""
        body = response.json() if response.status_code == 200 else None
        return isinstance(body, dict) and bool(body.get(self.wire.done))

    async def until_done(self, number: Any) -> None:
        """Repeat nonsense until the episode ends. Raises `NotApplicable` if it does not."""
        for _ in range(_MAX_TURNS):
            if (await self.step(number))[self.wire.done]:
                return
        raise NotApplicable(f"the episode does not end within {_MAX_TURNS} steps; this protocol limits no turns")

    def refused(self, response: httpx.Response) -> None:
        """Require the dialect's answer to a mistake of the client. Raises `Failed`."""
        if self.wire.tells_errors:
            body = decoded(response)
            told = isinstance(body, dict) and bool(body.get("error"))
            require(told, f'saw {shown(response)}; 200 {{"error": ...}} would be right')
        else:
            require(response.status_code != 200, f"saw {shown(response)}; another status would be right")


SUITE: Final[Suite[AgentGymTarget]] = Suite(Protocol.AGENTGYM)
UNKNOWN: Final = 987_654_321
"""An id that nobody has."""
