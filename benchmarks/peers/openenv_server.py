"""The trivial environment on OpenEnv's own server, for the peers' virtual environment, which has none of our code."""

from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app


class EchoAction(Action):
    """The message to echo."""

    message: str


class EchoObservation(Observation):
    """The echo, with a count."""

    text: str


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """Echoes the action and counts."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=None, step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> EchoObservation:
        """Begin an episode."""
        self._state = State(episode_id=episode_id, step_count=0)
        return EchoObservation(text=f"ready {seed}")

    def step(self, action: EchoAction, **_: Any) -> EchoObservation:
        """Echo the action."""
        self._state.step_count += 1
        return EchoObservation(text=f"{action.message} {self._state.step_count}", reward=1.0)

    @property
    def state(self) -> State:
        """The episode's id and step count."""
        return self._state


app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=8192)
