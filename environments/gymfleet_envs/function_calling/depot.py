"""The world of generated dialogues: a depot with items on shelves, and reservations for customers."""

import copy
import json
from collections.abc import Mapping
from typing import Any, Final, Self

from gymfleet_envs.function_calling.calls import Call, Value
from gymfleet_envs.function_calling.task import Dialogue
from gymfleet_envs.function_calling.world import ERROR, World, refusal, undefined

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer"}
FUNCTIONS: Final[Mapping[str, tuple[str, Mapping[str, Mapping[str, str]]]]] = {
    "find": ("Tell on which shelves an item lies, and how many on each.", {"item": _TEXT}),
    "list": ("Tell what lies on a shelf, and its label.", {"shelf": _TEXT}),
    "add": ("Put new items on a shelf.", {"shelf": _TEXT, "item": _TEXT, "count": _COUNT}),
    "remove": ("Take items off a shelf for good.", {"shelf": _TEXT, "item": _TEXT, "count": _COUNT}),
    "move": (
        "Move items from one shelf to another.", {"item": _TEXT, "source": _TEXT, "target": _TEXT, "count": _COUNT},
    ),
    "label": ("Give a shelf a label, instead of the one that it has.", {"shelf": _TEXT, "label": _TEXT}),
    "reserve": (
        "Reserve items for a customer, wherever they lie.", {"item": _TEXT, "count": _COUNT, "customer": _TEXT},
    ),
    "cancel": ("Cancel a reservation.", {"reservation_id": _COUNT}),
    "reservations": ("Tell which reservations there are.", {}),
}  # fmt: skip
"""Each function's description and parameters; all are required."""
_KINDS: Final = {"string": str, "integer": int}
_MAX_COUNT: Final = 10**6
_MAX_ENTRIES: Final = 2_000
_MAX_CHARS: Final = 100


class Depot(World):
    """Shelves, reservations, and the names of this task's functions."""

    def __init__(self, names: Mapping[str, str], state: dict[str, Any]) -> None:
        self._names = names
        """Maps a function's name in this task to ours, including functions that are given later."""
        self._state = state

    @classmethod
    def of(cls, task: Dialogue) -> Self:
        """Make the depot that the task describes: `names`, `shelves` (items with counts), `labels`, `reservations`."""
        config = json.loads(task.config)
        return cls(config.pop("names"), config)

    def call(self, call: Call) -> str:
        """Make a call and return JSON with its result, or with `error`."""
        if (refused := refusal(call)) is not None:
            return refused
        if call.name not in self._names:
            return undefined(call)
        function = self._names[call.name]
        if (fault := _fault(FUNCTIONS[function][1], call.arguments)) is not None:
            return f"{ERROR}{call.name}() {fault}"
        return json.dumps(getattr(self, f"_{function}")(**call.arguments))

    def _find(self, item: str) -> dict[str, Any]:
        found = {shelf: items[item] for shelf, items in self._state["shelves"].items() if item in items}
        return {"shelves": found} if found else {"error": f"there is no {item}"}

    def _list(self, shelf: str) -> dict[str, Any]:
        if shelf not in self._state["shelves"]:
            return {"error": f"there is no shelf {shelf}"}
        return {"items": self._state["shelves"][shelf], "label": self._state["labels"].get(shelf, "")}

    def _add(self, shelf: str, item: str, count: int) -> dict[str, Any]:
        if (fault := self._no_count(shelf, count)) is not None:
            return fault
        items = self._state["shelves"][shelf]
        if not item or len(item) > _MAX_CHARS or len(items) >= _MAX_ENTRIES or items.get(item, 0) > _MAX_COUNT:
            return {"error": "the shelf does not take this"}
        items[item] = items.get(item, 0) + count
        return {"on_shelf": items[item]}

    def _remove(self, shelf: str, item: str, count: int) -> dict[str, Any]:
        if (fault := self._no_count(shelf, count)) is not None:
            return fault
        items = self._state["shelves"][shelf]
        if items.get(item, 0) < count:
            return {"error": f"shelf {shelf} has {items.get(item, 0)} {item}"}
        items[item] -= count
        left = items[item]
        if not left:
            del items[item]
        return {"on_shelf": left}

    def _move(self, item: str, source: str, target: str, count: int) -> dict[str, Any]:
        if target not in self._state["shelves"]:
            return {"error": f"there is no shelf {target}"}
        removed = self._remove(source, item, count)
        if "error" in removed:
            return removed
        self._state["shelves"][target][item] = self._state["shelves"][target].get(item, 0) + count
        return {"moved": count}

    def _label(self, shelf: str, label: str) -> dict[str, Any]:
        if shelf not in self._state["shelves"]:
            return {"error": f"there is no shelf {shelf}"}
        if len(label) > _MAX_CHARS:
            return {"error": f"a label has at most {_MAX_CHARS} characters"}
        self._state["labels"][shelf] = label
        return {"label": label}

    def _reserve(self, item: str, count: int, customer: str) -> dict[str, Any]:
        there = sum(items.get(item, 0) for items in self._state["shelves"].values())
        reservations = self._state["reservations"]
        taken = sum(one["count"] for one in reservations.values() if one["item"] == item)
        if not 0 < count <= there - taken:
            return {"error": f"{max(0, there - taken)} {item} can be reserved"}
        if len(customer) > _MAX_CHARS or len(reservations) >= _MAX_ENTRIES:
            return {"error": "the book takes no such reservation"}
        self._state["next"] += 1
        reservations[str(self._state["next"])] = {"item": item, "count": count, "customer": customer}
        return {"reservation_id": self._state["next"]}

    def _cancel(self, reservation_id: int) -> dict[str, Any]:
        if self._state["reservations"].pop(str(reservation_id), None) is None:
            return {"error": f"there is no reservation {reservation_id}"}
        return {"cancelled": reservation_id}

    def _reservations(self) -> dict[str, Any]:
        return {"reservations": self._state["reservations"]}

    def _no_count(self, shelf: str, count: int) -> dict[str, Any] | None:
        if shelf not in self._state["shelves"]:
            return {"error": f"there is no shelf {shelf}"}
        return None if 0 < count <= _MAX_COUNT else {"error": f"count must be from 1 to {_MAX_COUNT}"}

    def is_like(self, other: Self) -> bool:
        """Compare shelves, labels, and reservations with their numbers."""
        return self._state == other._state

    def key(self) -> str:
        """Return the state as JSON."""
        return json.dumps(self._state, sort_keys=True)

    def copy(self) -> Self:
        """Share the names, copy the state."""
        return type(self)(self._names, copy.deepcopy(self._state))

    @property
    def is_too_large(self) -> bool:
        """Never: shelves and reservations are bounded."""
        return False


def _fault(parameters: Mapping[str, Mapping[str, str]], arguments: Mapping[str, Value]) -> str | None:
    """Return the fault of a call's arguments, if any."""
    for name, value in arguments.items():
        if name not in parameters:
            return f"got an unexpected keyword argument '{name[:_MAX_CHARS]}'"
        if type(value) is not _KINDS[parameters[name]["type"]]:
            return f"needs {name} to be of type {parameters[name]['type']}"
        if isinstance(value, int) and abs(value) > _MAX_COUNT:
            return f"needs {name} to be at most {_MAX_COUNT}"
    missing = next((name for name in parameters if name not in arguments), None)
    return None if missing is None else f"missing 1 required argument: '{missing}'"
