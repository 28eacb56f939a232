"""The game's answers: the sentences of Inform 7 and of TextWorld's own rules, around the game's descriptions."""

import re
from typing import Final

from gymfleet_envs.textworld.engine import State
from gymfleet_envs.textworld.logic import Action

_GAP: Final = re.compile(r"\n{3,}")
THE_END: Final = {"won": "*** The End ***", "lost": "*** You lost! ***"}
_NUMBERS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_SENTENCES: Final = {
    "close": "You close {0}.",
    "drop": "You drop {0} on the ground.",
    "lock": "You lock {0}.",
    "unlock": "You unlock {0}.",
    "insert": "You put {0} into {1}.",
    "put": "You put {0} on {1}.",
    "eat": "You eat {0}. Not bad.",
    "drink": "You drink {0}. Not bad.",
    "slice": "You slice the {name}.",
    "dice": "You dice the {name}.",
    "chop": "You chop the {name}.",
    "take": "You take {0} from {1}.",
    "make": "Adding the meal to your inventory.",
}
"""Sentences by the first part of a rule's name. {0}, {1}: the command's things with articles; {name}: {0} without."""


def opening(state: State) -> str:
    """Return the objective and the first view."""
    return "\n\n".join(text for text in (state.game.objective.strip(), look(state)) if text)


def look(state: State) -> str:
    """Return the name and the description of the room, and the things on its floor."""
    entity = state.game.entities[state.room]
    # A line break in a room's description is not one in Inform's source; an empty line is.
    paragraphs = (" ".join(part.split()) for part in entity.description.render(state).split("\n\n"))
    told = ["\n".join((f"-= {entity.name.title()} =-", "\n\n".join(part for part in paragraphs if part)))]
    if lying := state.on_the_floor():
        told.append(f"There is {state.listed(lying, articles=True)} on the floor.")
    return "\n\n".join(told)


def feedback(action: Action, before: State, after: State) -> str:
    """Return the answer to an action."""
    told = [_told(action, before, after)]
    if (points := after.points - before.points) > 0:
        in_words = _NUMBERS[points] if points < len(_NUMBERS) else str(points)
        told.append(f"Your score has just gone up by {in_words} {'point' if points == 1 else 'points'}.")
    if after.end is not None:
        told += [THE_END[after.end], f"You scored {after.points} out of a possible {after.game.max_score}."]
    return "\n\n".join(told)


def _told(action: Action, before: State, after: State) -> str:
    verb, _, detail = action.rule.partition("/")
    things = _named(action, before)
    match verb:
        case "go" | "look":
            told = look(after)
        case "inventory":
            told = f"You are carrying: {carried}." if (carried := _carried(after)) else "You are carrying nothing."
        case "examine":
            told = _examined(things[0], after)
        case "open":
            told = _opened(things[0], after)
        case "cook":
            told = _cooked(action, things[0], after)
        case "take" if not detail:
            told = f"You pick up {_the(things[0], before)} from the ground."
        case _:
            articles = [_the(thing, before) for thing in (*things, *things)]
            name = before.game.names[things[0]] if things else ""
            told = _SENTENCES[verb].format(*articles[:2], name=name)
    return told


def _named(action: Action, state: State) -> list[str]:
    """Return the things that the command names, in its order."""
    command = f" {action.command} "
    places = {thing: command.find(f" {state.game.names[thing]} ") for thing in action.bindings.values()}
    named = [thing for thing, place in places.items() if place >= 0 and not state.game.is_a(thing, "r")]
    return sorted(named, key=places.__getitem__)


def _examined(thing: str, state: State) -> str:
    entity, game = state.game.entities[thing], state.game
    description = _tidy(entity.description.render(state))
    told = [description] if description else []
    inside = state.contents(thing)
    if inside and (game.is_a(thing, "s") or (game.is_a(thing, "c") and state.holds("open", thing))):
        where = "On" if game.is_a(thing, "s") else "In"
        verb = "is" if len(inside) == 1 else "are"
        told.append(f"{where} {_the(thing, state)} {verb} {state.listed(inside, articles=True)}.")
    return "\n\n".join(told) or f"You see nothing special about {_the(thing, state, state.prefix(thing))}."


def _opened(thing: str, state: State) -> str:
    inside = state.contents(thing) if state.game.is_a(thing, "c") else []
    revealed = f", revealing {state.listed(inside, articles=True)}" if inside else ""
    return f"You open {_the(thing, state)}{revealed}."


def _cooked(action: Action, food: str, state: State) -> str:
    name = state.game.entities[food].name
    if action.rule.endswith("burned"):
        return f"You burned the {name}!"
    return f"You {next(word for word in ('fried', 'roasted', 'grilled') if (word, food) in action.added)} the {name}."


def _the(thing: str, state: State, prefix: str = "") -> str:
    """Return a thing's name with its article. Doors have none: Inform takes their names for proper names."""
    entity = state.game.entities[thing]
    if state.game.is_a(thing, "d") and not entity.definite:
        return entity.name
    return f"{entity.definite or 'the'} {prefix}{entity.name}"


def _carried(state: State) -> str:
    return state.listed(things, articles=True) if (things := state.contents("I")) else ""


def _tidy(text: str) -> str:
    """Fold blanks as Inform does, and leave no more than one empty line anywhere."""
    return _GAP.sub("\n\n", "\n".join(" ".join(line.split()) for line in text.strip().split("\n")))
