"""Questions about a world that no tool changes: weather, movie, academia."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from gymfleet_envs.agentgym_tools.answers import same
from gymfleet_envs.agentgym_tools.base import Move, ToolEnvironment
from gymfleet_envs.agentgym_tools.published import Published, PublishedTasks, listed, read_published
from gymfleet_envs.tasks import TaskDataError

WorldT = TypeVar("WorldT")


@dataclass(frozen=True, slots=True)
class Question(Generic[WorldT]):
    """A question, the world that holds its answer, and the plan that finds it."""

    goal: str
    world: WorldT
    answers: tuple[str, ...]
    """Right answers as JSON; the agent must give one of them."""
    plan: tuple[Move, ...]
    date: str = ""
    location: str = ""
    """`date` and `location` are the results of the user's own two tools, in environments that have them."""


class QuestionEnvironment(ToolEnvironment[Question[WorldT]]):
    """The score is 1 for an answer that equals a gold one."""

    def _judge(self, answer: Any) -> float:
        return float(any(same(json.loads(gold), answer) for gold in self._task.answers))


def published_questions(
    env: str, data: Path, world: WorldT, *, tested: Collection[int] | None, configured: bool = False
) -> PublishedTasks[Question[WorldT]]:
    """Return AgentGym's questions, asked about `world`. Raises `TaskDataError`."""
    read = read_published(env, data, configured=configured)
    return listed(env, [(one, _question(env, data, one, world)) for one in read], tested=tested)


def _question(env: str, data: Path, read: Published, world: WorldT) -> Question[WorldT]:
    if not isinstance(read.subgoals, list) or not read.subgoals:
        raise TaskDataError(f"{env}: {data / f'{env}.jsonl'}: task {read.number}: subgoals is no list of answers")
    return Question(
        goal=read.goal,
        world=world,
        answers=tuple(json.dumps(answer) for answer in read.subgoals),
        plan=(Move.of("I know the answer.", "finish", answer=read.subgoals[0]),),
        date=read.config.get("current_date", ""),
        location=read.config.get("current_location", ""),
    )
