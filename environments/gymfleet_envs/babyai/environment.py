"""BabyAI as an environment."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove
from pydantic import JsonValue

from gymfleet_envs.babyai.actions import Options, options
from gymfleet_envs.babyai.expert import Plan, choose, make_plan
from gymfleet_envs.babyai.tasks import BabyAITask, generated_tasks, level_list_tasks
from gymfleet_envs.babyai.view import describe, look
from gymfleet_envs.babyai.world import Primitive, World
from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import TaskSource


class BabyAI(Environment[BabyAITask]):
    """Minigrid's BabyAI levels behind AgentGym's text."""

    name: ClassVar[str] = "babyai"
    version: ClassVar[str] = "1.1.0"
    summary: ClassVar[str] = "Walk through rooms on a grid and do what the goal says"
    instructions: ClassVar[str] = (
        "You are in a room on a grid and have a goal. Each turn, take one action:\n"
        "turn left\nturn right\nmove forward\n"
        "go to <obj> <id>\n"
        "pickup <obj> <id>\n"
        "drop - put what you carry in front of you\n"
        "go through <door> <id> - the door must be open\n"
        "toggle and go through <door> <id> - the door is closed, or locked and you carry a key of its color\n"
        "toggle - open or close what is right in front of you\n"
        "check available actions\n"
        "You can name only what you see; its id is its number in the observation, as in: go to red ball 1"
    )
    max_turns: ClassVar[int] = 64
    max_action_chars: ClassVar[int] = 256
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "plays_the_gold_of_another_task": {"intro": 0.4, "easy": 0.13, "medium": 0.03, "hard": 0.04},
    }
    licence: ClassVar[str] = "Apache-2.0; engine: minigrid (Apache-2.0)"

    def __init__(self) -> None:
        self._world: World
        self._options: Options
        self._plan: Plan = ()
        self._at_a_loss: tuple[object, ...] | None = None
        self._over = False

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[BabyAITask]:
        """Generated worlds by difficulty, or the levels listed in `data/levels.txt`, numbered as in AgentGym."""
        return generated_tasks() if data is None else level_list_tasks(data)

    def reset(self, task: BabyAITask, seed: int) -> str:
        """Build the world. The episode depends only on the task; the seed changes nothing."""
        del seed
        self._world = World(task.level, task.seed, lenient=task.lenient)
        self._plan = ()
        self._at_a_loss = None
        self._over = False
        return f"Your goal: {self._world.mission}\n{self._see()}{self._listing()}"

    def step(self, action: str) -> Outcome:
        """Take one high-level action: its primitives one by one, up to success or the first that is blocked."""
        name = " ".join(action.lower().split()).strip("\"'`.")
        if name.startswith("pick up "):
            name = "pickup " + name.removeprefix("pick up ")
        if "check" in name:
            return self._answer(f"You can take the following actions: {', '.join(self._options.names)}")
        if not name:
            return self._answer("No change in state.", action_valid=False)
        if name in self._options.refused:
            return self._answer(self._options.refused[name])
        if name not in self._options.possible:
            return self._answer("The action is not recognized. Please check valid actions.", action_valid=False)
        primitives = self._options.possible[name]
        return self._walk(primitives) if primitives else self._answer("No change in state.")

    def expert(self) -> ExpertMove | None:
        """The next text action on the bot's path; a plan is kept as long as the episode follows it."""
        signature = self._world.signature()
        if self._over or signature == self._at_a_loss:
            return None
        if not self._plan or self._plan[0].signature != signature:
            self._plan = make_plan(self._world, self._plan[0].seen if self._plan else None)
        if not self._plan or (chosen := choose(self._world, self._options, self._plan)) is None:
            self._at_a_loss = signature  # asked again here, it would look as long and find as little
            return None
        move, self._plan = chosen
        return move

    def state_key(self) -> str:
        """The whole world, including the parts outside of the agent's view."""
        return f"{self._over} {self._world.signature()}"

    def admissible_actions(self) -> list[str]:
        """The actions that the observation lists."""
        return list(self._options.names)

    def snapshot(self) -> Self:
        """A copy of the world; options and plan are never changed in place."""
        twin = copy.copy(self)
        twin._world = self._world.copy()  # noqa: SLF001 - its own class
        return twin

    def _walk(self, primitives: tuple[Primitive, ...]) -> Outcome:
        reward = 0.0
        for primitive in primitives:
            progress = self._world.act(primitive)
            if progress.terminated:
                self._over, reward = True, progress.reward
                break
            if not progress.changed:
                break
        observation = self._see()
        solved = reward > 0
        if solved:
            observation += "\nThe task is completed."
        elif self._over or self._world.out_of_steps:
            self._over = True
            observation += "\nThe task has failed."
        return Outcome(
            observation + self._listing(),
            reward=reward,
            terminated=self._over,
            score=float(solved),
            info=self._info(),
        )

    def _answer(self, text: str, *, action_valid: bool = True) -> Outcome:
        return Outcome(text + self._listing(), action_valid=action_valid, info=self._info())

    def _see(self) -> str:
        view = look(self._world)
        self._options = options(view)
        return describe(view)

    def _listing(self) -> str:
        names = ", ".join(f'"{name}"' for name in self._options.names)
        return f"\nAvailable actions: [{names}]"

    def _info(self) -> dict[str, JsonValue]:
        return {"steps": int(self._world.engine.step_count), "max_steps": int(self._world.engine.max_steps)}


ENVIRONMENT: Final = BabyAI
