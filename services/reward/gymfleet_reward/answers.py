"""Components that compare the final answer of an episode with the right one."""

from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any, ClassVar, Literal, TypeVar

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Answer, Component, ComponentError, ComponentOptions, turns_of
from gymfleet_reward.ground_truth import Place, ground_truth


class AnswerOptions(ComponentOptions):
    """Where to find the answer and the right answer."""

    ground_truth_from: Place
    """`private.KEY`, `info.KEY` or `task.task_id`: where to find the right answer. In a list, every answer is right."""
    answer_from: Literal["action", "reply", "tag"] = "action"
    """`action`: the last action, between `prefix` and `suffix`; `reply`: the whole last reply; `tag`: the content of
    the last `<answer>` in the last reply."""
    prefix: str = ""
    """The beginning of an action that answers, such as `answer(`; any other action is no answer."""
    suffix: str = ""
    """The end of an action that answers."""


OptionsT = TypeVar("OptionsT", bound=AnswerOptions)


class AnswerComponent(Component[OptionsT]):
    """Compares the final answer with the right ones; the best comparison counts. A missing answer is worth 0."""

    alternatives: ClassVar[bool] = True
    """Whether a list holds several right answers; otherwise it is one answer."""

    @abstractmethod
    def compared(self, answer: str, right: Any) -> float:
        """Return how right an answer is, in [0, 1]. Raises `ComponentError` for an unusable right answer."""

    def score(self, episode: Trajectory) -> Answer | Awaitable[Answer]:
        """See `Component`."""
        return self.best(episode)

    def best(self, episode: Trajectory) -> float:
        """Return how right the episode's answer is. Raises `ComponentError` if there is nothing to compare with."""
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
