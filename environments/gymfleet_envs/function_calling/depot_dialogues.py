"""Generated dialogues in the depot: successive requests, one of which cannot be met at once."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gymfleet_envs.function_calling.calls import Call, one_written
from gymfleet_envs.function_calling.depot import FUNCTIONS, Depot
from gymfleet_envs.function_calling.task import Dialogue, GoldStep, Turn
from gymfleet_envs.function_calling.wording import given_later, listed

_NAMES: Final = {
    "find": ("find_item", "locate_item", "where_is"), "list": ("list_shelf", "show_shelf", "read_shelf"),
    "add": ("add_item", "put_item", "stock_item"), "remove": ("remove_item", "take_item", "discard_item"),
    "move": ("move_item", "transfer_item", "relocate_item"), "label": ("set_label", "label_shelf", "rename_shelf"),
    "reserve": ("reserve_item", "hold_item", "set_aside"),
    "cancel": ("cancel_reservation", "drop_reservation", "release_item"),
    "reservations": ("list_reservations", "show_reservations", "open_reservations"),
}  # fmt: skip
_ITEMS: Final = ("lamps", "kettles", "ladders", "buckets", "clocks", "radios", "tents", "pans", "mirrors", "fans",
                 "drills", "chairs", "helmets", "ropes", "stoves")  # fmt: skip
_LABELS: Final = ("fragile", "returns", "for repair", "heavy", "sold", "new stock", "winter", "to be checked")
_CUSTOMERS: Final = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kira", "Leo")
_MET_TURNS: Final = 3
"""The number of a dialogue's requests that ask for calls."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, the function that it needs, and its gold steps: function, arguments, whether the result counts."""

    text: str
    function: str
    steps: tuple[tuple[str, dict[str, Any], bool], ...]
    vague: str = ""
    """The same request without a detail that is needed."""
    rest: str = ""
    """The missing detail, said afterwards."""


@dataclass(slots=True)
class _Draft:
    """The depot after the turns drawn so far, with our own names for functions."""

    rng: random.Random
    depot: Depot
    state: dict[str, Any]
    used: set[str] = field(default_factory=set)
    """The items of earlier requests: each item is in one request only."""

    def shelf(self, *, but: str = "") -> str:
        return self.rng.choice([str(shelf) for shelf in self.state["shelves"] if shelf != but])

    def lot(self) -> tuple[str, str, int]:
        """Return a shelf, an item that is only on this shelf and in no earlier request, and its count."""
        lots = [(shelf, item, count) for shelf, items in self.state["shelves"].items() for item, count in items.items()
                if item not in self.used]  # fmt: skip
        chosen = self.rng.choice(lots)
        self.used.add(chosen[1])
        return chosen


def _add(draft: _Draft) -> _Asked:
    item = draft.rng.choice([item for item in _ITEMS if item not in draft.used])
    draft.used.add(item)
    shelf, count = draft.shelf(), draft.rng.randint(2, 40)
    return _Asked(
        f"{count} new {item} have come. Put them on shelf {shelf}.", "add",
        (("add", {"shelf": shelf, "item": item, "count": count}, True),),
        f"New {item} have come. Put them on shelf {shelf}.", f"There are {count} of them.",
    )  # fmt: skip


def _remove(draft: _Draft) -> _Asked:
    shelf, item, there = draft.lot()
    count = draft.rng.randint(1, there)
    return _Asked(
        f"Take {count} of the {item} off shelf {shelf}, they are broken.", "remove",
        (("remove", {"shelf": shelf, "item": item, "count": count}, True),),
        f"Some of the {item} on shelf {shelf} are broken. Take those off.", f"{count} of them are broken.",
    )  # fmt: skip


def _move(draft: _Draft) -> _Asked:
    shelf, item, there = draft.lot()
    target, count = draft.shelf(but=shelf), draft.rng.randint(1, there)
    return _Asked(
        f"Move {count} of the {item} from shelf {shelf} to shelf {target}.", "move",
        (("move", {"item": item, "source": shelf, "target": target, "count": count}, True),),
        f"Move {count} of the {item} from shelf {shelf} to another shelf.", f"I mean to shelf {target}.",
    )  # fmt: skip


def _move_all(draft: _Draft) -> _Asked:
    shelf, item, there = draft.lot()
    target = draft.shelf(but=shelf)
    return _Asked(
        f"Wherever the {item} are, move all of them to shelf {target}.", "move",
        (
            ("find", {"item": item}, False),
            ("move", {"item": item, "source": shelf, "target": target, "count": there}, True),
        ),
        f"Wherever the {item} are, move all of them to another shelf.", f"I mean to shelf {target}.",
    )  # fmt: skip


def _label(draft: _Draft) -> _Asked:
    shelf = draft.shelf()
    label = draft.rng.choice([label for label in _LABELS if label != draft.state["labels"].get(shelf)])
    return _Asked(
        f"Label shelf {shelf} '{label}'.", "label", (("label", {"shelf": shelf, "label": label}, True),),
        f"Give shelf {shelf} another label.", f"It should say '{label}'.",
    )  # fmt: skip


def _reserve(draft: _Draft) -> _Asked:
    _, item, there = draft.lot()
    booked = {one["customer"] for one in draft.state["reservations"].values()}
    customer = draft.rng.choice([customer for customer in _CUSTOMERS if customer not in booked])
    count = draft.rng.randint(1, there - 1)  # one may be reserved already
    return _Asked(
        f"Reserve {count} of the {item} for {customer}.", "reserve",
        (("reserve", {"item": item, "count": count, "customer": customer}, True),),
        f"Reserve {count} of the {item} for a customer.", f"Her or his name is {customer}.",
    )  # fmt: skip


def _cancel(draft: _Draft) -> _Asked:
    number, booked = draft.rng.choice(list(draft.state["reservations"].items()))
    return _Asked(
        f"{booked['customer']} does not need the {booked['item']} any more. Cancel the reservation.", "cancel",
        (("reservations", {}, False), ("cancel", {"reservation_id": int(number)}, True)),
        "One of the customers has called. Cancel the reservation.", f"It was {booked['customer']}.",
    )  # fmt: skip


_REQUESTS: Final[tuple[Callable[[_Draft], _Asked], ...]] = (_add, _remove, _move, _move_all, _label, _reserve, _cancel)


def draw_dialogue(rng: random.Random) -> Dialogue:
    """Draw a depot and three requests of different kinds; one of them lacks its function, or a detail.

    The next turn gives what is missing; until then, there is nothing to call.
    """
    names = {function: rng.choice(options) for function, options in _NAMES.items()}
    state = _depot(rng)
    config = json.dumps({"names": {name: function for function, name in names.items()}, **state})
    draft = _Draft(rng, Depot({function: function for function in names}, state), state)
    delayed, is_held_out = rng.randrange(_MET_TURNS), rng.random() < 0.5
    turns: list[Turn] = []
    missing = ""
    for number, kind in enumerate(rng.sample(_REQUESTS, _MET_TURNS)):
        asked = kind(draft)
        steps = tuple(_gold(draft, names, *step) for step in asked.steps)
        if number != delayed:
            turns.append(Turn(asked.text, steps))
        elif is_held_out and not _uses(turns, names[asked.function]):
            missing = asked.function
            given = given_later([_described(missing, names)])
            turns += [Turn(asked.text, ()), Turn(given, steps, gives=(names[missing],))]
        else:
            turns += [Turn(asked.vague, ()), Turn(asked.rest, steps)]
    return Dialogue(
        functions=listed([_described(function, names) for function in _shuffled(rng) if function != missing]),
        parameters=tuple((names[function], tuple(parameters)) for function, (_, parameters) in FUNCTIONS.items()),
        turns=tuple(turns),
        world="depot",
        config=config,
    )


def _depot(rng: random.Random) -> dict[str, Any]:
    shelves = rng.sample([f"{row}{place}" for row in "ABCD" for place in range(1, 6)], rng.randint(3, 5))
    items = rng.sample(_ITEMS, rng.randint(6, 9))
    state: dict[str, Any] = {"shelves": {shelf: {} for shelf in shelves}, "labels": {}, "reservations": {}}
    for item in items:
        state["shelves"][rng.choice(shelves)][item] = rng.randint(3, 30)
    state["next"] = rng.randint(1000, 8000)
    for customer, item in zip(rng.sample(_CUSTOMERS, 2), items[:2], strict=True):
        state["next"] += rng.randint(1, 40)
        state["reservations"][str(state["next"])] = {"item": item, "count": 1, "customer": customer}
    return state


def _gold(draft: _Draft, names: dict[str, str], function: str, arguments: dict[str, Any], counts: bool) -> GoldStep:
    """Make a gold call in the draft's depot, and return it under this task's name."""
    draft.depot.call(Call(function, arguments))
    return GoldStep((one_written(Call(names[function], arguments)),), counts)


def _uses(turns: list[Turn], name: str) -> bool:
    return any(call.startswith(f"{name}(") for turn in turns for step in turn.steps for call in step.calls)


def _shuffled(rng: random.Random) -> list[str]:
    return rng.sample(list(FUNCTIONS), len(FUNCTIONS))


def _described(function: str, names: dict[str, str]) -> dict[str, Any]:
    description, parameters = FUNCTIONS[function]
    properties = {name: {**told, "description": _WORDS[name]} for name, told in parameters.items()}
    return {
        "name": names[function],
        "description": description,
        "parameters": {"type": "dict", "properties": properties, "required": list(parameters)},
    }


_WORDS: Final = {
    "item": "What it is, in the plural, such as lamps.", "shelf": "A shelf, such as A1.", "count": "How many.",
    "source": "The shelf from which they are taken.", "target": "The shelf on which they are put.",
    "label": "What the label says.", "customer": "The customer's name.",
    "reservation_id": "The reservation's number.",
}  # fmt: skip
