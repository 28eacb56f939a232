"""The expert: minigrid's bot decides where to go, in as few text actions as possible."""

from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.session import ExpertMove
from minigrid.utils.baby_ai_bot import BabyAIBot

from gymfleet_envs.babyai.actions import Options
from gymfleet_envs.babyai.world import Primitive, World

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
_DONE: Final = ("done",)


@dataclass(frozen=True, slots=True)
class Plan:
    """The worlds on the bot's way to success, the present one first."""

    signatures: tuple[tuple[object, ...], ...]


def make_plan(world: World) -> Plan | None:
    """Let the bot play a copy; None when it does not reach the goal."""
    rehearsal = world.copy()
    bot = BabyAIBot(rehearsal.engine)
    signatures = [rehearsal.signature()]
    while not rehearsal.out_of_steps:
        try:
            action = int(bot.replan())
        except AssertionError:  # how the bot says that it is lost
            return None
        if action not in Primitive.__members__.values():
            return None
        progress = rehearsal.act(Primitive(action))
        if progress.terminated:
            return Plan((*signatures, _DONE)) if progress.reward > 0 else None
        signatures.append(rehearsal.signature())
    return None


def choose(world: World, options: Options, plan: Plan) -> tuple[ExpertMove, Plan] | None:
    """The action that gets furthest along the plan, and the plan from there on."""
    place = {signature: index for index, signature in enumerate(plan.signatures)}
    best, chosen = 0, ""
    for name, primitives in options.possible.items():
        if primitives and (reached := place.get(_after(world, primitives), 0)) > best:
            best, chosen = reached, name
    if not best:
        return None
    return ExpertMove(thought=_thought(chosen), action=chosen), Plan(plan.signatures[best:])


def _after(world: World, primitives: tuple[Primitive, ...]) -> tuple[object, ...]:
    trial = world.copy()
    for primitive in primitives:
        progress = trial.act(primitive)
        if progress.terminated:
            return _DONE if progress.reward > 0 else ()
        if not progress.changed:
            break
    return trial.signature()


def _thought(action: str) -> str:
    for verb, thought in _THOUGHTS.items():
        if action == verb or action.startswith(verb + " "):
            return thought.format(thing=action.removeprefix(verb).strip().rpartition(" ")[0])
    return "I go on."
