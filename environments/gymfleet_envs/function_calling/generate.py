"""Generated tasks: questions about functions of everyday life, and dialogues in the depot."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_envs.function_calling.calls import Value
from gymfleet_envs.function_calling.checker import Kind
from gymfleet_envs.function_calling.depot_dialogues import draw_dialogue
from gymfleet_envs.function_calling.task import FunctionCallingTask, Question, Questions
from gymfleet_envs.function_calling.templates import TEMPLATES, Parameter, Template
from gymfleet_envs.function_calling.wording import listed
from gymfleet_envs.tasks import GeneratedTasks

LEVELS: Final = ("simple", "multiple", "parallel", "irrelevance", "multi_turn")
_SAID: Final = 0.5
"""The probability that a request states an argument that has a default."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A template with the names of one task."""

    template: Template
    name: str
    names: dict[Parameter, str]

    def described(self) -> dict[str, Any]:
        parameters = self.template.parameters
        return {
            "name": self.name,
            "description": self.template.description,
            "parameters": {
                "type": "dict",
                "properties": {self.names[one]: one.described() for one in parameters},
                "required": [self.names[one] for one in parameters if one.is_required],
            },
        }


@dataclass(frozen=True, slots=True)
class _Request:
    text: str
    answer: dict[str, dict[str, list[Value]]]


def _functions(rng: random.Random, count: int) -> list[_Function]:
    return [_named(rng, template) for template in rng.sample(TEMPLATES, count)]


def _named(rng: random.Random, template: Template) -> _Function:
    names = {parameter: rng.choice(parameter.names) for parameter in template.parameters}
    return _Function(template, rng.choice(template.names), names)


def _request(rng: random.Random, function: _Function, unsaid: Parameter | None = None) -> _Request:
    """Make a request for a call that states all required arguments except `unsaid`."""
    words, possible = [function.template.request], dict[str, list[Value]]()
    for parameter in function.template.parameters:
        value = parameter.draw(rng)
        if parameter is unsaid:
            continue
        if parameter.is_required or rng.random() < _SAID:
            words.append(parameter.said(value))
            possible[function.names[parameter]] = [value]
        else:
            possible[function.names[parameter]] = [parameter.default, ""]
    return _Request("".join(words) + ".", {function.name: possible})


def _questions(functions: list[_Function], *questions: Question) -> Questions:
    return Questions(listed([function.described() for function in functions]), questions)


def _question(requests: list[_Request], kind: Kind) -> Question:
    answers = json.dumps([request.answer for request in requests])
    return Question(" ".join(request.text for request in requests), kind, answers)


def _simple(rng: random.Random) -> Questions:
    functions = _functions(rng, 1)
    return _questions(functions, _question([_request(rng, functions[0])], "simple"))


def _multiple(rng: random.Random) -> Questions:
    functions = _functions(rng, rng.randint(3, 5))
    return _questions(functions, _question([_request(rng, rng.choice(functions))], "multiple"))


def _parallel(rng: random.Random) -> Questions:
    functions = _functions(rng, rng.randint(1, 4))
    requests = [_request(rng, rng.choice(functions)) for _ in range(rng.randint(2, 4))]
    return _questions(functions, _question(requests, "parallel"))


def _irrelevance(rng: random.Random) -> Questions:
    """Draw two requests to the same functions, in any order: one that they answer, and one that they cannot.

    A policy that never calls misses the first; one that always calls misses the second. The second request is for a
    function that is not listed, or lacks an argument that a listed function needs.
    """
    *functions, absent = _functions(rng, rng.randint(3, 5))
    answered = _question([_request(rng, rng.choice(functions))], "multiple")
    if rng.random() < _SAID:
        text = _request(rng, absent).text
    else:
        function = rng.choice(functions)
        required = [parameter for parameter in function.template.parameters if parameter.is_required]
        text = _request(rng, function, unsaid=rng.choice(required)).text
    pair = [answered, Question(text, "irrelevance")]
    rng.shuffle(pair)
    return _questions(functions, *pair)


_DRAWS: Final[Mapping[str, Callable[[random.Random], FunctionCallingTask]]] = {
    "simple": _simple, "multiple": _multiple, "parallel": _parallel, "irrelevance": _irrelevance,
    "multi_turn": draw_dialogue,
}  # fmt: skip


def generated_tasks() -> GeneratedTasks[FunctionCallingTask]:
    """Five levels: one function; one of several; several calls; requests without a call; a dialogue in the depot."""
    return GeneratedTasks("function_calling", lambda rng, level: _DRAWS[level](rng), repr, levels=LEVELS)
