"""DBBench as an environment."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove, Tool
from pydantic import JsonValue

from gymfleet_envs.db.actions import TOOLS, Answer, action_of, read_action
from gymfleet_envs.db.answers import read_answer, same_answer
from gymfleet_envs.db.benchmark import benchmark_tasks
from gymfleet_envs.db.database import Database, Refused
from gymfleet_envs.db.expert import next_move
from gymfleet_envs.db.generate import generated_tasks
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.sqlite import SqliteDatabase, state_after
from gymfleet_envs.db.tables import state_digest
from gymfleet_envs.db.task import DbTask
from gymfleet_envs.environment import EngineLost, Environment, Outcome
from gymfleet_envs.sql_text import UnfitStatement
from gymfleet_envs.sqlite.guard import StatementFailed
from gymfleet_envs.tasks import TaskDataError, TaskSource

_ANSWERED: Final = "Your answer is {verdict}."
_CUT_ROWS: Final = 170
"""Number of rows up to which MySQL's `group_concat` joins all digests without a cut."""


class DBBench(Environment[DbTask]):
    """Operate a database with SQL, then answer."""

    name: ClassVar[str] = "db"
    version: ClassVar[str] = "1.1.0"
    summary: ClassVar[str] = "Answer questions about a table, or change it, with SQL (AgentBench's DBBench)"
    instructions: ClassVar[str] = (
        "I will ask you a question, then you should help me operate a MySQL database with SQL to answer the question.\n"
        "You have to explain the problem and your solution to me and write down your thoughts. After that, every round "
        "you can choose to operate or to answer. Every time you can only execute one SQL statement. I will execute it "
        "for you and give you the output.\n"
        "Commit your final answer only when you are sure about it: it must be exactly the same as the correct answer. "
        "If the question is about modifying the database, then after done operation, your answer can be anything."
    )
    format: ClassVar[str] = "dbbench"
    max_turns: ClassVar[int] = 20
    max_action_chars: ClassVar[int] = 8192
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "answers_none": {"medium": 0.02, "hard": 0.02},
    }
    licence: ClassVar[str] = "Apache-2.0; benchmark tasks: AgentBench (Apache-2.0)"
    options: ClassVar[DbOptions] = DbOptions()
    tools: ClassVar[tuple[Tool, ...]] = TOOLS
    blocking: ClassVar[bool] = True
    calls_at_once: ClassVar[int | None] = 32

    def __init__(self) -> None:
        self._task: DbTask
        self._database: Database
        self._num_operations = 0
        self._score = 0.0
        self._over = False

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[DbTask]:
        """Generated tables, or AgentBench's tasks from `data/*.jsonl`. With MariaDB, checks that it is there."""
        if cls.options.backend == "mariadb":
            from gymfleet_envs.db.mariadb_server import server_for  # noqa: PLC0415 - its driver is loaded for it alone

            try:
                server_for(cls.options).sweep()
            except EngineLost as error:
                raise TaskDataError(f"the database cannot be used: {error}") from None
        return generated_tasks() if data is None else benchmark_tasks(data, cls.options)

    @classmethod
    def is_blocking(cls) -> bool:
        """Whether the backend is MariaDB. SQLite takes some 50 us for a statement, passing it to a thread 300 us."""
        return cls.options.backend == "mariadb"

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The call in DBBench's format."""
        return action_of(tool, arguments)

    def reset(self, task: DbTask, seed: int) -> str:
        """Set up the tables. The task determines everything; the seed changes nothing."""
        del seed
        self._task = task
        if self.options.backend == "mariadb":
            from gymfleet_envs.db.mariadb import MariaDatabase  # noqa: PLC0415 - as above
            from gymfleet_envs.db.mariadb_server import server_for  # noqa: PLC0415

            self._database = MariaDatabase(task.tables, self.options, server_for(self.options))
        else:
            self._database = SqliteDatabase(task.tables, self.options)
        return task.prompt

    def step(self, action: str) -> Outcome:
        """Execute a statement, or take the answer."""
        if self._over:
            return Outcome("The task is over.", score=self._score, terminated=True, action_valid=False)
        wanted = read_action(action)
        if wanted is None:
            return Outcome("Invalid action: give an SQL statement or a final answer.", action_valid=False)
        if isinstance(wanted, Answer):
            return self._answered(wanted.text)
        try:
            observation = self._database.execute(wanted.sql)
        except Refused as error:
            return Outcome(f"Invalid operation: {error}.", action_valid=False)
        self._num_operations += 1
        return Outcome(observation)

    def expert(self) -> ExpertMove | None:
        """The gold statement and the gold answer."""
        if self._over:
            return None
        gold_runs = self._num_operations > 0 or self._task.changes or self._gold_runs()
        return next_move(self._task, num_operations=self._num_operations, gold_runs=gold_runs)

    def snapshot(self) -> Self:
        """A copy of the database; all else is immutable."""
        twin = copy.copy(self)
        twin._database = self._database.copy()  # noqa: SLF001 - its own class
        return twin

    def close(self) -> None:
        """Drop the database."""
        if hasattr(self, "_database"):
            self._database.close()

    def _answered(self, text: str) -> Outcome:
        right = self._right_state() if self._task.changes else same_answer(read_answer(text), self._task.answers)
        self._score, self._over = float(right), True
        observation = _ANSWERED.format(verdict="correct" if right else "wrong")
        return Outcome(observation, reward=self._score, terminated=True, score=self._score)

    def _right_state(self) -> bool:
        state = self._database.state()
        # A published digest of a long table covers only the part that MySQL joined.
        cut = len(state) == 1 and len(state[0]) > _CUT_ROWS
        return self._task.state in (state_digest(state), *((state_digest(state, cut=True),) if cut else ()))

    def _gold_runs(self) -> bool:
        try:
            state_after(self._task.tables, self._task.gold_sql, self.options)
        except (StatementFailed, UnfitStatement):
            return False
        return True


ENVIRONMENT: Final = DBBench
