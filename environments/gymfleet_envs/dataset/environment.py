"""Rows of a data set as an environment: a prompt, possibly some tool calls, one answer."""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import EnvironmentSpec, ExpertMove
from gymfleet_contracts.session import Tool as DeclaredTool
from pydantic import JsonValue

from gymfleet_envs.dataset.answers import spoken
from gymfleet_envs.dataset.generate import generated_tasks
from gymfleet_envs.dataset.hub import hub_directory
from gymfleet_envs.dataset.options import MAX_TURNS, DatasetOptions
from gymfleet_envs.dataset.row import Row
from gymfleet_envs.dataset.source import row_tasks, split_files
from gymfleet_envs.dataset.tool import RowTool, ToolFault, call_of, tools_of
from gymfleet_envs.environment import BadArguments, Environment, Outcome
from gymfleet_envs.tasks import TaskSource


class Dataset(Environment[Row]):
    """Answer a row's prompt; the scorer of its data source compares the answer with the row's right one.

    The right answer leaves the env server only in the sealed data for the reward service.
    """

    name: ClassVar[str] = "dataset"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = (
        "Answer the rows of a data set: your own, of the hub, or generated arithmetic and Countdown"
    )
    instructions: ClassVar[str] = DatasetOptions().instructions
    format: ClassVar[str] = "free"
    max_turns: ClassVar[int] = MAX_TURNS
    max_action_chars: ClassVar[int] = 65_536
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "says_one_number": {"arithmetic": 0.058, "arithmetic_hard": 0.005},
        "says_the_first_number": {"arithmetic": 0.08, "arithmetic_hard": 0.005},
        "boxes_twice": {"arithmetic": 0.053},
        "adds_all": {"countdown": 0.155, "countdown_hard": 0.15},
        "plays_the_gold_of_another_task": {"arithmetic": 0.055},
    }
    licence: ClassVar[str] = "Generated rows: Apache-2.0; your rows: yours"
    options: ClassVar[DatasetOptions] = DatasetOptions()

    _row: Row
    _tools: Mapping[str, RowTool]
    _over: bool = False
    _score: float = 0.0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Row]:
        """Return the rows of the files in `data`, of the option `path` or `hub`, else generated ones."""
        # The operator's options are known from here on.
        cls.tools = tuple(_declared(tool) for tool in tools_of(cls.options.tools).values())
        place = data or cls.options.path or (hub_directory(cls.options) if cls.options.hub else None)
        return generated_tasks() if place is None else row_tasks(place, cls.options)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Copy the files of the splits, and nothing else."""
        for file in (file for files in split_files(source).values() for file in files):
            shutil.copyfile(file, target / file.name)

    @classmethod
    def spec(cls, tasks: TaskSource[Row]) -> EnvironmentSpec:
        """Return the description, adapted to the options and the rows."""
        described = super().spec(tasks)
        solved = tasks.name == "generated" or bool(cls.options.solution_key)
        changes = {
            "max_turns": cls.options.max_turns,
            "instructions": cls.options.instructions,
            "capabilities": described.capabilities.model_copy(update={"expert": solved}),
        }
        return described.model_copy(update=changes)

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """Return the line that calls the tool."""
        argument = str(arguments[tools_of(self.options.tools)[tool].argument])
        if "\n" in argument.strip():
            raise BadArguments("the argument is one line")
        return f"{tool}[{argument.strip()}]"

    def reset(self, task: Row, seed: int) -> str:  # noqa: ARG002 - nothing is random within an episode
        """Show the prompt. If it has several messages, `info` lists them with their roles."""
        self._row = task
        self._tools = tools_of(self.options.tools)
        self.turn_limit = self.options.max_turns
        self.start_private = task.private
        if len(task.messages) > 1:
            self.start_info = {
                "messages": [{"role": message.role, "content": message.content} for message in task.messages]
            }
        return "\n\n".join((task.prompt, *self._offer()))

    def step(self, action: str) -> Outcome:
        """Answer a tool call, or score the answer, which ends the episode."""
        if self._over:
            return Outcome("The task is over.", score=self._score, terminated=True, action_valid=False)
        said = spoken(action)
        if (call := call_of(said, self._tools)) is not None:
            return self._called(*call)
        self._over = True
        answer = self._row.scorer.answer(said)
        if answer is None:
            return Outcome("The reply holds no answer.", terminated=True, action_valid=False)
        self._score = self._row.scorer.score(answer, self._row.right)
        return Outcome("The answer is taken.", reward=self._score, score=self._score, terminated=True)

    def expert(self) -> ExpertMove | None:
        """Return the row's solution, if it has one."""
        if self._over or not self._row.solution:
            return None
        return ExpertMove(thought="I know the answer.", action=self._row.solution)

    def snapshot(self) -> Self:
        """Return a shallow copy: the objects that it holds never change."""
        return copy.copy(self)

    def _called(self, name: str, argument: str) -> Outcome:
        try:
            return Outcome(self._tools[name].call(argument))
        except ToolFault as error:
            return Outcome(f"{name}: {error}", action_valid=False)

    def _offer(self) -> list[str]:
        if not self._tools:
            return []
        lines = [f"{name}[{tool.argument}]: {tool.description}" for name, tool in self._tools.items()]
        first = (
            f"Before you answer you may call a tool, up to {self.options.max_turns - 1} times, by a last line such as:"
        )
        return ["\n".join((first, *lines))]


def _declared(tool: RowTool) -> DeclaredTool:
    return DeclaredTool(
        name=tool.name,
        description=tool.description,
        parameters={
            "type": "object",
            "properties": {tool.argument: {"type": "string"}},
            "required": [tool.argument],
            "additionalProperties": False,
        },
    )


ENVIRONMENT: Final = Dataset
