"""AgentGym's sheet as an environment."""

from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from gymfleet_contracts.session import EnvironmentSpec, Tool

from gymfleet_envs.agentgym_tools.base import Refused, ToolEnvironment
from gymfleet_envs.agentgym_tools.toolbox import read_toolbox
from gymfleet_envs.environment import Options, Outcome
from gymfleet_envs.sheet.generate import generated_tasks
from gymfleet_envs.sheet.published import import_workbook, published_tasks
from gymfleet_envs.sheet.scoring import Rule, exact, match
from gymfleet_envs.sheet.task import SheetTask
from gymfleet_envs.sheet.tools import NOT_OPEN, Workbook
from gymfleet_envs.tasks import TaskSource

_OPTIONAL: Final = frozenset({"start_position", "end_position", "position_list", "in_row", "in_column"})
_TOOLBOX: Final = read_toolbox(Path(__file__).with_name("tools.txt"), optional=_OPTIONAL)


class SheetOptions(Options):
    """How to compare the final table of a task."""

    reward_rule: Rule | Literal["auto"] = "auto"
    """`agentgym`: the best share of equal cells that was reached, as published. `exact`: 1 if the sheet is as it should
    be and no other sheet has changed. `auto`: `agentgym` for published tasks, `exact` for generated ones."""


class SheetEnvironment(ToolEnvironment[SheetTask]):
    """Change a table as the goal says."""

    name: ClassVar[str] = "sheet"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Change a spreadsheet with tools (AgentGym's sheet)"
    instructions: ClassVar[str] = _TOOLBOX.instructions
    max_turns: ClassVar[int] = 15
    tools: ClassVar[tuple[Tool, ...]] = _TOOLBOX.tools
    valid_actions: ClassVar[tuple[str, ...]] = tuple(tool.name for tool in _TOOLBOX.tools)
    options: ClassVar[SheetOptions] = SheetOptions()

    def __init__(self) -> None:
        super().__init__()
        self._workbook = Workbook(())

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[SheetTask]:
        """Generated tables, or AgentGym's tasks and the workbook from which they start."""
        if data is None:
            return generated_tasks(cls.reward_rule(generated=True))
        return published_tasks(data, cls.reward_rule(generated=False))

    @classmethod
    def reward_rule(cls, *, generated: bool) -> Rule:
        """Return the rule by which the final table is compared."""
        given = cls.options.reward_rule
        return given if given != "auto" else "exact" if generated else "agentgym"

    @classmethod
    def spec(cls, tasks: TaskSource[SheetTask]) -> EnvironmentSpec:
        """Return the environment's description, with the reward rule added."""
        rule = cls.reward_rule(generated=tasks.name == "generated")
        return super().spec(tasks).model_copy(update={"reward_rule": rule})

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Convert the workbook to JSON, which can be read without a spreadsheet library."""
        import_workbook(source, target)

    def step(self, action: str) -> Outcome:
        """Call one tool; by AgentGym's rule the best score that was reached counts."""
        over = self._over
        outcome = super().step(action)
        if over or self._task.rule != "agentgym" or self._workbook.opened is None:
            return outcome
        self._score = max(self._score, self._reached())
        reward = self._score if outcome.terminated else 0.0
        return Outcome(outcome.observation, reward=reward, score=self._score, terminated=outcome.terminated,
                       action_valid=outcome.action_valid)  # fmt: skip

    def state_key(self) -> str:
        """The state of every tool environment, and the workbook."""
        return f"{super().state_key()}\n{self._workbook!r}"

    def _begin(self) -> None:
        self._workbook = self._task.workbook

    def _use(self, tool: str, arguments: Any) -> Any:
        self._workbook, result = self._workbook.use(tool, arguments)
        return result

    def _finish(self, arguments: Any) -> Any:
        del arguments
        self._over, self._score = True, max(self._score, self._judge(None))
        sheet = self._workbook.sheet(self._workbook.opened or "")
        if sheet is None:
            raise Refused(NOT_OPEN)
        return sheet.shown()

    def _judge(self, answer: Any) -> float:
        del answer
        if self._task.rule == "agentgym":
            return 0.0 if self._workbook.opened is None else self._reached()
        untouched = all(
            sheet == self._task.workbook.sheet(sheet.name)
            for sheet in self._workbook.sheets
            if sheet.name != self._task.sheet
        )
        sheet = self._workbook.sheet(self._task.sheet)
        return exact(sheet.shown(), self._task.table) if sheet is not None and untouched else 0.0

    def _reached(self) -> float:
        sheet = self._workbook.sheet(self._task.sheet)
        return match(sheet.shown(), self._task.table) if sheet is not None else 0.0

    def _unknown(self, name: str) -> str:
        return f"{super()._unknown(name)} Please choose another valid action from {list(self.valid_actions)}"


ENVIRONMENT: Final = SheetEnvironment
