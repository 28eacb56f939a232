"""ALFWorld as an environment."""

import re
from pathlib import Path
from typing import ClassVar, Final, cast

from gymfleet_contracts.session import ExpertMove, ForkSupport
from pydantic import JsonValue

from gymfleet_envs.alfworld.engine import NOTHING_HAPPENS, Engine
from gymfleet_envs.alfworld.expert import Memory, next_move
from gymfleet_envs.alfworld.game import Goal
from gymfleet_envs.alfworld.generate import generated_tasks
from gymfleet_envs.alfworld.tasks import HouseTask, benchmark_tasks, import_games
from gymfleet_envs.alfworld.wording import Wording
from gymfleet_envs.environment import Environment, Options, Outcome
from gymfleet_envs.tasks import TaskSource

_PUT: Final = re.compile(r"put (.+?) (?:in/on|in|on|into|onto|to) (.+)")
_MOVE: Final = re.compile(r"move (.+?) (?:to|in/on) (.+)")
_MAX_TURNS: Final = 50


class AlfworldOptions(Options):
    """`wording` applies to generated games; game files have their own."""

    wording: Wording = "classic"
    show_actions: bool = False
    """Whether observations end with the possible actions, as in AgentGym's client."""


class Alfworld(Environment[HouseTask]):
    """Household tasks in text: go, open, take, put, clean, heat, cool, use."""

    name: ClassVar[str] = "alfworld"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Household tasks in text: find things, clean, heat or cool them, put them in their place"
    instructions: ClassVar[str] = (
        "You act in a household to finish a task. Each turn, take one action:\n"
        "go to <receptacle> - see what is in or on it\n"
        "open <receptacle> / close <receptacle>\n"
        "take <object> from <receptacle> - you can hold one object\n"
        "put <object> in/on <receptacle> - `move <object> to <receptacle>` means the same\n"
        "clean <object> with <receptacle> - with a sinkbasin\n"
        "heat <object> with <receptacle> - with a microwave\n"
        "cool <object> with <receptacle> - with a fridge\n"
        "use <object> - turn on a lamp\n"
        "examine <object or receptacle> / inventory / look\n"
        "Objects and receptacles are named with their number, like: go to cabinet 1. Go to a receptacle before you use "
        "it. 'Nothing happens.' means that the action cannot be taken now."
    )
    max_turns: ClassVar[int] = _MAX_TURNS
    max_action_chars: ClassVar[int] = 1024
    fork: ClassVar[ForkSupport] = ForkSupport.REPLAY
    licence: ClassVar[str] = "Apache-2.0; game files: ALFWorld's (MIT)"
    options: ClassVar[Options] = AlfworldOptions()

    def __init__(self) -> None:
        self._engine: Engine
        self._goal: Goal | None = None
        self._memory = Memory()
        self._walkthrough: tuple[str, ...] = ()

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[HouseTask]:
        """Generated households, or a directory of `game.tw-pddl` files or of lists of their names."""
        return generated_tasks() if data is None else benchmark_tasks(data)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Check and copy the game files that can be played, or copy the lists and floor plans."""
        import_games(source, target)

    def reset(self, task: HouseTask, seed: int) -> str:
        """Start in the middle of the room. The task determines everything; the seed changes nothing."""
        del seed
        game = task.game(self._settings().wording)
        self.turn_limit = game.turn_limit
        self._goal = game.goal
        self._walkthrough = game.walkthrough
        self._memory = Memory()
        self._engine = Engine(game)
        task_type = game.goal.task_type if game.goal is not None else ""
        self.start_info = {"task_type": task_type, **self._actions()}
        return self._shown(self._engine.intro)

    def step(self, action: str) -> Outcome:
        """Execute the action, if it is possible now."""
        engine, memory = self._engine, self._memory
        command = _understood(action, engine)
        memory.num_turns += 1
        if command is None:
            observation = NOTHING_HAPPENS
        else:
            observation = engine.step(command)
            memory.look(engine)
        self._walkthrough = self._walkthrough[1:] if self._walkthrough[:1] == (command,) else ()
        won = float(engine.won)
        return Outcome(
            self._shown(observation),
            reward=won,
            terminated=engine.won,
            score=won,
            action_valid=command is not None,
            info=self._actions(),
        )

    def expert(self) -> ExpertMove | None:
        """The searching expert's next command; for a game of another kind, its walkthrough's."""
        if self._engine.won:
            return None
        if self._goal is not None:
            return next_move(self._engine, self._memory, self._goal, self.turn_limit or self.max_turns)
        if self._walkthrough and self._engine.holds(self._walkthrough[0]):
            return ExpertMove(thought="I go on with the plan.", action=self._walkthrough[0])
        return None

    def state_key(self) -> str:
        """The facts of the household: the place of everything, what is open, what the player holds."""
        return self._engine.state_key()

    def admissible_actions(self) -> list[str]:
        """The game's commands."""
        return self._engine.commands

    def close(self) -> None:
        """Return the planner's copy to the pool. An episode that never began has none."""
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.close()

    def _actions(self) -> dict[str, JsonValue]:
        return {"available_actions": list[JsonValue](self._engine.commands)}

    def _shown(self, observation: str) -> str:
        if not self._settings().show_actions:
            return observation
        return f"{observation}\nAVAILABLE ACTIONS: {','.join(self._engine.commands)}"

    @classmethod
    def _settings(cls) -> AlfworldOptions:
        return cast(AlfworldOptions, cls.options)


def _understood(action: str, engine: Engine) -> str | None:
    """Return the intended command in the game's own wording; None if it is not possible now."""
    command = " ".join(action.split()).rstrip(".")
    for text in (command, command.lower()):
        if engine.holds(text):
            return text
    if match := _PUT.fullmatch(command.lower()) or _MOVE.fullmatch(command.lower()):
        for template in ("put {} in/on {}", "move {} to {}", "put {} in {}", "put {} on {}"):
            if engine.holds(text := template.format(match[1], match[2])):
                return text
    return None


ENVIRONMENT: Final = Alfworld
