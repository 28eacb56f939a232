"""The parts that the dialects of AgentGym's servers share: bodies, results and common routes."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import Depends, Request, Response
from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.session import RECOVERED
from gymfleet_kit.problems import problem_responses
from gymfleet_kit.session_problems import (
    ActionTooLarge,
    EnvironmentFailed,
    SessionLost,
    StepOutOfOrder,
    UnknownEnvironment,
    UnknownSession,
)
from pydantic import BaseModel, Field

from gymfleet_env_gateway.errors import (
    Forbidden,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
    Unavailable,
    UpstreamTimeout,
)
from gymfleet_env_gateway.fronts.agentgym.sessions import AgentGymSessions

PREFIX: Final = "/agentgym"
Number = Annotated[int, NUMBER]
_encode_json: Final = msgspec.json.Encoder().encode
TaskNumber = Annotated[int, Field(ge=0, lt=2**63), NUMBER]


class Mistake(BaseModel):
    """What a client is told when the mistake is its own."""

    error: str


async def get_sessions(request: Request) -> AgentGymSessions:
    """Return the app's AgentGym sessions."""
    sessions: AgentGymSessions = request.app.state.agentgym
    return sessions


SessionsDep = Annotated[AgentGymSessions, Depends(get_sessions)]
FAILURES: Final = problem_responses(
    Unauthorized, Forbidden, UnknownEnvironment, UnknownSession, ActionTooLarge, StepOutOfOrder, SessionLost, QueueFull,
    QuotaExceeded, RateLimited, EnvironmentFailed, Unavailable, UpstreamTimeout,
)  # fmt: skip


def stepped(result: dict[str, Any], seen: str = "observation") -> dict[str, Any]:
    """Return the answer to a step, with the observation under the name `seen`.

    It has no score, and no info except that the session was recovered: AgentGym's clients read neither, and nothing
    of the task's solution may leak.
    """
    done = bool(result["terminated"] or result["truncated"])
    answer = {seen: result["observation"], "reward": float(result["reward"]), "done": done}
    recovered = result["info"].get(RECOVERED)
    return answer if recovered is None else {**answer, "info": {RECOVERED: recovered}}


def answered(body: dict[str, Any]) -> Response:
    """Return the response to a step, which is the most frequent call of these clients."""
    return Response(_encode_json(body), media_type="application/json")
