"""Any Gymnasium environment that is played in text, in one line.

`ENVIRONMENT = from_gymnasium("FrozenLake-v1", actions=("left", "down", "right", "up"), solved_at=1.0)`
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, Final

import gymnasium
from gymfleet_contracts.session import ForkSupport
from gymnasium.spaces import Discrete, Text

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import GeneratedTasks, TaskSource

Observe = Callable[[Any, Mapping[str, Any]], str]
"""Turns an observation and its info into text."""
_NAME: Final = re.compile(r"[^a-z0-9]+")
_SEEDS: Final = 2**31
_HIGHLIGHTED: Final = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class _FromGymnasium(Environment[int]):
    """A Gymnasium environment; a task is the seed that it is reset with."""

    fork: ClassVar[ForkSupport] = ForkSupport.REPLAY
    id: ClassVar[str]
    arguments: ClassVar[Mapping[str, Any]]
    actions: ClassVar[tuple[str, ...]]
    solved_at: ClassVar[float]
    observe: ClassVar[Observe | None]

    def __init__(self) -> None:
        self._inner: gymnasium.Env[Any, Any] = gymnasium.make(self.id, **self.arguments)
        self._return = 0.0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:
        """Seeds; there are no benchmark files."""
        del data
        return GeneratedTasks(cls.name, _seed, str, levels=("only",))

    def reset(self, task: int, seed: int) -> str:
        """Reset with the task's seed. The session's own seed changes nothing."""
        del seed
        observation, info = self._inner.reset(seed=task)
        return self._shown(observation, info)

    def step(self, action: str) -> Outcome:
        """Take the action of that name, or the text itself as the action."""
        taken = self._taken(action.strip())
        if taken is None:
            names = ", ".join(self.actions)
            told = f"There is no action {action.strip()[:100]!r}. Take one of: {names}." if names else "Not understood."
            return Outcome(told, score=self._score(), action_valid=False)
        observation, reward, terminated, truncated, info = self._inner.step(taken)
        self._return += float(reward)
        return Outcome(
            self._shown(observation, info),
            reward=float(reward),
            terminated=bool(terminated or truncated),
            score=self._score(),
            info={"truncated": True} if truncated else {},
        )

    def admissible_actions(self) -> Sequence[str] | None:
        """All named actions; which of them the current state allows is not known."""
        return self.actions or None

    def close(self) -> None:
        """Close the Gymnasium environment."""
        self._inner.close()

    def _taken(self, action: str) -> Any:
        if self.actions:
            names = [name.lower() for name in self.actions]
            return names.index(action.lower()) if action.lower() in names else None
        return action if self._inner.action_space.contains(action) else None

    def _shown(self, observation: Any, info: Mapping[str, Any]) -> str:
        if (observe := type(self).observe) is not None:
            return observe(observation, info)
        return observation if isinstance(observation, str) else _plain(self._rendered())

    def _rendered(self) -> str:
        """Return the rendering, which Gymnasium allows to be a file of text. Raises TypeError if it is no text."""
        rendered: Any = self._inner.render()
        if isinstance(rendered, StringIO):
            return rendered.getvalue()
        if not isinstance(rendered, str):
            raise TypeError(f"{self.id} renders {type(rendered).__name__}, no text: give observe")
        return rendered

    def _score(self) -> float:
        return min(1.0, max(0.0, self._return / self.solved_at))


def from_gymnasium(
    id: str,  # noqa: A002 - Gymnasium's own word
    *,
    solved_at: float,
    actions: Sequence[str] = (),
    instructions: str | None = None,
    observe: Observe | None = None,
    max_turns: int | None = None,
    name: str | None = None,
    version: str = "1",
    deterministic: bool = True,
    **arguments: Any,
) -> type[Environment[int]]:
    """Return a registered Gymnasium environment as a gymfleet environment.

    Observations are text, are rendered as `ansi`, or are turned into text by `observe`. Actions are text, or numbers
    from 0, which `actions` names. The environment's own truncation ends the episode with `info["truncated"]`.

    Args:
        id: as `gymnasium.make` takes it; `module:Name-v0` imports the module that registers it.
        solved_at: the sum of rewards that is success; the score is the fraction of it that was reached.
        actions: names of the actions of a `Discrete` space, in its order.
        instructions: rules for the model; by default the environment's docstring and the names of its actions.
        observe: turns an observation and its info into text.
        max_turns: limit on an episode's turns; by default the environment's own `max_episode_steps`.
        name: gymfleet's name of the environment; by default derived from `id`.
        version: raise it when episodes change.
        deterministic: whether the same seed and actions give the same episode.
        arguments: arguments for `gymnasium.make`.

    Raises:
        ValueError: observations or actions cannot be played as text, or nothing bounds the episodes.
    """
    if solved_at <= 0:
        raise ValueError(f"{id}: solved_at is the sum of rewards that is success, and must be above 0")
    made, arguments = _make(id, observe, arguments)
    try:
        _check_actions(id, made.action_space, actions)
        limit = max_turns or (made.spec.max_episode_steps if made.spec is not None else None)
        if limit is None:
            raise ValueError(f"{id}: nothing bounds its episodes: give max_turns")
        rules = instructions or _described(made, actions)
    finally:
        made.close()
    title = name or _NAME.sub("_", id.rpartition(":")[2].rpartition("/")[2].lower()).strip("_")
    fields = {
        "name": title, "version": version, "summary": f"Gymnasium's {id}", "instructions": rules, "max_turns": limit,
        "deterministic": deterministic, "id": id, "arguments": arguments, "actions": tuple(actions),
        "solved_at": solved_at, "observe": None if observe is None else staticmethod(observe),
    }  # fmt: skip
    return type("FromGymnasium", (_FromGymnasium,), fields)


def _make(
    id: str,  # noqa: A002
    observe: Observe | None,
    arguments: Mapping[str, Any],
) -> tuple[gymnasium.Env[Any, Any], dict[str, Any]]:
    """Make the environment; it renders as text if its observations are not text."""
    made = gymnasium.make(id, **arguments)
    if observe is not None or isinstance(made.observation_space, Text):
        return made, dict(arguments)
    modes, space = made.metadata.get("render_modes", ()), made.observation_space
    made.close()
    if "ansi" not in modes:
        raise ValueError(f"{id}: its observations are {space}, and it renders no text: give observe")
    with_text = {**arguments, "render_mode": "ansi"}
    return gymnasium.make(id, **with_text), with_text


def _check_actions(id: str, space: Any, actions: Sequence[str]) -> None:  # noqa: A002
    if isinstance(space, Text):
        if actions:
            raise ValueError(f"{id}: its actions are texts: leave actions out")
        return
    if not isinstance(space, Discrete) or space.start != 0:
        raise ValueError(f"{id}: its actions are {space}: only texts, and numbers from 0, can be taken here")
    if len({name.lower() for name in actions}) != space.n:
        raise ValueError(f"{id}: it has {space.n} actions, and actions names {len(actions)}: name each, all different")


def _described(made: gymnasium.Env[Any, Any], actions: Sequence[str]) -> str:
    text = " ".join((made.unwrapped.__doc__ or "").split("\n\n")[0].split())
    return " ".join(part for part in (text, f"Actions: {', '.join(actions)}." if actions else "") if part)


def _plain(rendered: str) -> str:
    """Return a rendering without colours; highlighted parts, which matter most, are put in brackets."""
    return _ESCAPE.sub("", _HIGHLIGHTED.sub(r"[\1]", rendered)).strip("\n")


def _seed(rng: random.Random, level: str) -> int:
    del level
    return rng.randrange(_SEEDS)
