"""Minigrid's BabyAI worlds: created from a level and a seed, changed by primitive actions."""

import copy
import functools
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

import gymnasium
import minigrid  # noqa: F401 - importing it registers the levels
from minigrid.envs.babyai.core import roomgrid_level

_ENV_ID: Final = re.compile(r"BabyAI-(?P<level>\w+)-v[01]")


Cell = tuple[int, int]
Pose = tuple[Cell, int]
HEADINGS: Final[tuple[Cell, ...]] = ((1, 0), (0, 1), (-1, 0), (0, -1))


class Primitive(IntEnum):
    """Minigrid's own actions."""

    LEFT = 0
    RIGHT = 1
    FORWARD = 2
    PICKUP = 3
    DROP = 4
    TOGGLE = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """The effect of a primitive action."""

    changed: bool
    """False if the action was blocked: a list of actions ends there."""
    terminated: bool
    reward: float


def known_levels() -> frozenset[str]:
    """Names of minigrid's BabyAI levels, as in `GoToRedBall`."""
    return frozenset(_env_ids())


@functools.cache
def _env_ids() -> dict[str, str]:
    """Map levels to ids; in minigrid one level (GoToObjS6) has another version than the rest."""
    return {match["level"]: name for name in gymnasium.registry if (match := _ENV_ID.fullmatch(name))}


class World:
    """One BabyAI level. Fully determined by level, seed and the actions taken.

    Args:
        lenient: go on where minigrid sees a failure. It fails some levels for doing the right thing.
    """

    def __init__(self, level: str, seed: int, *, lenient: bool = False) -> None:
        self._lenient = lenient
        # Levels announce each rejected draft of a layout with a print: dozens of lines at one reset.
        roomgrid_level.print = _silent
        self.engine: Any = gymnasium.make(_env_ids()[level], disable_env_checker=True).unwrapped
        self._image: Any = self.engine.reset(seed=seed)[0]["image"]
        # Most of a primitive's time goes into its picture, and only the picture after an action's last one is used.
        self.engine.gen_obs = _no_picture

    @property
    def image(self) -> list[list[list[int]]]:
        """The agent's view: kind, colour and state of 7 by 7 cells."""
        if self._image is None:
            self._image = type(self.engine).gen_obs(self.engine)["image"]
        cells: list[list[list[int]]] = self._image.tolist()
        return cells

    @property
    def mission(self) -> str:
        """The goal in words."""
        return str(self.engine.mission)

    @property
    def out_of_steps(self) -> bool:
        """Whether the steps are used up: success is then worth nothing."""
        return bool(self.engine.step_count >= self.engine.max_steps)

    def act(self, primitive: Primitive) -> Progress:
        """Take one primitive action."""
        before = self._surroundings()
        _, reward, terminated, _, _ = self.engine.step(int(primitive))
        self._image = None
        over = bool(terminated) and (reward > 0 or not self._lenient)
        return Progress(changed=self._surroundings() != before, terminated=over, reward=float(reward))

    def signature(self) -> tuple[object, ...]:
        """Return a key that is equal for worlds in the same full state, whatever the number of steps."""
        engine = self.engine
        cells = tuple((at, cell.encode()) for at, cell in enumerate(engine.grid.grid) if cell and cell.type != "wall")
        return (*self._surroundings(), cells, self.progress())

    def progress(self) -> tuple[object, ...]:
        """Return which parts of a composed goal are done."""
        return _progress(self.engine.instrs)

    def pose(self) -> Pose:
        """Cell and heading of the agent."""
        x, y = self.engine.agent_pos
        return (int(x), int(y)), int(self.engine.agent_dir)

    def can_enter(self, cell: Cell) -> bool:
        """Return whether the cell is empty, or holds only an open door."""
        content = self.engine.grid.get(*cell)
        return content is None or bool(content.can_overlap())

    def copy(self) -> Self:
        """An independent world in the same state."""
        return copy.deepcopy(self)

    def _surroundings(self) -> tuple[object, ...]:
        engine = self.engine
        ahead = engine.grid.get(*engine.front_pos)
        carried = engine.carrying
        return (
            self.pose(),
            None if carried is None else (carried.type, carried.color),
            None if ahead is None else ahead.encode(),
        )


def _no_picture() -> dict[str, Any]:
    return {}


def _progress(instruction: Any) -> tuple[object, ...]:
    if not hasattr(instruction, "instr_a"):
        return ()
    done = (instruction.a_done, instruction.b_done)
    return (*done, _progress(instruction.instr_a), _progress(instruction.instr_b))


def _silent(*_: object) -> None:
    pass
