"""How each AgentGym server numbers its tasks and words its answers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_contracts.session import EnvironmentSpec, OpenSession

TEXTCRAFT_GOALS: Final = 544
"""AgentGym's server takes `data_idx` modulo its number of goals."""
BIRD_TRAIN: Final = 9428
"""Questions in BIRD's train file."""
_GENERATED: Final = "generated"
_TITLE: Final = "-= Welcome to TextWorld, ALFRED! =-"
_ARRIVAL: Final = re.compile(r"^You arrive at loc [0-9]+\. ")


@dataclass(frozen=True, slots=True)
class Game:
    """One environment as AgentGym knows it."""

    env: str
    """The environment's name in gymfleet."""
    path: str
    """Path of its client's calls, below the front; the first part is AgentGym's name for it."""
    banner: str
    benchmark_id: Callable[[int], str] = str
    """The task id of AgentGym's item in the benchmark's own data. Where AgentGym's numbers differ from the benchmark's
    ids, the environment's tasks know both."""
    words: Callable[[str], str] = str
    """Turns the engine's text into the text that AgentGym's server sends."""
    shows: tuple[str, ...] = ()
    """The keys of an observation's info that AgentGym's server reports."""
    generated_level: str | None = None
    """The level of the generated tasks that fits AgentGym's client; None for the environment's default."""
    tells_errors: bool = True
    """Whether a client's mistake is answered with status 200 and `{"error"}`; if not, with a 500."""

    @property
    def root(self) -> str:
        """The root path of the server."""
        return "/" + self.path.split("/")[1]

    def task(self, spec: EnvironmentSpec, number: int, lease_s: float) -> dict[str, Any]:
        """Return the `open` body for AgentGym's task `number`.

        With benchmark data, that is exactly this task. Generated tasks have no such
        numbers: there, it is the task at this index of the train split, modulo their count.
        """
        selector: dict[str, Any] = {"task_id": self.benchmark_id(number)}
        if spec.task_source == _GENERATED:
            selector = {"task_index": number % max(spec.splits.get("train", 1), 1), "level": self.generated_level}
        return OpenSession(env=self.env, lease_s=lease_s, **selector).model_dump(mode="json", exclude_none=True)


def _bird_question(number: int) -> str:
    """Return a question's id: AgentGym numbers the questions of BIRD's train file, then those of its dev file."""
    return f"train.{number}" if number < BIRD_TRAIN else f"dev.{number - BIRD_TRAIN}"


def _without_banner(text: str) -> str:
    """Return ALFWorld's text as AgentGym, and ReAct before it, show it: without the title and the place numbers."""
    title, *paragraphs = text.split("\n\n")
    if title == _TITLE:
        text = "\n".join(paragraphs)
    return _ARRIVAL.sub("", text)


TEXTCRAFT: Final = Game(
    "textcraft", "/textcraft", "This is environment TextCraft.", lambda number: str(number % TEXTCRAFT_GOALS)
)
BABYAI: Final = Game("babyai", "/babyai", "This is environment BabyAI.")
MAZE: Final = Game("maze", "/maze/maze", "This is environment LMRL-Gym.", lambda number: f"lmrlgym_maze_{number}")
# Its client asks for the vocabulary once, before the first game, and shows it with every game.
WORDLE: Final = Game("wordle", "/wordle/wordle", "This is environment LMRL-Gym.", generated_level="shared_400")
ALFWORLD: Final = Game(
    "alfworld", "/alfworld", "This is environment AlfWorld.", words=_without_banner,
    shows=("available_actions", "task_type"),
)  # fmt: skip
SCIWORLD: Final = Game(
    "sciworld", "/sciworld", "This is environment ScienceWorld.", shows=("task_name", "variation", "task_description")
)
SQLGYM: Final = Game("sql", "/sqlgym", "ok", _bird_question, tells_errors=False)
WEBSHOP: Final = Game("webshop", "/webshop", "ok", shows=("has_search_bar", "clickables"), tells_errors=False)
SEARCHQA: Final = Game("searchqa", "/searchqa", "ok", tells_errors=False)
TOOLS: Final = tuple(
    Game(env, f"/{env}", "ok", tells_errors=False) for env in ("academia", "movie", "sheet", "todo", "weather")
)
"""The tool environments: one wire, a server for each."""
GAMES: Final = (TEXTCRAFT, BABYAI, MAZE, WORDLE, ALFWORLD, SCIWORLD, SQLGYM, WEBSHOP, SEARCHQA, *TOOLS)
