"""How each AgentGym server numbers its tasks and words its answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_contracts.session import EnvironmentSpec, OpenSession

TEXTCRAFT_GOALS: Final = 544
"""AgentGym's server takes `data_idx` modulo its number of goals."""
_GENERATED: Final = "generated"


@dataclass(frozen=True, slots=True)
class Game:
    """One environment as AgentGym knows it."""

    env: str
    banner: str
    benchmark_id: Callable[[int], str]
    """The task id of AgentGym's item in the benchmark's own data."""

    def task(self, spec: EnvironmentSpec, number: int, lease_s: float) -> dict[str, Any]:
        """The `open` body for AgentGym's task `number`.

        With benchmark data that very task; among generated tasks, which have no
        such numbers, the one at that place of the train split, modulo their count.
        """
        selector: dict[str, Any] = {"task_id": self.benchmark_id(number)}
        if spec.task_source == _GENERATED:
            selector = {"task_index": number % max(spec.splits.get("train", 1), 1)}
        return OpenSession(env=self.env, lease_s=lease_s, **selector).model_dump(mode="json", exclude_none=True)


TEXTCRAFT: Final = Game("textcraft", "This is environment TextCraft.", lambda number: str(number % TEXTCRAFT_GOALS))
BABYAI: Final = Game("babyai", "This is environment BabyAI.", str)
MAZE: Final = Game("maze", "This is environment LMRL-Gym.", lambda number: f"lmrlgym_maze_{number}")
WORDLE: Final = Game("wordle", "This is environment LMRL-Gym.", str)
GAMES: Final = (TEXTCRAFT, BABYAI, MAZE, WORDLE)
