"""Reads BFCL's rows of several turns as dialogues."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from gymfleet_envs.function_calling.calls import read_calls
from gymfleet_envs.function_calling.classes import CLASSES
from gymfleet_envs.function_calling.task import Dialogue, GoldStep, Turn
from gymfleet_envs.function_calling.wording import given_later, listed, spoken
from gymfleet_envs.tasks import TaskDataError

Described: TypeAlias = dict[str, Any]
"""A function's description."""


def dialogue_of(
    row: Mapping[str, Any], gold: Any, described: Mapping[str, Sequence[Described]], category: str, entry: str
) -> Dialogue:
    """Return a row's dialogue; the functions of its classes are described in `described`. Raises `TaskDataError`."""
    classes = row.get("involved_classes")
    if not isinstance(classes, list) or not classes or not all(name in CLASSES for name in classes):
        raise TaskDataError(f"{entry}: involved_classes are not some of {', '.join(CLASSES)}")
    if missing := [name for name in classes if name not in described]:
        raise TaskDataError(f"{entry}: multi_turn_func_doc/ describes no functions of {missing[0]}")
    functions = [function for name in classes for function in described[name]]
    parameters = tuple((one["name"], tuple(one["parameters"]["properties"])) for one in functions)
    held_out = _held_out(row, functions, entry)
    steps = _steps(gold, dict(parameters), entry)
    if len(steps) != len(row["question"]):
        raise TaskDataError(f"{entry}: {len(row['question'])} turns, but answers to {len(steps)}")
    if not isinstance(row.get("initial_config"), dict):
        raise TaskDataError(f"{entry}: initial_config is not an object")
    later = {name for names in held_out.values() for name in names}
    texts = [_text(number, turn, held_out, functions) for number, turn in enumerate(row["question"])]
    return Dialogue(
        functions=listed([function for function in functions if function["name"] not in later]),
        parameters=parameters,
        turns=tuple(Turn(text, own) for text, own in zip(texts, steps, strict=True)),
        world="published",
        config=json.dumps(row["initial_config"]),
        classes=tuple(classes),
        long_context="long_context" in category,
    )


def _held_out(row: Mapping[str, Any], functions: Sequence[Described], entry: str) -> dict[int, list[str]]:
    """Return the functions that are given only in a later turn, by the number of the turn."""
    given = row.get("missed_function", {})
    known = {function["name"] for function in functions}
    match given:
        case dict() if all(str(turn).isdecimal() and isinstance(names, list) for turn, names in given.items()):
            if all(name in known for names in given.values() for name in names):
                return {int(turn): names for turn, names in given.items()}
    raise TaskDataError(f"{entry}: missed_function does not give known functions in numbered turns")


def _steps(gold: Any, parameters: Mapping[str, Sequence[str]], entry: str) -> list[tuple[GoldStep, ...]]:
    if not isinstance(gold, list) or not all(isinstance(turn, list) for turn in gold):
        raise TaskDataError(f"{entry}: no list of turns for it in possible_answer/")
    for text in (text for turn in gold for text in turn):
        calls = read_calls(text) if isinstance(text, str) else None
        if calls is None or len(calls) != 1 or calls[0].fault or calls[0].name not in parameters:
            raise TaskDataError(f"{entry}: gold call {str(text)[:80]!r} is no call of a described function")
    return [(GoldStep(tuple(turn)),) if turn else () for turn in gold]


def _text(
    number: int, messages: Sequence[Mapping[str, Any]], held_out: Mapping[int, Sequence[str]],
    functions: Sequence[Described],
) -> str:  # fmt: skip
    if number not in held_out:
        return spoken(messages)
    given = given_later([function for name in held_out[number] for function in functions if function["name"] == name])
    return "\n\n".join((given, spoken(messages))) if messages else given
