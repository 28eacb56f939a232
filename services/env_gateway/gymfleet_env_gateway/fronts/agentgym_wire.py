"""What the dialects of AgentGym's servers share: bodies, results, and what all of them serve."""

from typing import Annotated, Any, Final

from fastapi import Depends, Request
from gymfleet_contracts.numbers import NUMBER
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
from gymfleet_env_gateway.fronts.agentgym_sessions import AgentGymSessions

PREFIX: Final = "/agentgym"
Number = Annotated[int, NUMBER]
TaskNumber = Annotated[int, Field(ge=0, lt=2**63), NUMBER]


class Mistake(BaseModel):
    """What a client is told when the mistake is its own."""

    error: str


async def get_sessions(request: Request) -> AgentGymSessions:
    """The app's AgentGym ids."""
    sessions: AgentGymSessions = request.app.state.agentgym
    return sessions


SessionsDep = Annotated[AgentGymSessions, Depends(get_sessions)]
FAILURES: Final = problem_responses(
    Unauthorized, Forbidden, UnknownEnvironment, UnknownSession, ActionTooLarge, StepOutOfOrder, SessionLost, QueueFull,
    QuotaExceeded, RateLimited, EnvironmentFailed, Unavailable, UpstreamTimeout,
)  # fmt: skip


def stepped(result: dict[str, Any], seen: str = "observation") -> dict[str, Any]:
    """The answer to a step, with the observation under the name `seen`.

    No info, no score: AgentGym's clients read neither, and nothing of the task's solution may leave.
    """
    done = bool(result["terminated"] or result["truncated"])
    return {seen: result["observation"], "reward": float(result["reward"]), "done": done}
