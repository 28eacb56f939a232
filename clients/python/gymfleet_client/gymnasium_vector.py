"""A Gymnasium adapter: many sessions of one environment as a `gymnasium.vector.VectorEnv`, stepped in one call."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import gymnasium
import numpy as np
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import Session, SessionStep, Split, StepResult
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from gymfleet_client import _gymnasium
from gymfleet_client._gymnasium import Info
from gymfleet_client.errors import problem_error

__all__ = ["GymfleetVectorEnv"]

_AT_ONCE: Final = 16
_MAX_BATCH: Final = 4096

Texts = tuple[str, ...]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class _Opened:
    """A session that a sub-environment may continue with, and its generator after the draws for the session."""

    session: Session
    rng: np.random.Generator


class _Slot:
    """One sub-environment."""

    def __init__(self) -> None:
        self.rng: np.random.Generator = seeding.np_random()[0]
        self.session: Session | None = None
        self.index = 0
        self.observation = ""
        self.over = False

    def item(self, action: str) -> SessionStep:
        """Return the next step in the form that the batch call takes."""
        if self.session is None or self.over:
            raise gymnasium.error.ResetNeeded("there is no episode in some sub-environment: call reset first")
        return SessionStep(session_id=self.session.session_id, index=self.index, action=action)

    def begin(self, opened: _Opened) -> None:
        """Continue with a new session."""
        self.session, self.rng = opened.session, opened.rng
        self.index = 0
        self.observation = opened.session.observation
        self.over = False

    def take(self, result: StepResult) -> Info:
        """Count the step."""
        assert self.session is not None  # noqa: S101 - `item` was called
        self.index += 1
        self.observation = result.observation
        self.over = result.terminated or result.truncated
        return _gymnasium.step_info(self.session.task, result)


class GymfleetVectorEnv(VectorEnv):  # type: ignore[misc]  # gymnasium is not a dependency of the type check
    """`num_envs` sessions of one environment. Each step is one `POST /v1/steps`.

    Arguments are those of `GymfleetEnv`, and each sub-environment plays exactly like a
    `GymfleetEnv` with its seed. `autoreset_mode` is Gymnasium's: with `NEXT_STEP` the
    step after an episode's end resets it (its action is ignored), with `SAME_STEP` the
    step that ends an episode does, and with `DISABLED` the caller does, with
    `reset(options={"reset_mask": mask})`.

    When a sub-environment fails, `step` raises its `ProblemError`, with a note that
    names all that failed, and no sub-environment counts as stepped. After
    `reset(options={"reset_mask": mask})` of those that failed, sending the same actions
    again gives the others the results that they already have.
    """

    def __init__(
        self,
        base_url: str,
        env: str,
        num_envs: int,
        *,
        split: Split = "train",
        level: str | None = None,
        task_ids: Sequence[str] | None = None,
        api_key: str | None = None,
        lease_s: float | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        _gymnasium.check_arguments(task_ids=task_ids, render_mode=render_mode)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": ["ansi"], "render_fps": 1, "autoreset_mode": self.autoreset_mode}
        self._client, self.environment_spec = _gymnasium.connect(base_url, env, api_key)
        self._lease_s = lease_s
        self.single_observation_space = _gymnasium.observation_space()
        self.single_action_space = _gymnasium.action_space(self.environment_spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._tasks = _gymnasium.Tasks(self.environment_spec, split=split, level=level, task_ids=task_ids)
        self._slots = [_Slot() for _ in range(num_envs)]
        self._workers = ThreadPoolExecutor(min(num_envs, _AT_ONCE), "gymfleet-vector")

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Texts, Info]:
        """Open a session for each sub-environment, or for those in `options["reset_mask"]`.

        A number as `seed` seeds sub-environment i with `seed + i`. The other options are those of `GymfleetEnv.reset`.
        """
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = [seed + place for place in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} sub-environments; give one for each")
        options = dict(options or {})
        places = _places(options.pop("reset_mask", None), self.num_envs)
        for place in places:
            slot = self._slots[place]
            if seeds is not None and (own := seeds[place]) is not None:
                slot.rng = seeding.np_random(own)[0]
        fresh = self._open(places, options, close_first=True)
        infos: Info = {}
        for place, opened in fresh.items():
            self._slots[place].begin(opened)
            infos = self._add_info(infos, _gymnasium.reset_info(opened.session.task), place)
        return self._observations(), infos

    def step(self, actions: Sequence[str]) -> tuple[Texts, Floats, Bools, Bools, Info]:
        """Apply one action in each sub-environment."""
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} sub-environments")
        next_step, same_step = (
            self.autoreset_mode is mode for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
        )
        ended = [place for place, slot in enumerate(self._slots) if slot.over and next_step]
        results = self._play([place for place in range(self.num_envs) if place not in set(ended)], actions)
        if same_step:
            ended = [place for place, result in results.items() if result.terminated or result.truncated]
        # A session that gave a result is kept until its successor is open, because only then does the step count.
        fresh = self._open(ended, {}, close_first=next_step)
        left = [self._slots[place].session for place in ended if same_step]
        answer = self._take(results, fresh)
        list(self._workers.map(partial(_gymnasium.close_session, self._client), left))
        return answer

    def render(self) -> Texts | None:
        """Return the last observation of each sub-environment."""
        return self._observations() if self.render_mode == "ansi" else None

    def close_extras(self, **_: Any) -> None:
        """Close the sessions and the connections."""
        sessions = [slot.session for slot in self._slots]
        list(self._workers.map(partial(_gymnasium.close_session, self._client), sessions))
        self._workers.shutdown()
        self._client.close_connections()

    def _observations(self) -> Texts:
        return tuple(slot.observation for slot in self._slots)

    def _play(self, places: Sequence[int], actions: Sequence[str]) -> dict[int, StepResult]:
        items = [self._slots[place].item(actions[place]) for place in places]
        answers: list[StepResult | Problem] = []
        for first in range(0, len(items), _MAX_BATCH):
            answers += self._client.steps(items[first : first + _MAX_BATCH])
        if failed := {place: a for place, a in zip(places, answers, strict=True) if isinstance(a, Problem)}:
            error = problem_error(next(iter(failed.values())))
            error.add_note(f"sub-environments that failed: {', '.join(map(str, failed))}")
            raise error
        return {place: a for place, a in zip(places, answers, strict=True) if isinstance(a, StepResult)}

    def _open(self, places: Sequence[int], options: dict[str, Any], *, close_first: bool) -> dict[int, _Opened]:
        """Open all of the sessions or none."""

        def one(place: int) -> _Opened:
            slot = self._slots[place]
            if close_first:
                _gymnasium.close_session(self._client, slot.session)
            rng = deepcopy(slot.rng)
            return _Opened(self._tasks.open(self._client, rng, options, self._lease_s), rng)

        tries = {place: self._workers.submit(one, place) for place in places}
        wait(tries.values())
        errors = [error for attempt in tries.values() if (error := attempt.exception()) is not None]
        opened = {place: attempt.result() for place, attempt in tries.items() if attempt.exception() is None}
        if errors:
            for made in opened.values():
                _gymnasium.close_session(self._client, made.session)
            raise errors[0]
        return opened

    def _take(
        self, results: dict[int, StepResult], fresh: dict[int, _Opened]
    ) -> tuple[Texts, Floats, Bools, Bools, Info]:
        rewards = np.zeros(self.num_envs, np.float64)
        terminations = np.zeros(self.num_envs, np.bool_)
        truncations = np.zeros(self.num_envs, np.bool_)
        infos: Info = {}
        for place, slot in enumerate(self._slots):
            result, opened = results.get(place), fresh.get(place)
            if result is not None:
                info = slot.take(result)
                rewards[place] = result.reward
                terminations[place], truncations[place] = result.terminated, result.truncated
                if opened is not None:
                    info = {"final_obs": result.observation, "final_info": info}
                infos = self._add_info(infos, info, place)
            if opened is not None:
                slot.begin(opened)
                infos = self._add_info(infos, _gymnasium.reset_info(opened.session.task), place)
        return self._observations(), rewards, terminations, truncations, infos


def _places(mask: Any, num_envs: int) -> list[int]:
    if mask is None:
        return list(range(num_envs))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ValueError(f"reset_mask must be a numpy array of {num_envs} bools, at least one of them True")
    return [int(place) for place in np.flatnonzero(mask)]
