"""Moves and guesses as texts: the JSON that AgentBench asks for, and the same moves and guesses as tools."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from gymfleet_contracts import strict_json
from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.card_game.battle import Battle, Guess, Move
from gymfleet_envs.card_game.kinds import HITS_ALL, NAMES, TEAM
from gymfleet_envs.card_game.suspicion import Suspicions

_OBJECT: Final = re.compile(r"\{[^{}]*\}")
_POSITION: Final[dict[str, JsonValue]] = {
    "type": "integer", "minimum": 0, "maximum": TEAM - 1, "description": "The target's position.",
}  # fmt: skip
_KIND: Final[dict[str, JsonValue]] = {"type": "string", "minLength": 1, "maxLength": 32}
MOVE, GUESS = "move", "guess"
TOOLS: Final = (
    Tool(
        name=MOVE,
        description="Let one of your living fish make a normal attack, or use its active ability.",
        parameters={
            "type": "object",
            "properties": {
                "pick_fish": {**_KIND, "description": "The name of one of your living fish."},
                "action": {"type": "string", "enum": ["normal", "active"]},
                "target_position": _POSITION,
            },
            "required": ["pick_fish", "action", "target_position"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name=GUESS,
        description="Guess the kind of a living enemy fish that is still hidden, when a guess is asked for.",
        parameters={
            "type": "object",
            "properties": {
                "guess_type": {**_KIND, "description": "The kind that you guess."},
                "target_position": _POSITION,
            },
            "required": ["guess_type", "target_position"],
            "additionalProperties": False,
        },
    ),
)


class Unplayable(ValueError):
    """The text is not a move, or not one that is allowed now. The message tells the player why."""


def action_of(arguments: Mapping[str, JsonValue]) -> str:
    """Return the text of a call's arguments, for either tool."""
    return json.dumps(dict(arguments))


def text_of_move(battle: Battle, move: Move) -> str:
    """Return the text of a move of the player to move."""
    name = NAMES[battle.kinds[TEAM * battle.mover + move.fish]]
    return action_of(
        {"pick_fish": name, "action": "active" if move.active else "normal", "target_position": move.target}
    )


def text_of_guess(guess: Guess) -> str:
    """Return the text of a guess."""
    return action_of({"guess_type": NAMES[guess.kind], "target_position": guess.target})


def read_move(text: str, battle: Battle) -> Move:
    """Return the move that a text spells for the player to move. Raises `Unplayable`."""
    given = _object(text)
    own = TEAM * battle.mover
    named = given.get("pick_fish")
    fish = next((place for place in range(TEAM) if NAMES[battle.kinds[own + place]] == named), None)
    if fish is None:
        raise Unplayable("pick_fish must be the name of one of your fish")
    if given.get("action") not in ("normal", "active"):  # compared, not hashed: it may be a list
        raise Unplayable("action must be normal or active")
    active = given["action"] == "active"
    # An ability that hits all enemies has no target; AgentBench reads one and drops it.
    aimless = active and battle.kinds[own + fish] in HITS_ALL
    move = Move(fish, active, 0 if aimless else _position(given))
    if (fault := battle.fault(move)) is not None:
        raise Unplayable(fault)
    return move


def read_guess(text: str, battle: Battle) -> Guess:
    """Return the guess that a text spells for the player to move. Raises `Unplayable`."""
    given = _object(text)
    other = TEAM * (1 - battle.mover)
    named = given.get("guess_type")
    kind = next((one for one in battle.kinds[other : other + TEAM] if NAMES[one] == named), None)
    if kind is None:
        raise Unplayable("guess_type must be one of the enemy's four kinds")
    place = _position(given)
    if place not in battle.unexposed(1 - battle.mover):
        raise Unplayable("target_position must be that of a living enemy fish that is still hidden")
    return Guess(place, kind)


def guesses(battle: Battle, known: Suspicions) -> list[Guess]:
    """Return the guesses that may be right, as far as the player to move knows."""
    other = TEAM * (1 - battle.mover)
    return [Guess(place, kind) for place in battle.unexposed(1 - battle.mover) for kind in sorted(known[other + place])]


def _object(text: str) -> dict[str, Any]:
    """Return the first JSON object in a text; as in AgentBench, it may have single quotes."""
    found = _OBJECT.search(text)
    given = None
    if found is not None:
        given = strict_json.read_object(found[0]) or strict_json.read_object(found[0].replace("'", '"'))
    if given is None:
        raise Unplayable("a move is a JSON object")
    return given


def _position(given: Mapping[str, Any]) -> int:
    place = given.get("target_position")
    if isinstance(place, str) and re.fullmatch("[0-3]", place):
        return int(place)
    if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < TEAM:
        return place
    raise Unplayable("target_position must be a number from 0 to 3")
