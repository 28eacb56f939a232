"""Function calling: questions that are answered by calls, and dialogues whose calls change a world."""

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.function_calling.benchmark import benchmark_tasks, unpack
from gymfleet_envs.function_calling.calls import Call, read_calls, written
from gymfleet_envs.function_calling.checker import is_right
from gymfleet_envs.function_calling.depot import Depot
from gymfleet_envs.function_calling.dialogue import CANNOT, DONE, Play
from gymfleet_envs.function_calling.generate import generated_tasks
from gymfleet_envs.function_calling.gold import gold_calls
from gymfleet_envs.function_calling.published import PublishedWorld
from gymfleet_envs.function_calling.task import Dialogue, FunctionCallingTask, Questions
from gymfleet_envs.function_calling.wording import INSTRUCTIONS, opening
from gymfleet_envs.function_calling.world import World
from gymfleet_envs.tasks import TaskSource

_OVER: Final = "The task is over."
_CALL: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


class FunctionCalling(Environment[FunctionCallingTask]):
    """Call the functions that a task lists, with the right arguments, or none of them."""

    name: ClassVar[str] = "function_calling"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Answer requests by calling the functions that each task lists (BFCL)"
    instructions: ClassVar[str] = INSTRUCTIONS
    format: ClassVar[str] = "free"
    max_turns: ClassVar[int] = 210
    max_action_chars: ClassVar[int] = 16_384
    licence: ClassVar[str] = "Apache-2.0; BFCL's tasks and classes: Apache-2.0"
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool(
            name="call",
            description="Call functions of the task, all at once.",
            parameters={
                "type": "object",
                "properties": {"calls": {"type": "array", "items": dict(_CALL), "minItems": 1, "maxItems": 100}},
                "required": ["calls"],
                "additionalProperties": False,
            },
        ),
        Tool(
            name="say",
            description="Call nothing: say that no function fits, or that all is done.",
            parameters={
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
                "additionalProperties": False,
            },
        ),
    )
    _classes: ClassVar[Path] = Path()
    """The directory of BFCL's classes, if its tasks are played."""

    def __init__(self) -> None:
        self._task: FunctionCallingTask
        self._play: Play | None = None
        self._number = 0
        self._over = False
        self._score = 0.0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[FunctionCallingTask]:
        """Generated tasks, or those of BFCL's package."""
        if data is None:
            return generated_tasks()
        tasks, cls._classes = benchmark_tasks(data)
        return tasks

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Import the parts of BFCL's wheel, or of its unpacked package, that are played."""
        unpack(source, target)

    def reset(self, task: FunctionCallingTask, seed: int) -> str:
        """Return the functions and the first request. The task determines everything; the seed changes nothing."""
        del seed
        self._task = task
        if isinstance(task, Questions):
            self.turn_limit = len(task.questions)
            return opening(task.functions, task.questions[0].text)
        self._play = Play(task, self._world(task))
        return opening(task.functions, task.turns[0].text)

    def _world(self, task: Dialogue) -> World:
        return Depot.of(task) if task.world == "depot" else PublishedWorld.of(task, self._classes)

    def step(self, action: str) -> Outcome:
        """Judge the answer to a question, or take a reply of a dialogue."""
        if self._over:
            return Outcome(_OVER, score=self._score, terminated=True, action_valid=False)
        return self._answered(action) if self._play is None else self._replied(self._play, action)

    def _answered(self, action: str) -> Outcome:
        task = self._questions
        question = task.questions[self._number]
        right = is_right(question.kind, json.loads(task.functions), read_calls(action), json.loads(question.answers))
        self._number += 1
        self._over = not right or self._number == len(task.questions)
        self._score = float(right and self._over)
        shown = _OVER if self._over else task.questions[self._number].text
        return Outcome(shown, reward=self._score, score=self._score, terminated=self._over)

    def _replied(self, play: Play, action: str) -> Outcome:
        shown = play.reply(action)
        self._over = play.is_over
        self._score = float(play.is_solved)
        return Outcome(shown, reward=self._score, score=self._score, terminated=self._over)

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """Return the calls as JSON, or the text."""
        if tool == "call":
            return json.dumps(arguments["calls"])
        return f"\u201c{arguments['text']}\u201d"  # in quotation marks that Python does not know, so never a call

    def expert(self) -> ExpertMove | None:
        """The gold calls."""
        if self._over:
            return None
        if self._play is not None:
            reply = self._play.solution()
            if reply is None:
                return None
            thought = "There is nothing to call." if reply in (DONE, CANNOT) else "These calls come next."
            return ExpertMove(thought=thought, action=reply)
        calls_next = self._gold()
        if not calls_next:
            return ExpertMove(thought="No function fits, or something is missing.", action=CANNOT)
        return ExpertMove(thought="The request gives these arguments.", action=written(calls_next))

    def _gold(self) -> list[Call]:
        question = self._questions.questions[self._number]
        functions = json.loads(self._questions.functions)
        if question.kind == "relevance":
            return [Call(functions[0]["name"])]
        return gold_calls(functions, json.loads(question.answers))

    @property
    def _questions(self) -> Questions:
        if isinstance(self._task, Questions):
            return self._task
        raise TypeError("a dialogue has no questions")

    def state_key(self) -> str:
        """The open request, and the state that a dialogue's calls have made."""
        task = hashlib.sha256(repr(self._task).encode(errors="replace")).hexdigest()
        state = (self._number, self._over) if self._play is None else self._play.key()
        return repr((task, state))

    def state_digest(self) -> str | None:
        """A digest of a dialogue's world, which observations may not show."""
        return None if self._play is None else hashlib.sha256(self._play.key().encode(errors="replace")).hexdigest()

    def snapshot(self) -> Self:
        """A copy with its own world; the task is shared."""
        other = copy.copy(self)
        other._play = None if self._play is None else self._play.copy()  # noqa: SLF001 - of its own kind
        return other


ENVIRONMENT: Final = FunctionCalling
