"""ScienceWorld as an environment."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from gymfleet_contracts.session import ExpertMove, ForkSupport

from gymfleet_envs.environment import EngineLost, Environment, Outcome
from gymfleet_envs.sciworld.engines import Engines, EngineSlot, engines
from gymfleet_envs.sciworld.expert import GoldPath
from gymfleet_envs.sciworld.jvm import Answer, EngineFault
from gymfleet_envs.sciworld.options import SciWorldOptions
from gymfleet_envs.sciworld.tasks import SciTask, agentgym_tasks, level_tasks, published_tasks
from gymfleet_envs.tasks import TaskSource

_MOVES: Final = 100
_NOT_UNDERSTOOD: Final = "No known action matches that input."
_NO_ANSWER: Final = (
    "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. "
)
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]+")
_HARMLESS: Final = ("look", "examine", "inventory", "task", "help", "objects")
_ACTIONS: Final = (
    ("open/close OBJ", "open/close a container"),
    ("de/activate OBJ", "activate/deactivate a device"),
    ("connect OBJ to OBJ", "connect electrical components"),
    ("disconnect OBJ", "disconnect electrical components"),
    ("use OBJ [on OBJ]", "use a device/item"),
    ("look around", "describe the current room"),
    ("look at OBJ", "describe an object in detail"),
    ("look in OBJ", "describe a container's contents"),
    ("read OBJ", "read a note or book"),
    ("move OBJ to OBJ", "move an object to a container"),
    ("pick up OBJ", "move an object to the inventory"),
    ("put down OBJ", "drop an inventory item"),
    ("pour OBJ into OBJ", "pour a liquid into a container"),
    ("dunk OBJ into OBJ", "dunk a container into a liquid"),
    ("mix OBJ", "chemically mix a container"),
    ("go to LOC", "move to a new location"),
    ("eat OBJ", "eat a food"),
    ("flush OBJ", "flush a toilet"),
    ("focus on OBJ", "signal intent on a task object"),
    ("wait", "take no action for 10 iterations"),
    ("wait1", "take no action for 1 iteration"),
    ("task", "describe current task"),
    ("inventory", "list your inventory"),
)


class SciWorld(Environment[SciTask]):
    """Do an experiment, or find what the task asks for, in a house of ten places."""

    name: ClassVar[str] = "sciworld"
    version: ClassVar[str] = "1.1.0"
    summary: ClassVar[str] = "Solve tasks of elementary science in a simulated house"
    instructions: ClassVar[str] = (
        "You are an agent for science world. Every round I will give you an observation, you have to respond an action "
        "based on the observation to finish the given task. Here are the actions you may take:\n"
        + "\n".join(f"{action} - {meaning}" for action, meaning in _ACTIONS)
    )
    max_turns: ClassVar[int] = 120
    """More than the moves, because looking is no move."""
    max_action_chars: ClassVar[int] = 1024
    fork: ClassVar[ForkSupport] = ForkSupport.REPLAY
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "goes_where_it_is_said": {"intro": 0.42, "easy": 0.04},
        "plays_the_gold_of_another_task": {"intro": 0.4, "easy": 0.22, "medium": 0.06, "hard": 0.07},
        "focuses_on_what_is_named": {"easy": 0.13},
    }
    licence: ClassVar[str] = "Apache-2.0; engine and tasks: ScienceWorld 1.2.3 (Apache-2.0), from PyPI"
    blocking: ClassVar[bool] = True
    calls_at_once: ClassVar[int | None] = 32
    options: ClassVar[SciWorldOptions] = SciWorldOptions()

    def __init__(self) -> None:
        self._engines: Engines
        self._task: SciTask
        self._slot: EngineSlot | None = None
        self._score = 0
        self._paid = 0
        """Points already given as rewards."""
        self._moves = 0
        self._turns = 0
        self._done: list[tuple[str, bool]] = []
        """Actions since the expert was last asked, and whether each changed nothing."""
        self._path: GoldPath | None = None

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[SciTask]:
        """The variations that come with the engine; with `data`, AgentGym's lists of items."""
        engines(cls.options)  # a damaged jar is told of now, not by the first session
        simplifications = cls.options.simplifications
        recorded = cls.options.agentgym_numbering == "recorded"
        if data is not None:
            return agentgym_tasks(data, simplifications=simplifications, recorded=recorded)
        make = published_tasks if cls.options.tasks == "published" else level_tasks
        return make(simplifications=simplifications, recorded=recorded)

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """The engine runs in Java."""
        return ("java",)

    def reset(self, task: SciTask, seed: int) -> str:
        """Show the task and the room. The variation itself seeds the engine: `seed` changes nothing."""
        del seed
        self._engines = engines(self.options)
        self._task = task
        self._slot = slot = self._engines.begin(task)
        play = slot.play
        self._score, self._paid, self._moves = play.last.score, 0, play.last.moves
        self.start_score = max(self._score, 0) / 100
        self.start_info = {
            "task_name": task.task,
            "variation": task.variation,
            "task_description": play.description,
        }
        return f"{play.description}\n{play.last.text}"

    def step(self, action: str) -> Outcome:
        """Apply an action. If it is not understood or not possible, the answer says so and no time passes."""
        if self._slot is None:
            raise EngineLost("the episode has ended")
        command = _command(action)
        try:
            answer = self._slot.act(command)
        except EngineFault:
            # The engine's parser fails on some texts; its world is unchanged.
            answer = Answer(_NOT_UNDERSTOOD, self._score, completed=False, moves=self._moves)
        return self._outcome(command, answer)

    def expert(self) -> ExpertMove | None:
        """The next action of the engine's own solution; None once the episode has left the solution."""
        if self._path is None:
            self._path = GoldPath(self._task, self._engines.gold(self._task))
        for action, harmless in self._done:
            self._path.follow(action, harmless=harmless)
        self._done.clear()
        return self._path.next_move()

    def close(self) -> None:
        """Release the episode in the virtual machine."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._engines.end(slot)

    def _outcome(self, command: str, answer: Answer) -> Outcome:
        understood = not answer.text.startswith(_NOT_UNDERSTOOD)
        harmless = answer.moves == self._moves and (not understood or command.startswith(_HARMLESS))
        self._done.append((command, harmless))
        # The first step also pays the points that the episode began with: rewards add up to the score.
        reward = answer.score - self._paid
        self._score, self._paid, self._moves = answer.score, answer.score, answer.moves
        self._turns += 1
        if answer.moves > _MOVES:
            self.turn_limit = self._turns  # upstream ends the episode here, as out of moves
        return Outcome(
            answer.text or _NO_ANSWER,
            reward=float(reward),
            terminated=answer.completed or answer.score < 0,
            score=max(answer.score, 0) / 100,
            action_valid=understood,
            info={"moves": answer.moves},
        )


def _command(action: str) -> str:
    """Return the action as one line of printable text, in the engine's spelling."""
    text = " ".join(_UNPRINTABLE.sub(" ", action).split())
    # Episodes recorded with earlier versions write the place's name in two words.
    return re.sub(r"\bgreen house\b", "greenhouse", text)


ENVIRONMENT: Final = SciWorld
