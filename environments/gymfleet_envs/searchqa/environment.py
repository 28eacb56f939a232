"""SearchQA as an environment."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from gymfleet_contracts.formats.searchqa import Searchqa, read_move
from gymfleet_contracts.session import ExpertMove, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments, Environment, Outcome
from gymfleet_envs.searchqa.embeddings import ATTEMPTS
from gymfleet_envs.searchqa.expert import next_move
from gymfleet_envs.searchqa.generate import generated_tasks
from gymfleet_envs.searchqa.options import SearchQAOptions
from gymfleet_envs.searchqa.passages import shown
from gymfleet_envs.searchqa.scoring import exact_match, f1
from gymfleet_envs.searchqa.store import write_store
from gymfleet_envs.searchqa.task import SearchTask
from gymfleet_envs.searchqa.tasks import published_questions
from gymfleet_envs.tasks import TaskSource

PROMPT: Final = (
    "You must reason inside <think>...</think> first. If you do not have enough knowledge, issue a "
    "<search>...</search> and then STOP. Do not generate <information> or <answer> yet. Wait for external input "
    "wrapped in <information>...</information>. After receiving information, reason again in <think>. If confident, "
    "output your final answer in <answer>...</answer>. Do not output <answer> before receiving <information> unless "
    "you are fully confident. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Follow "
    "this process every time.\n\n Question: "
)
RIGHT: Final = "Congratulations! You have answered the question correctly."
WRONG: Final = "Sorry, your answer is incorrect. Please try again."
LAST_WRONG: Final = "Sorry, your answer is incorrect."


def _tool(name: str, description: str, parameter: str, meaning: str) -> Tool:
    text: dict[str, JsonValue] = {"type": "string", "minLength": 1, "maxLength": 2000, "description": meaning}
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {parameter: text},
        "required": [parameter],
        "additionalProperties": False,
    }
    return Tool(name=name, description=description, parameters=parameters)


class SearchQA(Environment[SearchTask]):
    """Search passages until the question can be answered."""

    name: ClassVar[str] = "searchqa"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = (
        "Answer a question by searching passages (HotpotQA, as in AgentGym's SearchQA and Search-R1)"
    )
    instructions: ClassVar[str] = (
        "You must always reason inside <think>...</think> first; if you lack knowledge, issue a <search>...</search> "
        "and then stop; do not generate <information> or <answer> yet; wait for external input between "
        "<information>...</information> before continuing; resume only when new <information> is given; do not skip "
        "steps or anticipate answers early."
    )
    format: ClassVar[str] = "searchqa"
    max_turns: ClassVar[int] = 10
    max_action_chars: ClassVar[int] = 16_384
    licence: ClassVar[str] = "Apache-2.0; benchmark questions and passages: HotpotQA, Wikipedia (CC BY-SA 4.0)"
    options: ClassVar[SearchQAOptions] = SearchQAOptions()
    calls_at_once: ClassVar[int | None] = 32
    tools: ClassVar[tuple[Tool, ...]] = (
        _tool("search", "Search the passages.", "query", "What to search for."),
        _tool("answer", "Answer the question.", "answer", "The answer alone, without an explanation."),
    )

    def __init__(self) -> None:
        self._task: SearchTask
        self._over = False
        self._score = 0.0
        self._num_wrong = 0
        self._shown: frozenset[str] = frozenset()
        self._searched: frozenset[str] = frozenset()

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[SearchTask]:
        """Questions over made-up encyclopedias, or those of published files or an imported directory."""
        return generated_tasks(cls.options) if data is None else published_questions(data, cls.options)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Put passages, index and questions on disk, and vectors if the options require them."""
        write_store(source, target, cls.options)

    @classmethod
    def is_blocking(cls) -> bool:
        """Whether the search needs vectors of queries; only these make a call wait."""
        return cls.options.search != "bm25"

    @classmethod
    def longest_call_s(cls) -> float:
        """A request's time limit applies to its connection, and then again to each piece of its answer."""
        return 2 * ATTEMPTS * cls.options.embeddings_timeout_s if cls.is_blocking() else 0.0

    def action_of(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Put the text between its tags."""
        text = str(next(iter(arguments.values())))
        action = f"<{tool}>{text}</{tool}>"
        move = read_move(action)
        if move is None or (move.verb, move.content) != (tool, text.strip()):
            raise BadArguments("write no tags such as </search> or <answer>")
        return action

    def reset(self, task: SearchTask, seed: int) -> str:
        """Return the question in AgentGym's wording. The task determines everything; the seed changes nothing."""
        del seed
        self._task = task
        self.start_private = {"answers": list(task.answers)}
        return f"{PROMPT}{task.question}"

    def step(self, action: str) -> Outcome:
        """Search or answer; replies are read as by AgentGym's server. Any other reply gets a complaint."""
        if self._over:
            return Outcome("The question is answered.", score=self._score, terminated=True, action_valid=False)
        move = read_move(action)
        if move is None:
            return Outcome(Searchqa.complaint, action_valid=False)
        return self._search(move.content) if move.verb == "search" else self._answer(move.content)

    def expert(self) -> ExpertMove | None:
        """Look up the passages that lead to the answer, one after the other, and give it."""
        return None if self._over else next_move(self._task, self._shown, self._searched)

    def state_key(self) -> str:
        """The state of the answers, which alone change anything: searches find the same at any time."""
        return repr((self._over, self._num_wrong if self._task.attempts else 0, self._score))

    def snapshot(self) -> Self:
        """A shallow copy: every change replaces the object that it changes, and the corpus is shared."""
        return copy.copy(self)

    def _search(self, query: str) -> Outcome:
        corpus = self._task.corpus
        found = [corpus.passages[number] for number in corpus.search(query, self.options.results)]
        self._shown |= {passage.title for passage in found}
        self._searched |= {query}
        return Outcome(f"<information>{shown(found, self.options.passage_chars).strip()}</information>")

    def _answer(self, answer: str) -> Outcome:
        golds = self._task.answers
        right, part = exact_match(answer, golds), f1(answer, golds)
        self._num_wrong += not right
        self._over = right or self._num_wrong == self._task.attempts
        self._score = float(right)
        # While further answers are allowed, F1 would lead a caller to the right one word by word.
        info: dict[str, JsonValue] = {"f1": part} if self._over else {}
        return Outcome(
            RIGHT if right else LAST_WRONG if self._over else WRONG,
            reward=part if self.options.reward == "f1" else self._score,
            terminated=self._over,
            score=self._score,
            info=info,
            private={"f1": part},
        )


ENVIRONMENT: Final = SearchQA
