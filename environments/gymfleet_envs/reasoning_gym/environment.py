"""Reasoning Gym as an environment: a question, one answer, and the package's own scorer."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments, Environment, Outcome
from gymfleet_envs.reasoning_gym.options import ReasoningGymOptions
from gymfleet_envs.reasoning_gym.scoring import MAX_CHARS, is_right, package_score
from gymfleet_envs.reasoning_gym.source import Question, question_tasks
from gymfleet_envs.tasks import TaskDataError, TaskSource

_BEGIN: Final = "<answer>"
_END: Final = "</answer>"
_THOUGHT: Final = "</think>"


class ReasoningGym(Environment[Question]):
    """One question of a procedural data set, answered once."""

    name: ClassVar[str] = "reasoning_gym"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Answer a question of one of Reasoning Gym's 98 procedural data sets"
    instructions: ClassVar[str] = (
        "Given a problem, your task is to answer the question by thinking step-by-step in a clear and specific "
        "manner.\nOnce you have thought about the reasoning process, provide the answer in the following format:\n"
        "<answer>answer here</answer>\n"
        "Do not explain your reasoning inside the answer tags, provide only the final answer. When an example is "
        "provided, you should strictly follow the format of the output/answer in that example."
    )
    format: ClassVar[str] = "free"
    max_turns: ClassVar[int] = 1
    max_action_chars: ClassVar[int] = 65_536
    licence: ClassVar[str] = "Apache-2.0 (reasoning-gym); some of its data sets hold others' data, see its README"
    options: ClassVar[ReasoningGymOptions] = ReasoningGymOptions()
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "calls_every_tool": {"base_conversion": 0.005},
        "plays_the_gold_of_another_task": {"chain_sum": 0.005, "prime_factorization": 0.01},
        "says_one_number": {"chain_sum": 0.01, "base_conversion": 0.005},
        "says_zero": {"chain_sum": 0.01},
    }
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool(
            name="answer",
            description="Answer the question.",
            parameters={
                "type": "object",
                "properties": {
                    "answer": {
                        "type": "string", "minLength": 1, "maxLength": MAX_CHARS,
                        "description": "The final answer alone, in the form that the question asks for.",
                    }
                },
                "required": ["answer"],
                "additionalProperties": False,
            },
        ),
    )  # fmt: skip

    _question: Question
    _over: bool = False
    _score: float = 0.0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Question]:
        """Return the questions of the data sets that the options name."""
        if data is not None:
            raise TaskDataError(f"{data}: its questions are drawn by the package: there are no files to import")
        return question_tasks(cls.options)

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:  # noqa: ARG002 - there is one
        """Put the answer between its tags."""
        answer = str(arguments["answer"])
        if _BEGIN in answer or _END in answer or _THOUGHT in answer:
            raise BadArguments("give the answer without tags")
        return f"{_BEGIN}{answer}{_END}"

    def reset(self, task: Question, seed: int) -> str:
        """Ask the question. The episode depends only on the task; the seed changes nothing."""
        del seed
        self._question = task
        self.start_info = {"dataset": task.dataset, "index": task.index}
        self.start_private = {"answer": task.solution}
        return task.prompt

    def step(self, action: str) -> Outcome:
        """Score the answer; that ends the episode, even if there is no answer."""
        if self._over:
            return Outcome("The question is answered.", score=self._score, terminated=True, action_valid=False)
        self._over = True
        answer = _answer_of(action)
        if answer is None:
            return Outcome("The reply holds no answer.", terminated=True, action_valid=False)
        question = self._question
        given = package_score(question, answer)
        self._score = float(is_right(given))
        return Outcome(
            "The answer is taken.",
            reward=self._score,
            terminated=True,
            score=self._score,
            private={"package_score": given},
        )

    def expert(self) -> ExpertMove | None:
        """Give the right answer, if the package names one."""
        if self._over or not (solution := self._question.solution):
            return None
        return ExpertMove(thought="I know the answer.", action=f"{_BEGIN}{solution}{_END}")

    def state_key(self) -> str:
        """Whether the question is answered, and the score."""
        return repr((self._over, self._score))

    def snapshot(self) -> Self:
        """Return a shallow copy: the objects that it holds never change."""
        return copy.copy(self)


def _answer_of(reply: str) -> str | None:
    """Return the text in the last pair of tags outside the reasoning, as the package reads replies."""
    said = reply.rpartition(_THOUGHT)[2].partition("<think>")[0]
    begin = said.rfind(_BEGIN)
    inside, closed, _ = said[begin + len(_BEGIN) :].partition(_END)
    return (inside.strip() or None) if begin >= 0 and closed else None


ENVIRONMENT: Final = ReasoningGym
