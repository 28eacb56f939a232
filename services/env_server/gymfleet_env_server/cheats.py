"""Policies that aim at the reward and not at the task, and an episode in which they try for it.

`POLICIES` are tried on every environment. For what a single environment invites, its author writes further `Cheat`s
next to its test: `cheat_rates.faults` plays both and reports where one is rewarded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_contracts.session import Tool
from gymfleet_envs.environment import BadArguments, Outcome
from gymfleet_envs.model_calls import Messages
from gymfleet_envs.tasks import Task

from gymfleet_env_server.catalogue import Entry

MOST_TURNS: Final = 40

Answer = Callable[[str, Messages], str]
"""Returns the reply of a role's model, if the environment asks any."""


class Over(Exception):
    """The episode has ended: no further action is taken."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """One policy: its name, and how it plays an episode."""

    name: str
    play: Callable[["Attempt"], None]
    """Acts until it has no more to try, or until `Over` is raised."""


class _Answerer:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def ask(self, role: str, messages: Messages, max_tokens: int) -> str:
        return self.ask_blocking(role, messages, max_tokens)

    def ask_blocking(self, role: str, messages: Messages, max_tokens: int) -> str:  # noqa: ARG002
        return self._answer(role, messages)


class Attempt:
    """One episode of a cheat, in this process, with the turns that the runtime would allow."""

    def __init__(self, entry: Entry, task: Task[Any], other: Task[Any], answer: Answer | None = None) -> None:
        self.entry = entry
        self.task = task
        self.other = other
        """Another task of the same split and level."""
        self._answer = answer
        self.observation = ""
        """The last observation."""
        self.environment = self._begun(task)
        self.first = self.observation
        """The first observation."""
        self.outcomes: list[Outcome] = []
        self._turns = min(MOST_TURNS, self.environment.turn_limit or entry.spec.max_turns)

    @property
    def score(self) -> float:
        """The score that the runtime would report now."""
        return self.outcomes[-1].score if self.outcomes else float(self.environment.start_score)

    def act(self, action: str) -> Outcome:
        """Take an action. Raises `Over` if the episode ends with it, or has ended before."""
        if len(self.outcomes) == self._turns:
            raise Over
        outcome: Outcome = self.environment.step(action[: self.entry.spec.max_action_chars])
        self.outcomes.append(outcome)
        self.observation = outcome.observation
        if outcome.terminated:
            raise Over
        return outcome

    def act_all(self, *actions: str) -> None:
        """Take actions one after another. Raises `Over`."""
        for action in actions:
            self.act(action)

    def solution_of_the_other(self) -> list[str]:
        """Return the expert's actions on the other task."""
        shown = self.observation
        environment, actions = self._begun(self.other), []
        try:
            for _ in range(self._turns):
                if (move := environment.expert()) is None:
                    break
                actions.append(move.action)
                if environment.step(move.action).terminated:
                    break
        finally:
            environment.close()
            self.observation = shown
        return actions

    def _begun(self, task: Task[Any]) -> Any:
        environment = self.entry.make()
        if self.entry.spec.models and self._answer is not None:
            environment.answered_by(_Answerer(self._answer))
        try:
            self.observation = environment.reset(task.data, 0)
        except BaseException:
            environment.close()
            raise
        return environment


def _says_nothing(attempt: Attempt) -> None:
    while True:
        attempt.act("")


def _takes_the_first_action(attempt: Attempt) -> None:
    while actions := attempt.environment.admissible_actions():
        attempt.act(actions[0])


def _echoes(attempt: Attempt) -> None:
    while True:
        attempt.act(attempt.observation)


def _plays_the_gold_of_another_task(attempt: Attempt) -> None:
    attempt.act_all(*attempt.solution_of_the_other())


def _calls_every_tool(attempt: Attempt) -> None:
    while calls := list(_calls(attempt)):
        attempt.act_all(*calls)


POLICIES: Final = (
    Cheat("says_nothing", _says_nothing),
    Cheat("takes_the_first_action", _takes_the_first_action),
    Cheat("echoes", _echoes),
    Cheat("plays_the_gold_of_another_task", _plays_the_gold_of_another_task),
    Cheat("calls_every_tool", _calls_every_tool),
)


def _calls(attempt: Attempt) -> Iterator[str]:
    for tool in attempt.entry.spec.tools:
        try:
            yield attempt.environment.action_of(tool.name, _arguments(tool))
        except BadArguments:
            continue


def _arguments(tool: Tool) -> Mapping[str, Any]:
    """Return the plainest arguments that fit a tool's schema."""
    arguments: Mapping[str, Any] = _plainest(tool.parameters)
    return arguments


def _plainest(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: _plainest(schema["properties"][name]) for name in schema.get("required", [])}
        case "array":
            return [_plainest(schema["items"])] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
    return "a" * max(1, schema.get("minLength", 1))
