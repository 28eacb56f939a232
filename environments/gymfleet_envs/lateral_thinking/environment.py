"""AgentBench's lateral thinking puzzles as an environment."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove, ModelRole, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments, Environment, Outcome
from gymfleet_envs.lateral_thinking import judge, rules
from gymfleet_envs.lateral_thinking.benchmark import copy_files, published_tasks
from gymfleet_envs.lateral_thinking.expert import next_question
from gymfleet_envs.lateral_thinking.generate import generated_tasks
from gymfleet_envs.lateral_thinking.host import TooMuch, Verdict, answer_by_words, is_in_story
from gymfleet_envs.lateral_thinking.options import LateralThinkingOptions
from gymfleet_envs.lateral_thinking.puzzle import Puzzle
from gymfleet_envs.lateral_thinking.questions import MOST_CHARS, clean, essence, gives_up, is_one_question, named
from gymfleet_envs.tasks import TaskSource

_MOST_STRIKES: Final = 5
_LEFT_THE_GAME: Final = 2
_ASKED_AGAIN: Final = 1


class LateralThinking(Environment[Puzzle]):
    """Find out the truth behind a story with questions."""

    name: ClassVar[str] = "lateral_thinking"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Find out what is behind a story, with yes-no questions (AgentBench)"
    instructions: ClassVar[str] = rules.INSTRUCTIONS
    format: ClassVar[str] = "react"
    max_turns: ClassVar[int] = rules.ROUNDS
    max_action_chars: ClassVar[int] = 2048
    licence: ClassVar[str] = "Apache-2.0; rules, wording and benchmark puzzles: AgentBench (Apache-2.0)"
    options: ClassVar[LateralThinkingOptions] = LateralThinkingOptions()
    models: ClassVar[tuple[ModelRole, ...]] = (judge.role(rules.ROUNDS),)
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool(
            name="ask",
            description="Ask one question that can be answered with yes, no or irrelevant.",
            parameters={
                "type": "object",
                "properties": {"question": {"type": "string", "minLength": 1, "maxLength": max(MOST_CHARS.values())}},
                "required": ["question"],
                "additionalProperties": False,
            },
        ),
    )

    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "guesses_whole_facts": {
            "two_keys": 0.01, "few_hints": 0.01, "three_keys": 0.01, "two_keys_zh": 0.01, "few_hints_zh": 0.01,
            "three_keys_zh": 0.01,
        },
    }  # fmt: skip

    def __init__(self) -> None:
        self._puzzle: Puzzle
        self._asked: frozenset[str] = frozenset()
        self._found: frozenset[int] = frozenset()
        self._rounds = 0
        self._strikes = 0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Puzzle]:
        """Generated puzzles, or AgentBench's in a directory."""
        return generated_tasks() if data is None else published_tasks(data)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Copy the tables, under names that include their language."""
        copy_files(source, target)

    @classmethod
    def asked_models(cls) -> tuple[ModelRole, ...]:
        """The host, if a model plays it."""
        return cls.models if cls.options.host == "model" else ()

    @classmethod
    def is_blocking(cls) -> bool:
        """Whether calls wait for a model's answers."""
        return cls.options.host == "model"

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The question in one line."""
        del tool
        question = clean(str(arguments["question"]))
        if not question:
            raise BadArguments("the question has no text")
        return question

    def reset(self, task: Puzzle, seed: int) -> str:
        """Tell the story. The episode depends only on the task; the seed changes nothing."""
        del seed
        self._puzzle = task
        self.start_private = {"truth": task.truth, "keys": [*task.keys]}
        return rules.OPENING[task.language].format(story=task.story)

    def step(self, action: str) -> Outcome:
        """Answer a question."""
        language = self._puzzle.language
        if self._is_over:
            return self._outcome(rules.OVER[language], action_valid=False)
        self._rounds += 1
        question = clean(action)
        known = essence(question)
        if not is_one_question(question, language) or gives_up(question, language):
            return self._struck(rules.INVALID[language], _LEFT_THE_GAME)
        if known in self._asked:
            return self._struck(rules.ASKED_BEFORE[language], _ASKED_AGAIN)
        self._asked |= {known}
        if is_in_story(self._puzzle, question):
            return self._outcome(rules.IN_STORY[language])
        try:
            verdict = self._answered(question)
        except TooMuch:
            return self._struck(rules.TOO_MUCH[language], _ASKED_AGAIN)
        before = len(self._found)
        if verdict.key is not None:
            self._found |= {verdict.key}
        said = rules.ANSWERS[language][verdict.answer]
        if len(self._found) == len(self._puzzle.keys):
            said = f"{said} {rules.SOLVED[language]}"
        return self._outcome(said, reward=(len(self._found) - before) / len(self._puzzle.keys))

    def expert(self) -> ExpertMove | None:
        """The next question that leads to a key, or a question that states the key itself."""
        if self._is_over:
            return None
        return next_question(self._puzzle, self._asked, self._found, rules.ROUNDS - self._rounds)

    def state_key(self) -> str:
        """The questions asked, the keys found, and the numbers of rounds and strikes so far."""
        return repr((sorted(self._asked), sorted(self._found), self._rounds, self._strikes))

    def state_digest(self) -> str:
        """A digest of the same state."""
        return hashlib.sha256(self.state_key().encode(errors="surrogatepass")).hexdigest()

    def snapshot(self) -> Self:
        """A shallow copy: the whole state is immutable, and steps replace it."""
        return copy.copy(self)

    @property
    def _score(self) -> float:
        return len(self._found) / len(self._puzzle.keys)

    @property
    def _is_over(self) -> bool:
        return self._strikes >= _MOST_STRIKES or len(self._found) == len(self._puzzle.keys)

    def _answered(self, question: str) -> Verdict:
        if self.options.host == "words":
            return answer_by_words(self._puzzle, question)
        if self._puzzle.values and named(question, self._puzzle.language).is_too_much:
            raise TooMuch
        return judge.answer_by_model(self._puzzle, question, self._found, self._ask_host)

    def _ask_host(self, messages: Sequence[Mapping[str, str]]) -> str:
        return self.ask(judge.ROLE, messages, max_tokens=judge.MAX_TOKENS)

    def _struck(self, observation: str, strikes: int) -> Outcome:
        """Refuse a question. An agent refused too often has left the game."""
        self._strikes += strikes
        said = f"{observation} {rules.OVER[self._puzzle.language]}" if self._is_over else observation
        return self._outcome(said, action_valid=False)

    def _outcome(self, observation: str, *, reward: float = 0.0, action_valid: bool = True) -> Outcome:
        return Outcome(
            observation,
            reward=reward,
            terminated=self._is_over,
            score=self._score,
            action_valid=action_valid,
            info={"rounds": self._rounds, "strikes": self._strikes},
        )


ENVIRONMENT: Final = LateralThinking
