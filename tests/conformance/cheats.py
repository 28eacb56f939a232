"""Policies that want the reward and not the task, and an episode in which they try for it.

`POLICIES` are tried on every environment. What only one environment invites stands in `cheating/NAME.py`, which every
environment must have: `CHEATS`, further policies, and `answer`, who plays the models that it asks, if it asks any.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_contracts.session import Tool
from gymfleet_env_server.catalogue import Entry
from gymfleet_envs.environment import BadArguments, Outcome
from gymfleet_envs.model_calls import Messages
from gymfleet_envs.tasks import Task

MOST_TURNS: Final = 40


class Over(Exception):
    """The episode has ended: no further action is taken."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """One policy: its name, and how it plays an episode."""

    name: str
    play: Callable[["Attempt"], None]
    """Acts until it has no more to try, or until `Over` is raised."""


class Answers:
    """Who plays the models that an environment asks."""

    def __init__(self, answer: Callable[[str, Messages], str]) -> None:
        self._answer = answer

    async def ask(self, role: str, messages: Messages, max_tokens: int) -> str:
        return self.ask_blocking(role, messages, max_tokens)

    def ask_blocking(self, role: str, messages: Messages, max_tokens: int) -> str:  # noqa: ARG002
        return self._answer(role, messages)


class Attempt:
    """One episode of a cheat, in this process, with the turns that the runtime would allow."""

    def __init__(self, entry: Entry, task: Task[Any], other: Task[Any]) -> None:
        self.entry = entry
        self.task = task
        self.other = other
        """Another task of the same split and level."""
        self.observation = ""
        """What was shown last."""
        self.environment = self.begin(task)
        self.outcomes: list[Outcome] = []
        self._turns = min(MOST_TURNS, self.environment.turn_limit or entry.kind.max_turns)

    def begin(self, task: Task[Any]) -> Any:
        """Return an environment of its own in which a task has begun; the caller closes it."""
        environment = self.entry.make()
        if self.entry.spec.models:
            environment.answered_by(Answers(own(self.entry.spec.name).answer))
        self.observation = environment.reset(task.data, 0)
        return environment

    @property
    def score(self) -> float:
        """What the runtime would report now."""
        return self.outcomes[-1].score if self.outcomes else float(self.environment.start_score)

    def act(self, action: str) -> Outcome:
        """Take an action. Raises `Over` when the episode has ended with it, or before."""
        if len(self.outcomes) == self._turns:
            raise Over
        outcome: Outcome = self.environment.step(action[: self.entry.spec.max_action_chars])
        self.outcomes.append(outcome)
        self.observation = outcome.observation
        if outcome.terminated:
            raise Over
        return outcome

    def solution_of_the_other(self) -> list[str]:
        """Return the expert's actions on the other task."""
        environment, actions = self.begin(self.other), []
        try:
            for _ in range(self._turns):
                if (move := environment.expert()) is None:
                    break
                actions.append(move.action)
                if environment.step(move.action).terminated:
                    break
        finally:
            environment.close()
        return actions


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
    for action in attempt.solution_of_the_other():
        attempt.act(action)


def _calls_every_tool(attempt: Attempt) -> None:
    while attempt.entry.spec.tools:
        for action in _calls(attempt):
            attempt.act(action)


POLICIES: Final = (
    Cheat("says_nothing", _says_nothing),
    Cheat("takes_the_first_action", _takes_the_first_action),
    Cheat("echoes", _echoes),
    Cheat("plays_the_gold_of_another_task", _plays_the_gold_of_another_task),
    Cheat("calls_every_tool", _calls_every_tool),
)


def own(name: str) -> Any:
    """Return the module of what one environment invites: `CHEATS`, and `answer` if it asks models."""
    return importlib.import_module(f"tests.conformance.cheating.{name}")


def mean_score(entry: Entry, cheat: Cheat, tasks: Sequence[Task[Any]]) -> float:
    """Return the mean score that a cheat reaches; each task has the next as the other one."""
    return sum(_score(entry, cheat, tasks[i], tasks[(i + 1) % len(tasks)]) for i in range(len(tasks))) / len(tasks)


def _score(entry: Entry, cheat: Cheat, task: Task[Any], other: Task[Any]) -> float:
    attempt = Attempt(entry, task, other)
    try:
        cheat.play(attempt)
    except Over:
        pass
    finally:
        attempt.environment.close()
    return attempt.score


def _calls(attempt: Attempt) -> Iterator[str]:
    for tool in attempt.entry.spec.tools:
        try:
            yield attempt.environment.action_of(tool.name, _arguments(tool))
        except BadArguments:
            continue


def _arguments(tool: Tool) -> Mapping[str, Any]:
    """Return the plainest arguments that fit a tool's schema."""
    return _plainest(tool.parameters)


def _plainest(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            names = schema.get("required", [])
            return {name: _plainest(schema["properties"][name]) for name in names}
        case "array":
            return [_plainest(schema["items"])] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
    return "a" * max(1, schema.get("minLength", 1))
