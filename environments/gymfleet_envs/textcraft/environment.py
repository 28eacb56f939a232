"""TextCraft as an environment."""

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.textcraft.expert import next_move
from gymfleet_envs.textcraft.generate import generated_tasks
from gymfleet_envs.textcraft.minecraft import minecraft_tasks
from gymfleet_envs.textcraft.recipes import Amount, item_id
from gymfleet_envs.textcraft.task import CraftTask

_AMOUNT: Final = re.compile(r"([0-9]{1,4}) ([a-z0-9 ]+)")
_GET: Final = re.compile(r"get ([0-9]{1,4} (.+))")
_MAX_INPUTS: Final = 16


class _NotUnderstood(Exception):
    """The action is not a command; the message is the observation."""


@dataclass(frozen=True, slots=True)
class _Failed(Exception):
    """The command was understood, but cannot be carried out now."""

    observation: str


class TextCraft(Environment[CraftTask]):
    """Get raw items, craft the goal from them."""

    name: ClassVar[str] = "textcraft"
    version: ClassVar[str] = "1.1.0"
    summary: ClassVar[str] = "Craft an item from raw materials by a list of crafting commands"
    instructions: ClassVar[str] = (
        "You craft items. Each turn, take one action:\n"
        "get <number> <item> - take raw items; only items that no crafting command makes can be got\n"
        "craft <number> <item> using <number> <item>, <number> <item> - apply one of the crafting commands as it is "
        "listed; you must hold its ingredients\n"
        "inventory - see what you hold\n"
        'If a command names a generic ingredient like "planks", put an item of that kind like "oak planks" in its '
        "place. You win when you have made the goal."
    )
    max_turns: ClassVar[int] = 60
    max_action_chars: ClassVar[int] = 1024
    licence: ClassVar[str] = "Apache-2.0; benchmark recipes: Mojang's, as published with AgentGym (MIT)"

    def __init__(self) -> None:
        self._task: CraftTask
        self._inventory: dict[str, int] = {}
        self._solved = False

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[CraftTask]:
        """Generated recipe trees, or Minecraft's recipes from `data/recipes/*.json`."""
        return generated_tasks() if data is None else minecraft_tasks(data)

    def reset(self, task: CraftTask, seed: int) -> str:
        """Begin with empty hands. The episode depends only on the task; the seed changes nothing."""
        del seed
        self._task = task
        self._inventory = {}
        self._solved = False
        commands = "\n".join(task.commands)
        return f"Crafting commands:\n{commands}\n\nGoal: craft {task.goal}."

    def step(self, action: str) -> Outcome:
        """Apply one command."""
        command = " ".join(action.lower().split()).strip("\"'`").rstrip(".")
        try:
            observation = self._apply(command)
        except _NotUnderstood as error:
            return self._outcome(str(error), action_valid=False)
        except _Failed as error:
            return self._outcome(error.observation)
        return self._outcome(observation)

    def expert(self) -> ExpertMove | None:
        """The planner's next command."""
        return None if self._solved else next_move(self._task.book, self._inventory, self._task.goal)

    def state_key(self) -> str:
        """The inventory, in any order."""
        return f"{self._solved} {sorted(self._inventory.items())}"

    def snapshot(self) -> Self:
        """A shallow copy: every change replaces the inventory, and tasks are immutable."""
        return copy.copy(self)

    def _outcome(self, observation: str, *, action_valid: bool = True) -> Outcome:
        value = float(self._solved)
        return Outcome(observation, reward=value, terminated=self._solved, score=value, action_valid=action_valid)

    def _apply(self, command: str) -> str:
        if command == "inventory":
            return self._list_inventory()
        if match := _GET.fullmatch(command):
            amount = _parse_amount(match[1])
            if amount is None or not self._task.book.gettable(amount.name):
                raise _Failed(f"Could not find {match[2][:200]}")
            self._add(amount)
            return f"Got {amount}"
        if command.startswith("craft ") and " using " in command:
            output, _, inputs = command.removeprefix("craft ").rpartition(" using ")
            return self._craft(output.strip(), inputs)
        raise _NotUnderstood(f"Could not execute {command[:200]}")

    def _list_inventory(self) -> str:
        if not self._inventory:
            return "Inventory: You are not carrying anything."
        return "Inventory: " + " ".join(f"[{name}] ({count})" for name, count in self._inventory.items())

    def _craft(self, output: str, inputs: str) -> str:
        wanted = _parse_amount(output)
        name = wanted.name if wanted else output
        parts = [part.strip() for part in inputs.split(",")]
        given: list[Amount] = []
        for part in parts[:_MAX_INPUTS]:
            if (amount := _parse_amount(part)) is None:
                raise _NotUnderstood(f"Wrong item format: {part[:200]}")
            given.append(amount)
        needed: dict[str, int] = {}
        for amount in given:
            needed[amount.name] = needed.get(amount.name, 0) + amount.count
        if any(self._inventory.get(item, 0) < count for item, count in needed.items()):
            raise _Failed(f"Could not find enough items to craft {item_id(name)[:200]}")
        recipe = self._task.book.match(name, given) if len(parts) <= _MAX_INPUTS else None
        if recipe is None:
            raise _Failed(f"Could not find a valid recipe for {self._as_upstream_shows(wanted, name)}")
        left = {item: count - needed.get(item, 0) for item, count in self._inventory.items()}
        self._inventory = {item: count for item, count in left.items() if count}
        self._add(recipe.output)
        return f"Crafted {recipe.output.count} {item_id(recipe.output.name)}"

    def _as_upstream_shows(self, wanted: Amount | None, name: str) -> str:
        """Return the words of AgentGym's server for the item: the text of one of its Python objects."""
        identifier = item_id(name)[:200]
        tag, item = (identifier, None) if self._task.book.is_kind(name) else (None, identifier)
        count = wanted.count if wanted else 1
        return f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={item!r}), count={count})"

    def _add(self, amount: Amount) -> None:
        self._inventory = self._inventory | {amount.name: self._inventory.get(amount.name, 0) + amount.count}
        self._solved = self._solved or amount.name == self._task.goal


def _parse_amount(text: str) -> Amount | None:
    match = _AMOUNT.fullmatch(text)
    if match is None or int(match[1]) == 0:
        return None
    return Amount(int(match[1]), match[2])


ENVIRONMENT: Final = TextCraft
