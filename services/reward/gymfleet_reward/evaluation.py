"""One term of the reward for some episodes: attempts, and what counts as an answer."""

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any, Final, NamedTuple, TypeGuard

from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.retries import Retries

from gymfleet_reward.component import Component, ComponentError, Versioned
from gymfleet_reward.plugins import Term
from gymfleet_reward.user_code import UserCode

_ATTEMPTS: Final = 3
_FIRST_PAUSE_S: Final = 0.2
"""Pause before the second attempt at a component, during which its dependencies may come back."""
_SHOWN: Final = 80


class Raw(NamedTuple):
    """A component's answer for one episode, before its weight."""

    total: float
    turns: tuple[float, ...] | None = None
    """The parts of the total, if they belong to single turns."""
    version: str = ""
    """The version that answered, if it may change while the service runs; otherwise that of the term counts."""


def answered(component: Component[Any], episode: Trajectory) -> Raw | Exception:
    """Return the answer of a component that is immediate (see `Term`), or why there is none."""
    try:
        return _checked(component.score(episode), episode)
    except Exception as error:  # noqa: BLE001 - it is the outcome
        return error


def evaluate(term: Term, episodes: Sequence[Trajectory], user_code: UserCode) -> list[Raw | Exception]:
    """Return the answer for each episode, or why there is none; blocks while failures are tried again.

    A component that compares the episodes of a group gets one group: either all its episodes have answers, or none has.
    """
    evaluation = _Evaluation(term, episodes, user_code)
    retries = Retries(
        "component.retried", on=Exception, unless=ComponentError, first_pause_s=_FIRST_PAUSE_S, level="info",
        bound={"component": term.label, "trajectory_id": episodes[0].trajectory_id},
    )  # fmt: skip
    with contextlib.suppress(Exception):  # it stands among the outcomes
        retries.call_blocking(evaluation.attempt, attempts=_ATTEMPTS)
    return evaluation.outcomes


class _Evaluation:
    def __init__(self, term: Term, episodes: Sequence[Trajectory], user_code: UserCode) -> None:
        self._term = term
        self._episodes = episodes
        self._user_code = user_code
        self._open = list(range(len(episodes)))
        self.outcomes: list[Raw | Exception] = [ComponentError("not scored")] * len(episodes)

    def attempt(self) -> None:
        """Score the episodes that have no final outcome yet. Raises the first failure that may pass."""
        episodes = [self._episodes[place] for place in self._open]
        outcomes = [
            _outcome(answer, episode) for answer, episode in zip(self._answers(episodes), episodes, strict=True)
        ]
        if self._term.component.per == "group":
            failure = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
            outcomes = outcomes if failure is None else [failure] * len(outcomes)
        for place, outcome in zip(self._open, outcomes, strict=True):
            self.outcomes[place] = outcome
        failures = {place: outcome for place, outcome in enumerate(self.outcomes) if _may_pass(outcome)}
        self._open = list(failures)
        for failure in failures.values():
            raise failure

    def _answers(self, episodes: list[Trajectory]) -> list[Any]:
        component = self._term.component
        if component.in_batches():
            return self._batch(episodes)
        calls = [partial(component.score, episode) for episode in episodes]
        if inspect.iscoroutinefunction(component.score):
            return self._user_code.gather(calls)
        return [self._called(call) for call in calls]

    def _batch(self, episodes: list[Trajectory]) -> list[Any]:
        component = self._term.component
        call = partial(component.score_batch, episodes)
        if inspect.iscoroutinefunction(component.score_batch):
            (answers,) = self._user_code.gather([call])
        else:
            answers = self._called(call)
        if isinstance(answers, list | tuple) and len(answers) == len(episodes):
            return list(answers)
        if not isinstance(answers, Exception):
            found = f"{len(answers)} values" if isinstance(answers, list | tuple) else _shown(answers)
            answers = ComponentError(f"it answered {found} for {len(episodes)} episodes")
        return [answers] * len(episodes)

    def _called(self, call: Callable[[], Any]) -> Any:
        try:
            return self._user_code.call(call)
        except Exception as error:  # noqa: BLE001 - it is the outcome
            return error


def _may_pass(outcome: Raw | Exception) -> TypeGuard[Exception]:
    return isinstance(outcome, Exception) and not isinstance(outcome, ComponentError)


def _outcome(answer: Any, episode: Trajectory) -> Raw | Exception:
    """Return the outcome of a component's answer for an episode."""
    if isinstance(answer, Exception):
        return answer
    if not isinstance(answer, Versioned):
        return _checked(answer, episode)
    outcome = _checked(answer.answer, episode)
    return outcome._replace(version=answer.version) if isinstance(outcome, Raw) else outcome


def _checked(answer: Any, episode: Trajectory) -> Raw | ComponentError:
    """Return a component's answer for an episode, or an error if it is not one."""
    if type(answer) is float and math.isfinite(answer):  # as most are
        return Raw(answer)
    if not isinstance(answer, list | tuple):
        return Raw(float(answer)) if _is_number(answer) else ComponentError(f"it answered {_shown(answer)}")
    if len(answer) != len(episode.turns):
        return ComponentError(f"it answered {len(answer)} values for {len(episode.turns)} turns")
    if wrong := [value for value in answer if not _is_number(value)]:
        return ComponentError(f"it answered {_shown(wrong[0])} for a turn")
    turns = tuple(float(value) for value in answer)
    try:
        return Raw(math.fsum(turns), turns)
    except OverflowError:
        return ComponentError("the sum over its turns is not finite")


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float can be
        return False


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
