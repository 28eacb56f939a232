"""Components that compare the answer an episode ends with to the right one."""

from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any, ClassVar, Literal, TypeVar

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Answer, Component, ComponentError, ComponentOptions, turns_of
from gymfleet_reward.ground_truth import Place, ground_truth


class AnswerOptions(ComponentOptions):
    """Where the answer and the right one stand."""

    ground_truth_from: Place
    """`private.KEY`, `info.KEY` or `task.task_id`: where the right answer stands. In a list, any answer is right."""
    answer_from: Literal["action", "reply", "tag"] = "action"
    """`action`: the last action, between `prefix` and `suffix`; `reply`: the whole last reply; `tag`: what the last
    `<answer>` of the last reply holds."""
    prefix: str = ""
    """What an action that answers begins with, such as `answer(`; another action is no answer."""
    suffix: str = ""
    """What it ends with."""


OptionsT = TypeVar("OptionsT", bound=AnswerOptions)


class AnswerComponent(Component[OptionsT]):
    """Compares the last answer with the right ones: the best comparison counts. No answer is worth 0."""

    alternatives: ClassVar[bool] = True
    """Whether a list holds several right answers; otherwise it is one answer."""

    @abstractmethod
    def compared(self, answer: str, right: Any) -> float:
        """Return how right an answer is, in [0, 1]. Raises `ComponentError` for a right answer that is none."""

    def score(self, episode: Trajectory) -> Answer | Awaitable[Answer]:
        """See `Component`."""
        return self.best(episode)

    def best(self, episode: Trajectory) -> float:
        """Return how right the episode's answer is. Raises `ComponentError` where there is nothing to compare with."""
        turns_of(episode)
        told = ground_truth(self, self.options.ground_truth_from, episode)
        right = told if self.alternatives and isinstance(told, list) else [told]
        if not right:
            raise ComponentError(f"{self.options.ground_truth_from} is an empty list: no answer is right")
        answer = self._answer(episode)
        found = [self.compared("" if answer is None else answer, one) for one in right]  # also when there is no answer
        return 0.0 if answer is None else max(found)

    def _answer(self, episode: Trajectory) -> str | None:
        last, options = episode.turns[-1], self.options
        match options.answer_from:
            case "action":
                action = (last.action or "").strip()
                if not action or not (action.startswith(options.prefix) and action.endswith(options.suffix)):
                    return None
                return action[len(options.prefix) : len(action) - len(options.suffix)].strip() or None
            case "tag":
                _, opened, rest = last.text.rpartition("<answer>")
                inside, closed, _ = rest.partition("</answer>")
                return inside.strip() or None if opened and closed else None
            case _:
                return last.text.strip() or None


def text_of(right: Any, place: str) -> str:
    """Return a right answer that is a text or a number. Raises `ComponentError` for anything else."""
    if isinstance(right, bool) or not isinstance(right, str | int | float):
        raise ComponentError(f"{place} is {type(right).__name__}, no text and no number")
    return str(right)
