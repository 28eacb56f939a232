"""The base class of the five tool environments: reads a call, words its result, ends with `finish`."""

import copy
import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

from gymfleet_contracts.session import ExpertMove
from pydantic import JsonValue

from gymfleet_envs.agentgym_tools.calls import Call, NoCall, read_call
from gymfleet_envs.agentgym_tools.literals import Unreadable
from gymfleet_envs.agentgym_tools.wording import FORMAT_ERROR, OVER, UNREADABLE, opening, shown
from gymfleet_envs.environment import Environment, Outcome

LICENCE = "Apache-2.0; names and wording of the tools: AgentGym (MIT), after AgentBoard (Apache-2.0)"


class Refused(Exception):
    """A tool understood a call but refuses it. The message is the observation."""


class Faulty(Exception):
    """A tool cannot use the arguments of a call. The message is upstream's error, such as `TypeError('...')`."""


@dataclass(frozen=True, slots=True)
class Move:
    """A call that brings a task closer to its end, and why."""

    thought: str
    tool: str
    arguments: str
    """JSON, so that tasks can be hashed by their content."""

    @classmethod
    def of(cls, thought: str, tool: str, **arguments: Any) -> "Move":
        """Return a move with these arguments."""
        return cls(thought, tool, json.dumps(arguments, ensure_ascii=False))

    @property
    def action(self) -> str:
        """The call as text."""
        return spelled(self.tool, json.loads(self.arguments))

    def is_made_by(self, call: Call) -> bool:
        """Return whether a call is this move."""
        return self.tool == call.name and json.loads(self.arguments) == call.arguments


class ToolTask(Protocol):
    """The fields of every task of the five environments."""

    @property
    def goal(self) -> str:
        """The agent's goal, in words."""

    @property
    def plan(self) -> tuple[Move, ...]:
        """The calls that solve the task, in order, ending with `finish`; empty if no solution is known."""


TaskT = TypeVar("TaskT", bound=ToolTask)


class ToolEnvironment(Environment[TaskT]):
    """One goal, tools, and `finish`, which alone is scored.

    A subclass calls the tools and judges the answer. State that the tools change is replaced, never changed in place.
    """

    licence: ClassVar[str] = LICENCE
    max_action_chars: ClassVar[int] = 16_384  # of a whole reply: AgentGym's clients send it with its thought
    valid_actions: ClassVar[tuple[str, ...]]
    """The actions that `check_valid_actions` lists."""
    _task: TaskT

    def __init__(self) -> None:
        self._over = False
        self._score = 0.0
        self._planned = 0

    def reset(self, task: TaskT, seed: int) -> str:
        """Show the goal. The episode depends only on the task; the seed changes nothing."""
        del seed
        self._task = task
        self._over, self._score, self._planned = False, 0.0, 0
        self._begin()
        return opening(task.goal)

    def step(self, action: str) -> Outcome:
        """Call one tool."""
        if self._over:
            return Outcome(OVER, score=self._score, terminated=True, action_valid=False)
        try:
            call = read_call(action)
        except NoCall:
            return Outcome(FORMAT_ERROR, score=self._score, action_valid=False)
        except Unreadable:
            return self._fault(UNREADABLE)
        call = Call(self._spelled(call.name), call.arguments)
        if call.name not in self.valid_actions:
            return Outcome(shown(self._unknown(call.name)), score=self._score, action_valid=False)
        try:
            observation = shown(self._called(call))
        except Refused as refusal:
            observation = shown(refusal)
        except Faulty as error:
            return self._fault(str(error))
        reward = self._score if self._over else 0.0
        return Outcome(observation, reward=reward, score=self._score, terminated=self._over)

    def expert(self) -> ExpertMove | None:
        """The next call of the plan that has not been made."""
        if self._over or self._planned >= len(self._task.plan):
            return None
        move = self._task.plan[self._planned]
        return ExpertMove(thought=move.thought, action=move.action)

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The call as AgentGym's agents write it."""
        return spelled(tool, arguments)

    def state_key(self) -> str:
        """The task and its score; the tools change nothing unless a subclass adds their state."""
        return f"{self._task.goal}\n{self._over} {self._score}"

    def snapshot(self) -> Self:
        """A shallow copy: changes replace state instead of modifying it, and tasks are immutable."""
        return copy.copy(self)

    def _called(self, call: Call) -> Any:
        """Return the result of a call, and advance in the plan if the call is its next one."""
        if call.name == "finish":
            result = self._finish(call.arguments)
        elif call.name == "check_valid_actions":
            result = f"You can use following valid actions: {list(self.valid_actions)}"
        else:
            result = self._use(call.name, call.arguments)
        plan = self._task.plan
        if self._planned < len(plan):
            self._planned += plan[self._planned].is_made_by(call)
        return result

    def _finish(self, arguments: Any) -> Any:
        answer = taken(arguments, "answer")
        if isinstance(answer, list):
            try:
                answer = sorted(answer)
            except TypeError as error:
                raise Faulty(f"TypeError({error})") from None
        self._over, self._score = True, self._judge(answer)
        return answer

    def _fault(self, fault: str) -> Outcome:
        return Outcome(shown(f"ERROR | {fault}"), score=self._score, action_valid=False)

    def _spelled(self, name: str) -> str:
        """Return the name of the tool that the agent means."""
        return name

    def _unknown(self, name: str) -> str:
        return f"ERROR | Invalid action: {name}."

    def _begin(self) -> None:
        """Set up the state that the tools work on."""

    @abstractmethod
    def _use(self, tool: str, arguments: Any) -> Any:
        """Return the result of a tool. Raises `Refused` and `Faulty`."""

    @abstractmethod
    def _judge(self, answer: Any) -> float:
        """Return the score of an answer in the current state."""


def spelled(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as one line of text."""
    text = json.dumps(arguments, ensure_ascii=False)
    if len(text.splitlines()) != 1:  # a separator that JSON leaves as it is
        text = json.dumps(arguments)
    return f"{tool} with Action Input: {text}"


def taken(arguments: Any, name: str) -> Any:
    """Return an argument. Raises `Faulty` with the words of the Python error that upstream raises there."""
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        fault = f"{kind} indices must be integers or slices, not str"
        raise Faulty(f"TypeError({fault if isinstance(arguments, list | tuple) else f'{kind!r} object is no object'})")
    if name not in arguments:
        raise Faulty(f"KeyError({name!r})")
    return arguments[name]
