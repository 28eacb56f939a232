"""Functions as components: `compute_score`, as verl's reward managers call it."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field, JsonValue

from gymfleet_reward.component import Answer, Component, ComponentError, ComponentOptions, turns_of
from gymfleet_reward.ground_truth import Place, ground_truth

FUNCTION: Final = "compute_score"
"""The function that a file without a class may define instead."""


class FunctionOptions(ComponentOptions):
    """The options of every function."""

    ground_truth_from: Place | None = None
    """`info.KEY`: that key of the last turn's info (`info.KEY.INNER` in a table of it); `private.KEY`: that key of the
    environment's private data for the reward service; `task.task_id`, `task.level` or `task.seed`."""
    reward_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Further keyword arguments, passed on as they are."""


class GroundTruthOptions(FunctionOptions):
    """The options of a function that requires a `ground_truth`."""

    ground_truth_from: Place


class FunctionComponent(Component[FunctionOptions]):
    """A function that is called with the keyword arguments that its signature takes.

    `solution_str` is the text of the episode's last reply, `ground_truth` the value that `ground_truth_from` names,
    `data_source` the environment's name, and `extra_info` the task, with `info` of the last turn, `success`, `score`
    and `num_turns`.
    """

    function: ClassVar[Callable[..., Any]]
    takes: ClassVar[frozenset[str]]
    requires: ClassVar[frozenset[str]]

    def __init__(self, options: FunctionOptions) -> None:
        super().__init__(options)
        if unknown := sorted(self.requires - _MAKERS.keys() - options.reward_kwargs.keys()):
            raise ComponentError(f"it takes {', '.join(unknown)}: give them in reward_kwargs")

    def score(self, episode: Trajectory) -> Answer | Awaitable[Answer]:
        """See `Component`."""
        return _number(self.function(**self.arguments(episode)))

    def arguments(self, episode: Trajectory) -> dict[str, Any]:
        """Return the keyword arguments of a call."""
        turns_of(episode)
        given = {name: make(episode) for name, make in _MAKERS.items() if name in self.takes}
        if "ground_truth" in self.takes and self.options.ground_truth_from is not None:
            given["ground_truth"] = ground_truth(self, self.options.ground_truth_from, episode)
        return given | self.options.reward_kwargs


class AwaitedFunctionComponent(FunctionComponent):
    """A coroutine function that is called in the same way."""

    async def score(self, episode: Trajectory) -> Answer:
        """See `Component`."""
        return _number(await self.function(**self.arguments(episode)))


def component_of(function: Callable[..., Any]) -> type[FunctionComponent]:
    """Return the component that calls a function."""
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    takes = {one.name for one in named}
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        takes |= {*_MAKERS, "ground_truth"}
    requires = frozenset(one.name for one in named if one.default is one.empty)
    base = AwaitedFunctionComponent if inspect.iscoroutinefunction(function) else FunctionComponent
    fields = {
        "__doc__": inspect.getdoc(function) or f"What the function {function.__name__} returns.",
        "__module__": function.__module__,
        "Options": GroundTruthOptions if "ground_truth" in requires else FunctionOptions,
        "function": staticmethod(function),
        "takes": frozenset(takes),
        "requires": requires - {"ground_truth"},
    }
    return type(function.__name__, (base,), fields)


def _extra_info(episode: Trajectory) -> dict[str, Any]:
    return {
        **episode.task.model_dump(mode="json"),
        "info": episode.turns[-1].info,
        "success": episode.success,
        "score": episode.score,
        "num_turns": len(episode.turns),
    }


def _number(answer: Any) -> Answer:
    """Return the number in a function's answer: a number, a bool (whether it is right), or a table with `score`."""
    if isinstance(answer, dict):
        if "score" not in answer:
            raise ComponentError(f"it returned a table without `score`: {', '.join(map(str, answer)) or 'empty'}")
        answer = answer["score"]
    number: Answer = float(answer) if isinstance(answer, bool) else answer  # anything else is refused later
    return number


_MAKERS: Final[dict[str, Callable[[Trajectory], Any]]] = {
    "data_source": lambda episode: episode.task.env,
    "solution_str": lambda episode: episode.turns[-1].text,
    "extra_info": _extra_info,
}
