"""The expert: minigrid's bot decides where to go, and the expert goes there in as few text actions as possible."""

from dataclasses import dataclass
from typing import Any, Final

from gymfleet_contracts.session import ExpertMove
from minigrid.utils.baby_ai_bot import BabyAIBot

from gymfleet_envs.babyai.actions import Options
from gymfleet_envs.babyai.world import HEADINGS, Cell, Pose, Primitive, World

MAX_SEARCHES: Final = 48
"""Searches for one primitive action; the bot needs at most 10 if it knows what to do, and else never ends."""
_MOVES: Final = frozenset({Primitive.LEFT, Primitive.RIGHT, Primitive.FORWARD})
_THOUGHTS: Final = {
    "go to": "I go to the {thing}.",
    "pickup": "I need the {thing}, so I pick it up.",
    "toggle and go through": "I open the {thing} and look what is behind it.",
    "go through": "The {thing} is open, so I go through.",
    "turn left": "I turn left to see more or to face the right way.",
    "turn right": "I turn right to see more or to face the right way.",
    "move forward": "The way ahead is free, so I move on.",
    "drop": "I put down what I carry here.",
    "toggle": "It is right in front of me, so I toggle it.",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A point on the bot's path: the world there, and the bot's next action (None at the end)."""

    signature: tuple[object, ...]
    progress: tuple[object, ...]
    pose: Pose
    seen: Any
    """(width, height) bool, the cells that the bot knows."""
    primitive: Primitive | None


Plan = tuple[Stage, ...]


class _Lost(Exception):
    """The bot turns in a circle: it sets itself the same goals over and over."""


class _BoundedBot(BabyAIBot):  # type: ignore[misc]
    """Minigrid's bot with a bound on its work that, unlike a time limit, is the same on every machine."""

    def replan(self) -> Any:
        """Return the next primitive action. Raises `_Lost`."""
        self._searches = 0
        return super().replan()

    def _breadth_first_search(self, *args: Any, **kwargs: Any) -> Any:
        self._searches += 1
        if self._searches > MAX_SEARCHES:
            raise _Lost
        return super()._breadth_first_search(*args, **kwargs)


def make_plan(world: World, seen: Any | None) -> Plan:
    """Let the bot play a copy of the world, with the cells already `seen`. Empty if it does not reach the goal."""
    rehearsal = world.copy()
    bot = _new_bot(rehearsal, seen)
    stages: list[Stage] = []
    while not rehearsal.out_of_steps:
        try:
            action = int(bot.replan())
        except (AssertionError, _Lost):  # an assertion is how the bot itself says that it is lost
            return ()
        if action not in tuple(Primitive):
            # The bot takes the goal for reached; an episode that begins in front of its goal notices that only after
            # a move.
            action = Primitive.LEFT
            bot = _new_bot(rehearsal, bot.vis_mask)
        primitive = Primitive(action)
        stages.append(_stage(rehearsal, bot, primitive))
        done = rehearsal.act(primitive)
        if done.terminated:
            return (*stages, _stage(rehearsal, bot, None)) if done.reward > 0 else ()
    return ()


def _new_bot(world: World, seen: Any | None) -> Any:
    bot = _BoundedBot(world.engine)
    if seen is not None:
        bot.vis_mask |= seen
    return bot


def _stage(world: World, bot: Any, primitive: Primitive | None) -> Stage:
    return Stage(world.signature(), world.progress(), world.pose(), bot.vis_mask.copy(), primitive)


def choose(world: World, options: Options, plan: Plan) -> tuple[ExpertMove, Plan] | None:
    """Return the action that gets furthest along the plan, and the plan from there on."""
    course = _Course(world, plan)
    reached = {name: course.reach(steps, options.targets.get(name)) for name, steps in options.possible.items()}
    for name in sorted(reached, key=lambda name: (-reached[name].index, reached[name].aside)):
        if not reached[name].index:
            return None
        rest = plan[reached[name].index :]
        if reached[name].aside:
            rest = _plan_after(world, options.possible[name], rest[0].seen)
        if rest:
            return ExpertMove(thought=_thought(name), action=name), rest
    return None


def _plan_after(world: World, primitives: tuple[Primitive, ...], seen: Any) -> Plan:
    """Return a new plan from where an action leads. Empty if the bot, started there, would be lost."""
    trial = world.copy()
    for primitive in primitives:
        done = trial.act(primitive)
        if done.terminated:
            return (_stage(trial, _new_bot(trial, seen), None),) if done.reward > 0 else ()
    return make_plan(trial, seen)


@dataclass(frozen=True, slots=True)
class _Reach:
    index: int
    """The stage of the plan that an action leads to; 0 if it leads elsewhere."""
    aside: bool = False
    """Whether the action does what the plan does, but from another side: it then needs a new plan."""


class _Course:
    """The plan up to `_end`: the next interaction, or the next part of the goal. No action may skip it."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._end = next(
            index
            for index, stage in enumerate(plan)
            if stage.primitive not in _MOVES or stage.progress != plan[0].progress
        )
        self._index_of = {stage.pose: index for index, stage in enumerate(plan[: self._end + 1])}

    def reach(self, primitives: tuple[Primitive, ...], target: Cell | None) -> _Reach:
        """Return how far along the plan an action leads."""
        cut = next((at for at, primitive in enumerate(primitives) if primitive not in _MOVES), len(primitives))
        pose, then = self._walk(primitives[:cut]), primitives[cut:]
        if pose is None:
            return _Reach(0)
        if (index := self._index_of.get(pose)) is not None:
            planned = tuple(stage.primitive for stage in self._plan[index : index + len(then)])
            return _Reach(index + len(then) if planned == then else 0)
        last = self._plan[self._end]
        if target is not None and _facing(pose) == target == _facing(last.pose):
            if then == (Primitive.PICKUP,) and last.primitive is Primitive.PICKUP:
                return _Reach(self._end + 1, aside=True)
            if not then and last.primitive in {*_MOVES, None}:
                return _Reach(self._end, aside=True)
        return _Reach(0)

    def _walk(self, path: tuple[Primitive, ...]) -> Pose | None:
        """Return where a path ends in the real world; None if it is blocked."""
        cell, heading = self._world.pose()
        for primitive in path:
            if primitive is Primitive.FORWARD:
                cell = _facing((cell, heading))
                if not self._world.can_enter(cell):
                    return None
            else:
                heading = (heading + (1 if primitive is Primitive.RIGHT else -1)) % 4
        return cell, heading


def _facing(pose: Pose) -> Cell:
    (x, y), heading = pose
    dx, dy = HEADINGS[heading]
    return x + dx, y + dy


def _thought(action: str) -> str:
    for verb, thought in _THOUGHTS.items():
        if action == verb or action.startswith(verb + " "):
            return thought.format(thing=action.removeprefix(verb).strip().rpartition(" ")[0])
    return "I go on."
