"""The reference OpenEnv server with its smallest environment: `python openenv_echo_server.py PORT`.

Runs in the venv of the peers, which has `openenv` and nothing of ours.
"""

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class EchoAction(Action):
    """What to echo."""

    message: str


class EchoObservation(Observation):
    """The echo, and how often there was one."""

    text: str
    n: int = 0


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """Echoes; `seed` draws the first text."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=None, step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> EchoObservation:
        """Begin."""
        drawn = random.Random(seed)
        self._state = State(episode_id=episode_id or f"{random.getrandbits(64):x}", step_count=0)
        return EchoObservation(text=f"ready {drawn.randrange(1000)}")

    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
        """Echo."""
        self._state.step_count += 1
        return EchoObservation(text=action.message, n=self._state.step_count, reward=1.0)

    @property
    def state(self) -> State:
        """Id and count."""
        return self._state


if __name__ == "__main__":
    app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=64)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
