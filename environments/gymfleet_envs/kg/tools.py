"""The seven tools, with their refusals and answers in AgentBench's words."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gymfleet_envs.kg.actions import PARAMETERS, Call
from gymfleet_envs.kg.base import KnowledgeBase
from gymfleet_envs.kg.program import MOST_PARTS, NUMBER_TYPE, And, Count, Extreme, Join, Program, Variable, parts

Argument = Variable | str
_SHOWN_CHARS: Final = 64
_VARIABLE: Final = re.compile(r"(?:[Vv]ariable )?#(?P<number>[0-9]+)")


class Misspelt(Exception):
    """There is no such call. The message is the observation."""


class Refused(Exception):
    """The call cannot be carried out. The message is the observation."""


def carry_out(
    call: Call, base: KnowledgeBase, variables: Sequence[Variable], entities: Mapping[str, str]
) -> tuple[str, Variable | None]:
    """Return a call's observation, and the variable that it makes, if any. Raises `Misspelt`, `Refused`."""
    if call.name not in PARAMETERS:
        raise Misspelt(f"Provide an invalid function name. Function {call.name[:_SHOWN_CHARS]} does not exist")
    if len(call.arguments) != len(PARAMETERS[call.name]):
        raise Misspelt(f"Arguments do not match the function signature. Error processing arguments for {call.name}")
    given = [_resolved(argument, variables, entities) for argument in call.arguments]
    match call.name:
        case "get_relations":
            return _listed(base.relations(_what(call.name, given[0], base))), None
        case "get_attributes":
            return _listed(base.attributes(_set(call.name, given[0]).program)), None
        case "get_neighbors":
            made = _neighbors(base, given[0], call.arguments[1])
        case "intersection":
            made = _intersection(given[0], given[1])
        case "count":
            made = Variable(NUMBER_TYPE, Count(_set(call.name, given[0]).program))
        case _:
            made = _extreme(call.name, base, given[0], call.arguments[1])
    if parts(made.program) > MOST_PARTS:
        raise _refusal(call.name, f"the variable would be made of more than {MOST_PARTS} calls")
    kind = "which is a number" if made.type == NUMBER_TYPE else f"which are instances of {made.type}"
    return f"Observation: variable #{len(variables)}, {kind}", made


def _resolved(argument: str, variables: Sequence[Variable], entities: Mapping[str, str]) -> Argument:
    if (variable := _VARIABLE.fullmatch(argument)) is None:
        return entities.get(argument, argument)
    digits = variable["number"]
    if len(digits) > 6 or int(digits) >= len(variables):
        raise Refused("Error processing tool call: list index out of range")
    return variables[int(digits)]


def _what(name: str, given: Argument, base: KnowledgeBase) -> Program | str:
    if isinstance(given, Variable):
        return given.program
    if not base.is_entity(given):
        raise _refusal(name, "variable must be a variable or an entity")
    return given


def _set(name: str, given: Argument) -> Variable:
    if not isinstance(given, Variable):
        raise _refusal(name, "variable must be a variable")
    if given.type == NUMBER_TYPE:
        raise _refusal(name, "variable must be a set of entities, not a number")
    return given


def _neighbors(base: KnowledgeBase, given: Argument, relation: str) -> Variable:
    what = _what("get_neighbors", given, base)
    if relation not in base.relations(what):
        raise _refusal("get_neighbors", "relation must be a relation of the variable")
    return Variable(base.range_of(relation), Join(relation, what))


def _intersection(left: Argument, right: Argument) -> Variable:
    first, second = _set("intersection", left), _set("intersection", right)
    if first.type != second.type:
        raise _refusal("intersection", "two variables must have the same type")
    return Variable(first.type, And(first.program, second.program))


def _extreme(name: str, base: KnowledgeBase, given: Argument, attribute: str) -> Variable:
    among = _set(name, given)
    if attribute not in base.attributes(among.program):
        raise _refusal(name, "attribute must be an attribute of the variable")
    return Variable(among.type, Extreme(among.program, attribute, name == "argmax"))


def _listed(names: Sequence[str]) -> str:
    return f"Observation: [{', '.join(names)}]"


def _refusal(name: str, why: str) -> Refused:
    return Refused(f"Error processing tool call: {name}: {why}")
