"""The command that an agent's text means, and the answer to a text that means no possible command."""

import re
from typing import Final

from gymfleet_envs.textworld.engine import State

_SHORT: Final = {
    "l": "look", "i": "inventory", "inv": "inventory", "n": "go north", "s": "go south", "e": "go east", "w": "go west",
    "north": "go north", "south": "go south", "east": "go east", "west": "go west", "x": "examine",
    "get": "take", "pick up": "take", "grab": "take",
}  # fmt: skip
_FIRST: Final = re.compile(r"pick up\b|\S+")
_ARTICLE: Final = re.compile(r"\b(?:the|a|an) ")
_GO: Final = re.compile(r"go (north|south|east|west)")
_OPEN: Final = re.compile(r"open (.+)")
_DIRECTIONS: Final = {"north": "north_of", "south": "south_of", "east": "east_of", "west": "west_of"}


def understood(text: str, state: State) -> str | None:
    """Return the command of `state.actions` that a text means; None if it means none of them.

    Case, articles, a full stop, Inform's abbreviations and `take X` for `take X from Y` are understood as in Inform.
    """
    plain = " ".join(text.split()).rstrip(".")
    for tried in (plain, *_readings(plain)):
        if state.action(tried) is not None:
            return tried
    lower = _expanded(plain.lower())
    possible = state.actions_of(lower.partition(" ")[0])
    from_somewhere = [command for command in sorted(possible) if command.lower().startswith(f"{lower} from ")]
    if lower.startswith("take ") and len(from_somewhere) == 1:
        return from_somewhere[0]
    return next((command for command in sorted(possible) if command.lower() == lower), None)


def _readings(plain: str) -> tuple[str, str]:
    lower = _expanded(plain.lower())
    return lower, lower.replace("put ", "insert ", 1).replace(" in ", " into ", 1)


def _expanded(lower: str) -> str:
    match = _FIRST.match(lower)
    if match is not None and (long := _SHORT.get(match[0])) is not None:
        lower = long + lower[match.end() :]
    return _ARTICLE.sub("", lower)


def refusal(text: str, state: State) -> str:
    """Return the answer to a text that is not possible now: in Inform's words, if it is one of the cases below."""
    lower = _expanded(" ".join(text.split()).rstrip(".").lower())
    if not lower:
        return "I beg your pardon?"
    if match := _GO.fullmatch(lower):
        return _no_way(match[1], state)
    game = state.game
    if lower.split()[0] not in game.logic.verbs:
        return "That's not a verb I recognise."
    if match := _OPEN.fullmatch(lower):
        for thing in _called(match[1], state):
            if state.holds("locked", thing):
                return _locked(thing, state)
            if state.holds("open", thing):
                return "That's already open."
    return "You can't do that now."


def _no_way(direction: str, state: State) -> str:
    way = _DIRECTIONS[direction]
    for fact in state.game.fixed.get((way, 2, state.room), ()):
        for link in state.game.fixed.get(("link", 1, state.room), ()):
            if link[3] == fact[1]:
                return f"You have to open the {state.game.names[link[2]]} first."
    return "You can't go that way."


def _called(name: str, state: State) -> list[str]:
    here = {link[2] for link in state.game.fixed.get(("link", 1, state.room), ())}
    here |= {fact[1] for fact in state.game.fixed.get(("at", 2, state.room), ())}
    here |= {fact[1] for fact in state.index.get(("at", 2, state.room), ())}
    return [thing for thing in state.game.entities if thing in here and state.game.names[thing].lower() == name]


def _locked(thing: str, state: State) -> str:
    name = state.game.names[thing]
    keys = [fact[1] for fact in state.game.fixed.get(("match", 2, thing), ())]
    if not keys:
        return f"The {name} is welded shut."
    return f"You have to unlock the {name} with the {state.game.names[keys[0]]} first."
