"""TextWorld's games as an environment, played in this process in the words of the compiled games."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self

from gymfleet_contracts.session import ExpertMove
from pydantic import JsonValue

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.textworld import wording
from gymfleet_envs.textworld.commands import refusal, understood
from gymfleet_envs.textworld.engine import State, begin
from gymfleet_envs.textworld.expert import Way
from gymfleet_envs.textworld.files import copy_games, saved_games
from gymfleet_envs.textworld.game import Game
from gymfleet_envs.textworld.generate import generated_tasks
from gymfleet_envs.textworld.options import TextWorldOptions

_MOST_TURNS: Final = 100


class GameTask(Protocol):
    """A task: a seed, or a file."""

    @property
    def game(self) -> Game:
        """The game. Raises `TaskDataError`."""

    @property
    def turn_limit(self) -> int:
        """The most commands that may be given."""


class TextWorld(Environment[GameTask]):
    """Text adventures: go, take, open, unlock, put, cook, eat."""

    name: ClassVar[str] = "textworld"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Text adventures of TextWorld: collect a coin, find a treasure, cook by a recipe"
    instructions: ClassVar[str] = (
        "You play a text adventure. Each turn, give one command:\n"
        "look / inventory / examine <thing> / goal\n"
        "go north, go south, go east, go west\n"
        "take <thing> / take <thing> from <place> / drop <thing>\n"
        "put <thing> on <place> / insert <thing> into <container>\n"
        "open <door or container> / close <door or container>\n"
        "lock <door or container> with <key> / unlock <door or container> with <key>\n"
        "eat <food>, and where there is a kitchen: examine cookbook, cook <food> with <stove, oven or BBQ>, "
        "slice, dice or chop <food> with <knife>, prepare meal\n"
        "You have won when the goal is reached; what cannot be taken back may lose the game."
    )
    max_turns: ClassVar[int] = _MOST_TURNS
    max_action_chars: ClassVar[int] = 1024
    licence: ClassVar[str] = "MIT (TextWorld)"
    options: ClassVar[TextWorldOptions] = TextWorldOptions()
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "eats_what_it_can": {"cooking": 0.09, "cooking_house": 0.02, "cooking_town": 0.01},
        "opens_and_takes_all": {"cooking": 0.2, "simple": 0.23, "cooking_house": 0.06, "cooking_town": 0.03},
        "plays_the_gold_of_another_task": {
            "coin_collector": 0.01, "treasure_hunter": 0.01, "cooking": 0.03, "simple": 0.3, "cooking_house": 0.01,
            "cooking_town": 0.01,
        },
    }  # fmt: skip

    _state: State
    _way: Way

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[GameTask]:
        """Generated games, or a directory of games that TextWorld saved. Raises `TaskDataError`."""
        return generated_tasks() if data is None else saved_games(data)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Check and copy the games that TextWorld saved."""
        copy_games(source, target)

    def reset(self, task: GameTask, seed: int) -> str:
        """Begin the game. The task determines everything; the seed changes nothing."""
        del seed
        self._state = begin(task.game)
        self._way = Way(task.game)
        self.turn_limit = task.turn_limit
        self.start_info = self._points()
        return self._shown(wording.opening(self._state))

    def step(self, action: str) -> Outcome:
        """Execute the action, if it is possible now."""
        before = self._state
        if before.end is not None:
            return self._outcome("The game is over.", before, valid=False)
        if action.strip().lower().rstrip(".") == "goal":
            return self._outcome(before.game.objective, before)
        command = understood(action, before)
        done = None if command is None else before.action(command)
        if done is None:
            return self._outcome(refusal(action, before), before, valid=False)
        if done.rule.startswith("make/") and (reason := before.unready_meal()) is not None:
            return self._outcome(reason, before)
        self._state = before.after(done)
        self._way = self._way.after(done, before, self._state)
        return self._outcome(wording.feedback(done, before, self._state), before)

    def expert(self) -> ExpertMove | None:
        """The next command of the walkthrough, or the command that undoes the last step away from it."""
        if self._state.end is not None or (command := self._way.command(self._state)) is None:
            return None
        return ExpertMove(thought="I go on with the plan.", action=command)

    def state_key(self) -> str:
        """The facts of the world, and the completed quests."""
        return self._state.key

    def admissible_actions(self) -> list[str]:
        """The commands that the package's logic allows now, sorted."""
        return list(self._state.actions)

    def snapshot(self) -> Self:
        """Return an independent copy: states never change."""
        return copy.copy(self)

    def _outcome(self, observation: str, before: State, *, valid: bool = True) -> Outcome:
        state = self._state
        return Outcome(
            self._shown(observation),
            reward=(state.points - before.points) / state.game.max_score,
            terminated=state.end is not None,
            score=self._score(),
            action_valid=valid,
            info=self._points(),
        )

    def _score(self) -> float:
        """Return the share of the points. It is 1 if, and only if, the game is won: optional quests may remain."""
        state = self._state
        if state.end == "won":
            return 1.0
        return min(state.points / state.game.max_score, 0.99)

    def _points(self) -> dict[str, JsonValue]:
        return {"points": self._state.points, "max_points": self._state.game.max_score}

    def _shown(self, observation: str) -> str:
        if not self.options.show_actions:
            return observation
        return f"{observation}\nAVAILABLE ACTIONS: {','.join(self._state.actions)}"


ENVIRONMENT: Final = TextWorld
