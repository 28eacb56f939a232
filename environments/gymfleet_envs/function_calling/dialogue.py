"""Plays a dialogue: turns of the user, steps of calls within each turn, and BFCL's check after each turn."""

import copy
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Self

from gymfleet_envs.function_calling.calls import Call, one_written, read_calls, written
from gymfleet_envs.function_calling.task import Dialogue, Turn
from gymfleet_envs.function_calling.world import World, undefined

STEPS_PER_TURN: Final = 20
"""The most replies with calls in a turn, which is BFCL's own limit. With one more, the task has failed."""
CALLS_PER_STEP: Final = 100
"""The most calls in a reply; a reply with more fails the task."""
DONE: Final = "Done."
CANNOT: Final = "None of the functions can be used for this, or something that they need is not given."


class Play:
    """The state of one dialogue: the agent's world, and the world that the gold calls have made so far."""

    def __init__(self, task: Dialogue, world: World) -> None:
        self._task = task
        self._take(world, world.copy(), [])
        self._number = 0
        self._steps = 0
        self._failed = False
        self.is_over = False

    def _take(self, world: World, gold: World, results: list[str]) -> None:
        self._world = world
        self._gold = gold
        self._results = results

    @property
    def is_solved(self) -> bool:
        """Whether all turns were played, and each of them right."""
        return self.is_over and not self._failed

    def reply(self, text: str) -> str:
        """Take a reply and return what the agent sees next. A reply without calls ends the turn."""
        calls = read_calls(text)
        return self._calls(calls) if calls else self._end_turn()

    def _calls(self, calls: Sequence[Call]) -> str:
        """Make the calls, and return the results in the form of BFCL's prompting mode."""
        self._steps += 1
        if self._steps > STEPS_PER_TURN:
            return self._lost(f"A turn takes {STEPS_PER_TURN} replies with calls. The task is over.")
        if len(calls) > CALLS_PER_STEP:
            return self._lost(f"A reply makes at most {CALLS_PER_STEP} calls. The task is over.")
        shown = []
        later = {name for turn in self._task.turns[self._number + 1 :] for name in turn.gives}
        for call in (replace(call, unnamed=()) for call in calls):
            result = undefined(call) if call.name in later else self._world.call(call)
            if self._world.is_too_large:
                return self._lost("The calls have made too much data. The task is over.")
            self._results.append(result)
            shown.append({"role": "tool", "name": one_written(call), "content": result})
        return repr(shown)

    def _lost(self, reason: str) -> str:
        self.is_over = self._failed = True
        return reason

    def _end_turn(self) -> str:
        turn = self._task.turns[self._number]
        counted = make_gold(turn, self._gold)
        if turn.steps:
            right = self._steps > 0 and self._world.is_like(self._gold) and _within(counted, self._results)
            self._failed = self._failed or not right
        self._number += 1
        self._steps = 0
        self.is_over = self._number == len(self._task.turns)
        return "The task is over." if self.is_over else self._task.turns[self._number].text

    def solution(self) -> str | None:
        """Return the next reply with gold calls; None if they do not lead to the solution from here."""
        if self.is_over or self._failed or not self._task.solvable:
            return None
        turn = self._task.turns[self._number]
        made = self._steps_made(turn)
        if made is None:
            return None
        if made == len(turn.steps):
            if not turn.steps:
                return CANNOT
            if self._steps:
                return DONE
            made -= 1  # nothing has changed, but a turn that asks for calls has to have one
        return written(self._named(turn.steps[made].calls))

    def _steps_made(self, turn: Turn) -> int | None:
        """Return the most gold steps after which the world would be as it is, with results that are known."""
        gold, results, found = self._gold.copy(), list[str](), None
        for number in range(len(turn.steps) + 1):
            if self._world.is_like(gold) and _within(results, self._results):
                found = number
            if number < len(turn.steps):
                results += [gold.call(call) for call in _read(turn.steps[number].calls)]
        return found

    def _named(self, calls: Sequence[str]) -> list[Call]:
        """Return gold calls with names for all arguments, since models write only named ones."""
        parameters = dict(self._task.parameters)
        return [
            Call(call.name, {**dict(zip(parameters[call.name], call.unnamed, strict=False)), **call.arguments})
            for call in _read(calls)
        ]

    def key(self) -> str:
        """Return a text that is equal for equal states."""
        known = hashlib.sha256(repr(sorted(self._results)).encode(errors="replace")).hexdigest()
        return repr((self._number, self._steps, self._failed, known, self._world.key()))

    def copy(self) -> Self:
        """Return an independent play in the same state."""
        other = copy.copy(self)
        other._take(self._world.copy(), self._gold.copy(), list(self._results))  # noqa: SLF001 - of its own kind
        return other


def make_gold(turn: Turn, world: World) -> list[str]:
    """Make a turn's gold calls in a world; return the results that count."""
    counted = []
    for step in turn.steps:
        results = [world.call(call) for call in _read(step.calls)]
        counted += results if step.counts else []
    return counted


def _read(calls: Sequence[str]) -> list[Call]:
    return [call for text in calls for call in read_calls(text) or ()]


def _within(wanted: Sequence[str], results: Sequence[str]) -> bool:
    """Return whether the results contain all wanted ones, as often as they are wanted, in any order."""
    return not Counter(wanted) - Counter(results)
