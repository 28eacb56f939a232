"""The common part of OpenEnv's checks: its socket, with one connection for one episode."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from gymfleet_conformance.check import Protocol, Suite
from gymfleet_conformance.openenv.sample import smallest
from gymfleet_conformance.server_under_test import Failed, ServerUnderTest, Target, decoded, excerpt, require

_ANSWER_S: Final = 8.0
_MAX_BYTES: Final = 100 * 1024 * 1024


class Episode:
    """One socket, with requests and answers in turn."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, data: Any = None) -> None:
        """Send one request; `data` is left out if it is None."""
        await self.socket.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))

    async def answer(self) -> tuple[str, dict[str, Any]]:
        """Return type and data of the next frame. Raises `Failed`."""
        try:
            frame = json.loads(await asyncio.wait_for(self.socket.recv(), _ANSWER_S))
        except TimeoutError:
            raise Failed(f"no answer within {_ANSWER_S:g} s") from None
        except ValueError:
            raise Failed("the answer is not JSON") from None
        require(isinstance(frame, dict) and "type" in frame, f"saw {excerpt(frame)}; an object with a type is right")
        data = frame.get("data")
        return str(frame["type"]), data if isinstance(data, dict) else {}

    async def ask(self, kind: str, data: Any = None) -> tuple[str, dict[str, Any]]:
        """Send a request and wait for the answer."""
        await self.send(kind, data)
        return await self.answer()

    async def observe(self, kind: str, data: Any = None) -> dict[str, Any]:
        """Send a request and return its answer, which must be an observation. Raises `Failed`."""
        seen, body = await self.ask(kind, data)
        require(seen == "observation", f"{kind} got {seen} {excerpt(body)}; an observation would be right")
        check_observation(body)
        return body

    async def reset(self, **data: Any) -> dict[str, Any]:
        """Begin an episode."""
        return await self.observe("reset", data)

    async def state(self) -> dict[str, Any]:
        """Return the state. Raises `Failed`."""
        seen, body = await self.ask("state")
        require(seen == "state", f"state got {seen} {excerpt(body)}; a state would be right")
        return body

    async def error(self) -> str:
        """Return the code of the next answer, which must be an error. Raises `Failed`."""
        seen, body = await self.answer()
        require(seen == "error", f"saw {seen} {excerpt(body)}; an error would be right")
        require(bool(body.get("message")), f"the error says nothing: {excerpt(body)}")
        return str(body.get("code"))


class OpenEnvTarget(Target):
    """One environment behind OpenEnv's protocol."""

    async def release(self) -> None:
        """Release nothing, because nothing outlives its socket."""

    async def schema(self) -> dict[str, Any]:
        """Return the answer to `GET /schema`."""
        body: dict[str, Any] = decoded(await self.server.request("GET", "/schema"))
        require(isinstance(body, dict) and isinstance(body.get("action"), dict), f"saw {excerpt(body)}; no action")
        return body

    async def action(self) -> dict[str, Any]:
        """Return the smallest action that fits the schema."""
        return smallest((await self.schema())["action"])

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[Episode]:
        """Open a separate socket, which is closed at the end."""
        async with connect(
            self.server.socket_url("/ws"),
            additional_headers=dict(self.server.headers),
            proxy=None,
            open_timeout=_ANSWER_S,
            close_timeout=1,
            max_size=_MAX_BYTES,
        ) as socket:
            yield Episode(socket)

    @asynccontextmanager
    async def begun(self, **data: Any) -> AsyncIterator[Episode]:
        """Open a separate socket, and begin an episode on it with the `data` of a reset."""
        async with self.episode() as episode:
            await episode.reset(**data)
            yield episode


SUITE: Final[Suite[OpenEnvTarget]] = Suite(Protocol.OPENENV)


def at_site(server: ServerUnderTest) -> OpenEnvTarget:
    """Return the target of a URL: the protocol has one environment per URL, without a name."""
    return OpenEnvTarget(server, "")


def check_observation(body: dict[str, Any]) -> None:
    """Require `observation` to be an object, `done` a bool, `reward` a finite number or null. Raises `Failed`."""
    require(isinstance(body.get("observation"), dict), f"observation is {excerpt(body.get('observation'))}")
    require(isinstance(body.get("done"), bool), f"done is {excerpt(body.get('done'))}; a bool would be right")
    reward = body.get("reward")
    finite = reward is None or (isinstance(reward, int | float) and math.isfinite(reward))
    require(finite, f"reward is {excerpt(reward)}; a finite number or null would be right")
