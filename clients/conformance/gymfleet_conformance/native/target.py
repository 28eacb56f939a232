"""The common part of the session API's checks: sessions, steps, problems and frames."""

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import httpx
from gymfleet_contracts import problems
from gymfleet_contracts.faults import faults
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE
from gymfleet_contracts.session import EnvironmentSpec, ForkSupport, Session, StepResult
from pydantic import BaseModel, ValidationError

from gymfleet_conformance.check import Need, Protocol, Suite
from gymfleet_conformance.native.frames import Frames, framing
from gymfleet_conformance.server_under_test import (
    Failed,
    NotApplicable,
    ServerUnderTest,
    Target,
    excerpt,
    require,
    shown,
)

Kind = tuple[int, str]
"""A problem's status and type."""
UNKNOWN_SESSION: Final[Kind] = (404, problems.UNKNOWN_SESSION)
UNKNOWN_TASK: Final[Kind] = (404, problems.UNKNOWN_TASK)
UNKNOWN_ENVIRONMENT: Final[Kind] = (404, problems.UNKNOWN_ENVIRONMENT)
OUT_OF_ORDER: Final[Kind] = (409, problems.STEP_OUT_OF_ORDER)
EPISODE_OVER: Final[Kind] = (409, problems.EPISODE_OVER)
TOO_LARGE: Final[Kind] = (413, problems.ACTION_TOO_LARGE)
INVALID: Final[Kind] = (422, problems.VALIDATION)
FORK_UNSUPPORTED: Final[Kind] = (409, problems.FORK_UNSUPPORTED)
NO_EXPERT: Final[Kind] = (409, problems.EXPERT_UNAVAILABLE)
INVALID_TOOL_CALL: Final[Kind] = (422, problems.INVALID_TOOL_CALL)
NOT_YOUR_TURN: Final[Kind] = (409, problems.NOT_YOUR_TURN)
NO_SEATS: Final[Kind] = (409, problems.NO_SEATS)
FORBIDDEN: Final[Kind] = (403, problems.FORBIDDEN)
NO_ACTIONS: Final[Kind] = (409, problems.ACTIONS_UNAVAILABLE)
DULL: Final = "look"
"""An action that an environment probably does not understand; it takes a turn and seldom ends an episode."""
MAX_PLAYED_TURNS: Final = 300
_TASKS_TRIED: Final = 12
M = TypeVar("M", bound=BaseModel)


class NativeTarget(Target):
    """One environment behind the session API."""

    def __init__(self, server: ServerUnderTest, spec: EnvironmentSpec) -> None:
        super().__init__(server, spec.name)
        self.spec = spec
        self._opened: list[str] = []

    @property
    def repeatable(self) -> bool:
        """Whether the same actions lead to the same episode again; a model asked twice may reply differently."""
        return self.spec.capabilities.deterministic and not self.spec.models

    def lacks(self, need: str) -> str | None:
        """Return why a check does not apply, according to the environment's own declaration."""
        can = self.spec.capabilities
        missing = {
            Need.DETERMINISTIC: not self.repeatable,
            Need.EXPERT: not can.expert,
            Need.FORK: can.fork is ForkSupport.NONE,
            Need.NO_FORK: can.fork is not ForkSupport.NONE,
            Need.STATE_KEYS: not can.state_keys,
            Need.ACTIONS: not can.admissible_actions,
            Need.NO_ACTIONS: can.admissible_actions,
            Need.SEATS: not self.spec.seats,
            Need.NO_SEATS: bool(self.spec.seats),
        }
        if not missing.get(Need(need)):
            return None
        asks = f", and asks {', '.join(role.name for role in self.spec.models)}" if self.spec.models else ""
        seats = f", and has the seats {', '.join(self.spec.seats)}" if self.spec.seats else ""
        return f"{self.env} says of itself: {can.model_dump_json()}{asks}{seats}"

    async def release(self) -> None:
        """Delete every known session."""
        for session_id in self._opened:
            with suppress(httpx.HTTPError):
                await self.call("DELETE", session_id)

    async def call(self, method: str, session_id: str, tail: str = "", **options: Any) -> httpx.Response:
        """Send a request about a session; `tail` is the part of the path after the id."""
        return await self.server.request(method, f"/v1/sessions/{session_id}{tail}", **options)

    async def try_open(self, **fields: Any) -> httpx.Response:
        """Send `POST /v1/sessions` for this environment; by default for task 0 of the train split."""
        body = {"env": self.env, **({} if "task_id" in fields else {"task_index": 0}), **fields}
        response = await self.server.request("POST", "/v1/sessions", json=body)
        self._remember(response)
        return response

    async def open(self, **fields: Any) -> Session:
        """Open a session and return it. Raises `Failed`."""
        session = read(Session, await self.try_open(**fields), 201)
        require(session.index == 0, f"a new session has index {session.index}; 0 would be right")
        return session

    def adopt(self, *session_ids: str) -> None:
        """Register sessions that were made in another way, so that they are closed at the end."""
        self._opened.extend(session_ids)

    async def try_step(self, session_id: str, index: object, action: object) -> httpx.Response:
        """Send `POST .../steps` and return any answer."""
        return await self.call("POST", session_id, "/steps", json={"index": index, "action": action})

    async def step(self, session_id: str, index: int, action: str) -> StepResult:
        """Take a step that must be carried out. Raises `Failed`."""
        return read(StepResult, await self.try_step(session_id, index, action))

    async def get(self, session_id: str) -> Session:
        """Return the session's present state. Raises `Failed`."""
        return read(Session, await self.call("GET", session_id))

    async def fork(self, session_id: str, count: int = 1) -> list[Session]:
        """Fork a session and return its children. Raises `Failed`."""
        response = await self.call("POST", session_id, "/fork", json={"count": count})
        children = read_list(Session, response, 201)
        self.adopt(*(child.session_id for child in children))
        require(len(children) == count, f"asked for {count} children, got {len(children)}")
        return children

    async def close(self, session_id: str) -> None:
        """Send `DELETE`, which must be answered with 204. Raises `Failed`."""
        response = await self.call("DELETE", session_id)
        require(response.status_code == 204, f"closing answered {shown(response)}; 204 would be right")

    async def move(self, session_id: str) -> str:
        """Return an action that changes something: the expert's, if there is one."""
        if self.spec.capabilities.expert:
            response = await self.call("GET", session_id, "/expert")
            if response.status_code == 200:
                action: str = response.json()["action"]
                return action
        return DULL

    async def play(self, session_id: str, limit: int) -> list[tuple[str, StepResult]]:
        """Play at most `limit` moves from the episode's start; return actions and results."""
        moves: list[tuple[str, StepResult]] = []
        while len(moves) < limit and not (moves and over(moves[-1][1])):
            action = await self.move(session_id)
            moves.append((action, await self.step(session_id, len(moves), action)))
        return moves

    async def play_to_the_end(self, session_id: str, action: str = DULL) -> list[StepResult]:
        """Repeat one action until the episode is over. Raises `Failed` past the turn limit."""
        if self.spec.max_turns > MAX_PLAYED_TURNS:
            raise NotApplicable(f"episodes of {self.spec.max_turns} turns are too long to play here")
        results: list[StepResult] = []
        while not (results and over(results[-1])):
            most = self.spec.max_turns
            require(len(results) < most, f"the episode goes on after {most} turns, which is max_turns")
            results.append(await self.step(session_id, len(results), action))
        return results

    async def started(self, steps: int = 1, task_index: int = 0) -> tuple[Session, list[tuple[str, StepResult]]]:
        """Return a session after `steps` moves with its episode not over, of the first such task from `task_index` on.

        Raises `NotApplicable` if all tasks of a sample are over after these moves.
        """
        count = self.spec.splits.get("train", 0)
        for index in range(task_index, max(min(task_index + _TASKS_TRIED, count), task_index + 1)):
            session = await self.open(task_index=index)
            moves = await self.play(session.session_id, steps)
            if len(moves) == steps and not over(moves[-1][1]):
                return session, moves
        raise NotApplicable(f"no episode of {_TASKS_TRIED} tasks goes on after {steps} moves")

    def same(self, one: StepResult, other: StepResult) -> bool:
        """Return whether results are equal, leaving out texts if the environment declares that they may differ."""
        unlike = {"info"} if self.spec.capabilities.stable_observations else {"info", "observation"}
        return one.model_dump(exclude=unlike) == other.model_dump(exclude=unlike)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Frames]:
        """Open a socket of `WS /v1/stream`; sessions that it makes are closed at the end."""
        async with framing(self.server.socket_url("/v1/stream"), self.server.headers, self.adopt) as frames:
            yield frames

    def _remember(self, response: httpx.Response) -> None:
        if response.status_code == 201:
            with suppress(ValueError, KeyError, TypeError):
                self.adopt(str(response.json()["session_id"]))


SUITE: Final[Suite[NativeTarget]] = Suite(Protocol.NATIVE)


def over(result: StepResult | Session) -> bool:
    """Return whether the episode takes no further step."""
    return result.terminated or result.truncated


def read(model: type[M], response: httpx.Response, status: int = 200) -> M:
    """Read the answer as a wire model. Raises `Failed`."""
    require(response.status_code == status, f"saw {shown(response)}; {status} would be right")
    return parse(model, response.content)


def parse(model: type[M], content: bytes) -> M:
    """Read JSON as a wire model. Raises `Failed`."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        seen = excerpt(content.decode(errors="replace"))
        raise Failed(f"not a {model.__name__}: {faults(error, most=1)}: {seen}") from None


def read_list(model: type[M], response: httpx.Response, status: int = 200) -> list[M]:
    """Read the answer as a list of wire models. Raises `Failed`."""
    require(response.status_code == status, f"saw {shown(response)}; {status} would be right")
    body = json.loads(response.content)
    require(isinstance(body, list), f"saw {shown(response)}; a list would be right")
    return [model.model_validate(item) for item in body]


def refused(response: httpx.Response, *kinds: Kind) -> dict[str, Any]:
    """Return the problem, which must be one of `kinds`. Raises `Failed`."""
    problem = problem_of(response)
    seen = (response.status_code, problem.get("type"))
    right = " or ".join(f"{status} {kind}" for status, kind in kinds)
    require(seen in kinds, f"saw {seen[0]} {seen[1]} {excerpt(problem.get('detail', ''))}; {right} would be right")
    return problem


def problem_of(response: httpx.Response) -> dict[str, Any]:
    """Read the answer as a problem document of RFC 9457. Raises `Failed`."""
    media = response.headers.get("content-type", "none").partition(";")[0]
    require(response.is_error, f"saw {shown(response)}; a refusal would be right")
    require(media == PROBLEM_MEDIA_TYPE, f"saw {shown(response)} as {media}; {PROBLEM_MEDIA_TYPE} would be right")
    body = json.loads(response.content)
    require(isinstance(body, dict) and "title" in body, f"not a problem document: {shown(response)}")
    require(
        body.get("status", response.status_code) == response.status_code,
        f"the document says {body.get('status')}, the response {response.status_code}",
    )
    problem: dict[str, Any] = body
    return problem


def sound(result: StepResult, index: int) -> None:
    """Require index, reward and score to match the contract. Raises `Failed`."""
    require(result.index == index, f"step {index} was answered with index {result.index}")
    require(math.isfinite(result.reward), f"reward {result.reward} of step {index}; a finite number would be right")
    require(0 <= result.score <= 1, f"score {result.score} of step {index}; between 0 and 1 would be right")
    require(not (result.terminated and result.truncated), f"step {index} is both terminated and truncated")


def all_equal(results: Sequence[object]) -> bool:
    """Return whether all results are the same."""
    return all(result == results[0] for result in results)
