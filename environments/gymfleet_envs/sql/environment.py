"""Text-to-SQL as an environment: one question, one query."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.sql.benchmark import benchmark_tasks, check_databases
from gymfleet_envs.sql.engine import Databases, Rows, query
from gymfleet_envs.sql.generate import generated_tasks
from gymfleet_envs.sql.options import SqlOptions
from gymfleet_envs.sql.task import SqlTask
from gymfleet_envs.sql_text import UnfitStatement
from gymfleet_envs.sqlite.functions import may_grow
from gymfleet_envs.sqlite.guard import GuardedConnection, StatementFailed
from gymfleet_envs.tasks import TaskSource

_BLOCK: Final = re.compile(r"```(?:sql|sqlite)?[ \t]*\n?(.*?)(?:```|\Z)", re.IGNORECASE | re.DOTALL)


class Sql(Environment[SqlTask]):
    """One query on a read-only database."""

    name: ClassVar[str] = "sql"
    version: ClassVar[str] = "1.1.0"
    summary: ClassVar[str] = "Answer a question about a database with one SQL query (BIRD and Spider, as in AgentGym)"
    instructions: ClassVar[str] = (
        "Given you a description of a SQlite database system, I will ask you a question, then you should help me "
        "operate the SQLite database with SQL to answer the question.\n"
        "You have to explain the problem and your solution to me and write down your thoughts. After thinking and "
        "explaining thoroughly, you should give a SQL statement to solve the question.\n"
        "You MUST put SQL in markdown format without any other comments. Your SQL should be in one line. You can only "
        "execute one SQL statement."
    )
    format: ClassVar[str] = "sqlgym"
    max_turns: ClassVar[int] = 1
    max_action_chars: ClassVar[int] = 8192
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "selects_a_constant": {"medium": 0.043},
        "plays_the_gold_of_another_task": {"easy": 0.007, "medium": 0.01, "hard": 0.017},
    }
    licence: ClassVar[str] = "Apache-2.0; benchmark questions and databases: BIRD, Spider (CC BY-SA 4.0)"
    options: ClassVar[SqlOptions] = SqlOptions()
    blocking: ClassVar[bool] = True
    calls_at_once: ClassVar[int | None] = 32
    _databases: ClassVar[Databases] = Databases()

    def __init__(self) -> None:
        self._task: SqlTask
        self._over = False
        self._score = 0.0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[SqlTask]:
        """Generated databases, or the questions of a directory of BIRD or Spider."""
        return generated_tasks() if data is None else benchmark_tasks(data, cls.options)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Copy the files, and check every database of the copy."""
        super().import_data(source, target)
        check_databases(target)

    def reset(self, task: SqlTask, seed: int) -> str:
        """Describe the database and ask the question. All depends on the task alone; the seed changes nothing."""
        del seed
        self._task = task
        return task.prompt

    def step(self, action: str) -> Outcome:
        """Execute the query; whatever its result, the episode is over."""
        if self._over:
            return Outcome("The task is over.", score=self._score, terminated=True, action_valid=False)
        self._over = True
        sql = read_query(action)
        with self._databases.connection(self._task, self.options) as connection:
            # The gold query comes first: if it fails, that is the environment's fault and no wrong answer.
            gold = self._databases.gold(self._task, connection, self.options)
            if not may_grow(sql):
                return self._judged(connection, sql, gold)
        with self._databases.connection(self._task, self.options, bounded=True) as connection:
            return self._judged(connection, sql, gold)

    def _judged(self, connection: GuardedConnection, sql: str, gold: Rows) -> Outcome:
        try:
            rows = query(connection, sql, self.options)
        except StatementFailed as error:
            return Outcome(self._cut(str(error)), terminated=True)
        except UnfitStatement as error:
            return Outcome(self._cut(str(error)), terminated=True, action_valid=False)
        self._score = float(frozenset(rows) == gold)
        shown = self._cut(str(rows[: self.options.observation_chars]))
        return Outcome(shown, reward=self._score, terminated=True, score=self._score)

    def expert(self) -> ExpertMove | None:
        """The gold query."""
        if self._over:
            return None
        thought = "The tables and columns that the question names are in this query."
        return ExpertMove(thought=thought, action=self._task.gold_sql.strip())

    def snapshot(self) -> Self:
        """A shallow copy: nothing is held between calls."""
        return copy.copy(self)

    def _cut(self, text: str) -> str:
        limit = self.options.observation_chars
        return f"{text[:limit]}..." if len(text) > limit else text


def read_query(action: str) -> str:
    """Return the bare statement, or that of the last code block, as AgentGym's client reads it."""
    blocks = _BLOCK.findall(action)
    return str(blocks[-1] if blocks else action.strip().removeprefix("Action:")).strip()


ENVIRONMENT: Final = Sql
