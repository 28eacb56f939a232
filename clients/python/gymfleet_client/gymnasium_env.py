"""A Gymnasium adapter: one session of the fleet as a `gymnasium.Env` of text. Needs `gymfleet[gymnasium]`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
from gymfleet_contracts.session import Session, Split

from gymfleet_client import _gymnasium
from gymfleet_client._gymnasium import Info
from gymfleet_client.gymnasium_vector import GymfleetVectorEnv
from gymfleet_client.sync import SyncGatewayClient

__all__ = ["GymfleetEnv", "GymfleetVectorEnv", "register"]


class GymfleetEnv(gymnasium.Env):  # type: ignore[misc]  # gymnasium is not a dependency of the type check
    """An environment behind a gateway or env server; observations and actions are text.

    Args:
        base_url: `http(s)://host:port` of the gateway or env server.
        env: the environment's name.
        split: the split from which tasks are drawn.
        level: the difficulty; without it, the environment's default level.
        task_ids: play only these tasks.
        api_key: sent as a bearer token when given.
        lease_s: the session is closed if it is unused for this long; without it, the server's default applies.
        render_mode: "ansi" renders the last observation.

    `reset(seed=...)` draws the task and the episode seed from the seed; `options` may hold
    `task_id` or `task_index`, `split` and `level`. Every call raises the errors of
    `SyncGatewayClient`. After `SessionLost` (the process behind the session died) only
    `reset` works: an episode is never replaced without a request. A `step` that failed
    because no answer came may be called again: it is executed once.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        base_url: str,
        env: str,
        *,
        split: Split = "train",
        level: str | None = None,
        task_ids: Sequence[str] | None = None,
        api_key: str | None = None,
        lease_s: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        _gymnasium.check_arguments(task_ids=task_ids, render_mode=render_mode)
        self.render_mode = render_mode
        self._client, self.environment_spec = _gymnasium.connect(base_url, env, api_key)
        self._lease_s = lease_s
        self.observation_space = _gymnasium.observation_space()
        self.action_space = _gymnasium.action_space(self.environment_spec)
        self._tasks = _gymnasium.Tasks(self.environment_spec, split=split, level=level, task_ids=task_ids)
        self._session: Session | None = None
        self._index = 0
        self._observation = ""

    @property
    def session(self) -> Session | None:
        """The current session, as it was opened."""
        return self._session

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Close the current session and open the next one."""
        super().reset(seed=seed)
        previous, self._session = self._session, None
        _gymnasium.close_session(self._client, previous)
        self._session = self._tasks.open(self._client, self.np_random, options, self._lease_s)
        self._index = 0
        self._observation = self._session.observation
        return self._observation, _gymnasium.reset_info(self._session.task)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Apply one action."""
        if self._session is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset first")
        result = self._client.step(self._session.session_id, self._index, action)
        self._index += 1
        self._observation = result.observation
        info = _gymnasium.step_info(self._session.task, result)
        return result.observation, result.reward, result.terminated, result.truncated, info

    def render(self) -> str | None:
        """Return the last observation."""
        return self._observation if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the session and the connections; safe to call twice."""
        previous, self._session = self._session, None
        _gymnasium.close_session(self._client, previous)
        self._client.close_connections()


def register(base_url: str, *, api_key: str | None = None) -> list[str]:
    """Make every environment at `base_url` known to `gymnasium.make`, as `gymfleet/NAME-v0`; returns the ids."""
    with SyncGatewayClient(base_url, api_key=api_key) as client:
        specs = client.environments()
    return [
        _register(base_url, spec.name, api_key, deterministic=spec.capabilities.deterministic and not spec.models)
        for spec in specs
    ]


def _register(base_url: str, name: str, api_key: str | None, *, deterministic: bool) -> str:
    # These are functions, not a class with keyword arguments: those are printed with every spec, and one is a secret.
    def single(**kwargs: Any) -> GymfleetEnv:
        return GymfleetEnv(base_url, name, api_key=api_key, **kwargs)

    def vector(num_envs: int, **kwargs: Any) -> GymfleetVectorEnv:
        return GymfleetVectorEnv(base_url, name, num_envs, api_key=api_key, **kwargs)

    env_id = f"gymfleet/{name}-v0"
    gymnasium.registry.pop(env_id, None)  # the fleet's address may have changed
    gymnasium.register(env_id, entry_point=single, vector_entry_point=vector, nondeterministic=not deterministic)
    return env_id
