"""Parts shared by the single and the vector adapter: the text space, the choice of tasks, the info of a step."""

import contextlib
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymfleet_contracts.frames import MAX_FRAME_BYTES
from gymfleet_contracts.session import EnvironmentSpec, OpenSession, Session, Split, StepResult, TaskRef
from gymnasium.spaces import Text

from gymfleet_client.errors import ClientError, UnknownTask
from gymfleet_client.sync import SyncGatewayClient

Info = dict[str, Any]

_OPTIONS: Final = ("task_id", "task_index", "split", "level")
_LONGEST_SAMPLE: Final = 256
_EPISODE_SEEDS: Final = 2**31


class UnicodeText(Text):  # type: ignore[misc]  # gymnasium is not a dependency of the type check
    """Any text of at most `max_length` characters; samples are short and consist of printable ASCII.

    Gymnasium's own `Text` lists its characters, and no list has all those that an environment may write.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is text that can be sent."""
        return isinstance(x, str) and len(x) <= self.max_length and _is_unicode(x)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short text, because a uniformly drawn length would mean megabytes."""
        if mask is None and probability is None:
            size = int(self.np_random.integers(min(self.max_length, _LONGEST_SAMPLE) + 1))
            return "".join(self.np_random.choice(self.character_list, size=size))
        text: str = super().sample(mask, probability)
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    @property
    def is_np_flattenable(self) -> bool:
        """Return False: texts cannot be flattened, because characters other than the sampled ones have no number."""
        return False


def observation_space() -> UnicodeText:
    """Return a space that holds every observation: none is longer than the message that carries it."""
    return UnicodeText(MAX_FRAME_BYTES)


def action_space(spec: EnvironmentSpec) -> UnicodeText:
    """Return the space of texts that the environment accepts as an action."""
    return UnicodeText(spec.max_action_chars)


def check_arguments(*, task_ids: Sequence[str] | None, render_mode: str | None) -> None:
    """Raise ValueError for arguments that no environment could accept."""
    if task_ids is not None and not task_ids:
        raise ValueError("task_ids is empty; leave it out to play the whole split")
    if render_mode not in (None, "ansi"):
        raise ValueError(f"render_mode {render_mode!r} is not known; there is 'ansi'")


def connect(base_url: str, env: str, api_key: str | None) -> tuple[SyncGatewayClient, EnvironmentSpec]:
    """Return a client and the environment's description."""
    client = SyncGatewayClient(base_url, api_key=api_key)
    try:
        return client, client.environment(env)
    except BaseException:
        client.close_connections()
        raise


class Tasks:
    """The choice of an episode's task: the named one, else one drawn by the episode's generator."""

    def __init__(
        self, spec: EnvironmentSpec, *, split: Split, level: str | None, task_ids: Sequence[str] | None
    ) -> None:
        self._spec = spec
        self._split = split
        self._level = level
        self._task_ids = None if task_ids is None else tuple(task_ids)
        self._counts: dict[tuple[str, str], int] = {}

    def open(
        self,
        client: SyncGatewayClient,
        rng: np.random.Generator,
        options: Mapping[str, Any] | None,
        lease_s: float | None,
    ) -> Session:
        """Open a session. It always draws twice from `rng`, so that equal generators give equal episodes."""
        options = options or {}
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise ValueError(f"unknown options {', '.join(unknown)}; known: {', '.join(_OPTIONS)}")
        draw, seed = float(rng.random()), int(rng.integers(_EPISODE_SEEDS))
        split, level = options.get("split", self._split), options.get("level", self._level)
        common = {"env": self._spec.name, "split": split, "level": level, "seed": seed, "lease_s": lease_s}
        named = {name: options[name] for name in ("task_id", "task_index") if options.get(name) is not None}
        if not named and self._task_ids is not None:
            named = {"task_id": self._task_ids[int(draw * len(self._task_ids))]}
        if named:
            return client.open(OpenSession.model_validate(common | named))
        return self._open_drawn(client, common, split, level, draw)

    def _open_drawn(
        self, client: SyncGatewayClient, common: dict[str, Any], split: str, level: str | None, draw: float
    ) -> Session:
        place = (split, level or self._spec.default_level)
        offered = next((count for name, count in self._spec.splits.items() if name == split), 0)
        count = self._counts.get(place, offered)
        if count < 1:
            raise ValueError(f"{self._spec.name} has no tasks in split {split!r}; it has {self._spec.splits}")
        try:
            return client.open(OpenSession.model_validate({**common, "task_index": int(draw * count)}))
        except UnknownTask as error:  # the spec counts the default level; the answer counts this one
            counted = (error.problem.model_extra or {}).get("count")
            if not isinstance(counted, int) or not 0 < counted < count:
                raise
            self._counts[place] = counted
        return self._open_drawn(client, common, split, level, draw)


def close_session(client: SyncGatewayClient, session: Session | None) -> None:
    """Close the session if that is possible now; otherwise its lease ends it."""
    if session is not None:
        with contextlib.suppress(ClientError):
            client.close(session.session_id)


def reset_info(task: TaskRef) -> Info:
    """Return the info that `reset` gives with the observation."""
    return {"task_id": task.task_id, "split": task.split, "level": task.level, "seed": task.seed}


def step_info(task: TaskRef, result: StepResult) -> Info:
    """Return the info that `step` gives with the observation; `environment` holds the environment's diagnostics."""
    info = reset_info(task) | {"score": result.score, "action_valid": result.action_valid}
    return info | {"environment": dict(result.info)}


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # the text has a lone surrogate
        return False
    return True
