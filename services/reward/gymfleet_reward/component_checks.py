"""Checks of what every component promises, on a few episodes: authors run them on their own components."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import FinishReason, PolicyRef, Status, Trajectory, Turn, sampled_by, trajectory_id
from gymfleet_kit.plugins import PluginError, options_of
from pydantic import ValidationError

from gymfleet_reward.component import Component, ComponentError
from gymfleet_reward.evaluation import Raw, evaluate
from gymfleet_reward.plugins import COMPONENTS, Term
from gymfleet_reward.user_code import UserCode

TIMEOUT_S: Final = 20.0
_RUN: Final = "examination"


def examine(reference: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """Return a line for each promise that a component breaks; none for a sound one.

    Options without a default must be given; otherwise only what can be seen without scoring is examined.
    """
    try:
        kind = COMPONENTS.find(reference)
        model = options_of(kind)
    except PluginError as error:
        return [str(error)]
    found = list(_of_the_class(kind))
    try:
        given = model.model_validate(options or {})
    except ValidationError as error:
        return found if options is None else [*found, f"the options {options} are refused: {error.errors()[0]['msg']}"]
    try:
        component = kind(given)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return [*found, f"it cannot be made: {type(error).__name__}: {error}"]
    user_code = UserCode(TIMEOUT_S, lambda: None)
    try:
        return [*found, *_Examination(component, user_code).faults()]
    finally:
        user_code.close()


def _of_the_class(kind: type[Component[Any]]) -> Iterator[str]:
    if not kind.__doc__:
        yield "it has no docstring: its first line is what people read of it"
    if options_of(kind).model_config.get("extra") != "forbid":
        yield 'its options take keys that they do not know: say extra="forbid", or subclass ComponentOptions'


class _Examination:
    def __init__(self, component: Component[Any], user_code: UserCode) -> None:
        self._term = Term("examined", "examined", component, "", immediate=False)
        self._user_code = user_code
        self._grouped = component.per == "group"

    def faults(self) -> Iterator[str]:
        """Yield the faults of the component's answers."""
        checks: Sequence[Callable[[], Iterator[str]]] = (self._answers, self._episodes_without_turns, self._in_a_batch)
        for check in checks:
            if told := list(check()):
                yield from told
                return  # the rest would say the same once more

    def _answers(self) -> Iterator[str]:
        episodes = _episodes()
        before = [episode.model_dump_json() for episode in episodes]
        for episode, outcome in zip(episodes, self._scored(episodes), strict=True):
            if isinstance(outcome, Exception):
                yield f"{_told(outcome)}, for an episode of {len(episode.turns)} turns"
        if [episode.model_dump_json() for episode in episodes] != before:
            yield "it changes the episodes that it scores"

    def _episodes_without_turns(self) -> Iterator[str]:
        (outcome,) = self._scored([_episode(0, 0)])
        if isinstance(outcome, Exception) and not isinstance(outcome, ComponentError):
            yield f"{_told(outcome)}, for an episode without turns: raise ComponentError, or answer a number"

    def _in_a_batch(self) -> Iterator[str]:
        if self._grouped:
            return
        episodes = _episodes()
        alone = [self._scored([episode])[0] for episode in episodes]
        again = [self._scored([episode])[0] for episode in episodes]
        together = self._scored(episodes[::-1])[::-1]
        if alone == again and alone != together:
            yield "it answers other numbers for episodes together, in another order, than for each alone"

    def _scored(self, episodes: list[Trajectory]) -> list[Raw | Exception]:
        return evaluate(self._term, episodes, self._user_code)


def _told(outcome: Exception) -> str:
    text = " ".join(str(outcome).split())
    return text if isinstance(outcome, ComponentError) else f"it raises {type(outcome).__name__}: {text}"


def _episodes() -> list[Trajectory]:
    return [_episode(number, num_turns) for number, num_turns in enumerate((1, 3, 2, 5))]


def _episode(sample: int, num_turns: int) -> Trajectory:
    """Return an episode of one group; its last turn's `info` holds an `answer`."""
    success = sample % 2 == 0
    return Trajectory(
        trajectory_id=trajectory_id(_RUN, "group", sample),
        run_id=_RUN,
        group_id="group",
        sample=sample,
        task=TaskRef(env="maze", split="train", level="easy", task_id="easy.train.0"),
        policy=PolicyRef(model="tiny", version_min=0, version_max=0),
        format="react",
        format_version=1,
        turns=tuple(_turn(number, last=number == num_turns - 1) for number in range(num_turns)),
        status=Status.COMPLETED if success else Status.TRUNCATED,
        score=0.25 * (sample + 1),
        success=success,
        finish_reason=FinishReason.TERMINATED if success else FinishReason.MAX_TURNS,
    )


def _turn(number: int, *, last: bool) -> Turn:
    num_tokens = 0 if number == 2 else number + 1
    return Turn(
        observation=f"Room {number}.",
        prompt_token_ids=(1, 2, 3),
        response_token_ids=tuple(range(num_tokens)),
        response_logprobs=(-0.5,) * num_tokens,
        policy_versions=sampled_by(0, num_tokens),
        text=f"Thought: on. Action: go {number}" if num_tokens else "",
        thought="on.",
        action=f"go {number}" if num_tokens else None,
        format_valid=bool(num_tokens),
        action_valid=number != 1,
        reward=0.5 * number - 0.5,
        terminated=last,
        info={"answer": str(number)} if last else {},
    )
