"""A player who asks as if not knowing the truth while there are enough rounds, and then asks for the truth."""

from collections.abc import Iterator

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.lateral_thinking.lexicon import GROUPS, GROUPS_OF, VALUES, Value
from gymfleet_envs.lateral_thinking.prose import question_of, question_of_group, question_of_key
from gymfleet_envs.lateral_thinking.puzzle import Puzzle
from gymfleet_envs.lateral_thinking.questions import essence


def next_question(puzzle: Puzzle, asked: frozenset[str], found: frozenset[int], rounds_left: int) -> ExpertMove | None:
    """Return the next question for the first key that is not found; None when all are found."""
    place = next((place for place in range(len(puzzle.keys)) if place not in found), None)
    if place is None:
        return None
    whole = question_of_key(puzzle.keys[place], puzzle.language)
    left = len(puzzle.keys) - len(found)
    if puzzle.values and rounds_left > left:
        for value in puzzle.values[2 * place : 2 * place + 2]:
            if (question := _narrowing(puzzle, value, asked)) is not None:
                return ExpertMove(thought=f"I do not know the {value.slot} yet.", action=question)
    return ExpertMove(thought="That would explain it.", action=whole)


def _narrowing(puzzle: Puzzle, value: Value, asked: frozenset[str]) -> str | None:
    """Return the next question to find a value; None once the value is known."""
    return next((question for question in _way(puzzle, value) if essence(question) not in asked), None)


def _way(puzzle: Puzzle, value: Value) -> Iterator[str]:
    """Yield the questions that lead to a value: groups, then values, each without the last, which remains anyway."""
    if GROUPS[value.group] not in puzzle.told:
        groups = [group.word("en") for group in GROUPS_OF[value.slot]]
        for name in groups[:-1]:
            yield question_of_group(GROUPS[name], puzzle.language)
            if name == value.group:
                break
    values = VALUES[value.group]
    for one in values[:-1]:
        yield question_of(one, puzzle.language)
        if one == value:
            break
