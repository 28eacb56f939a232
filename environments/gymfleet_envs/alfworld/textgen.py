"""Text generation with textworld's context-sensitive grammars, parsed once and derived without copying the context.

textworld's own deriver parses every template again at each use, copies the context deeply
for each symbol and evaluates expressions as Python. Here, expressions consist only of
names, attributes and concatenations: a game file is not a program.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen

from gymfleet_envs.tasks import TaskDataError

_ATTRIBUTES: Final = frozenset({"name", "id", "definite", "indefinite"})
_CONDITION: Final = re.compile(r"\s*([a-z_0-9@-]+)\(([^()]*)\)\s*", re.IGNORECASE)
_MAX_DEPTH: Final = 40
_MAX_CHARS: Final = 100_000

Slot = tuple[str, str]
"""A placeholder: name and type."""
Bindings = dict[Slot, str]


class World(Protocol):
    """The world that answers conditions and supplies names."""

    def matching(self, predicate: str, slots: tuple[Slot, ...], bindings: Bindings) -> list[tuple[str, ...]]:
        """Return the arguments of the facts that agree with the bindings, in order of their names."""

    def name(self, entity: str) -> str:
        """The player's name for an entity."""


Condition = tuple[str, tuple[Slot, ...]]
Query = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Call:
    rule: str


@dataclass(frozen=True, slots=True)
class _Value:
    expression: ast.expr


@dataclass(frozen=True, slots=True)
class _Each:
    """Renders `body` for each answer to `query`; a list puts separators between them."""

    body: "_Node"
    query: Query
    is_list: bool


_Node = _Text | _Call | _Value | _Each


@dataclass(frozen=True, slots=True)
class _Rule:
    condition: Query
    body: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class ActionText:
    """An action's command, and the feedback after the action."""

    template: tuple[_Node, ...]
    feedback: tuple[_Node, ...]


class Grammar:
    """A parsed grammar file. Raises `TaskDataError` if it cannot parse or derive a text."""

    def __init__(self, text: str) -> None:
        try:
            actions, grammar = pddl_logic._parse_and_convert(text, rule_name="pddlStart")  # noqa: SLF001 - its only entry
            self._rules = {
                name: tuple(_Rule(_query(rule.condition), _nodes(rule.rhs)) for rule in rules)
                for name, rules in grammar._rules.items()  # noqa: SLF001
            }
            self.actions = {
                name: ActionText(_parsed(action.template), _parsed(action.feedback_rule))
                for name, action in actions.items()
            }
        except Exception as error:  # noqa: BLE001 - whatever TatSu, JSON and the converters make of a bad file
            raise TaskDataError(f"the grammar cannot be parsed: {type(error).__name__}: {str(error)[:300]}") from None

    def derive(self, nodes: tuple[_Node, ...], world: World, bindings: Bindings) -> str:
        """Return the text that these nodes derive."""
        parts: list[str] = []
        self._derive(nodes, world, bindings, parts, 0)
        return "".join(parts)

    def derive_rule(self, rule: str, world: World) -> str:
        """Return the text of a rule that needs no bindings."""
        return self.derive((_Call(rule),), world, {})

    def depends_on(self, nodes: tuple[_Node, ...]) -> frozenset[str]:
        """Return the predicates that the text of these nodes depends on; `*` if it calls rules."""
        found: set[str] = set()
        for node in nodes:
            if isinstance(node, _Call):
                found.add("*")
            elif isinstance(node, _Each):
                found |= {predicate for predicate, _ in node.query} | self.depends_on((node.body,))
        return frozenset(found)

    def _derive(self, nodes: tuple[_Node, ...], world: World, bindings: Bindings, parts: list[str], depth: int) -> None:
        if depth > _MAX_DEPTH or len(parts) > _MAX_CHARS:
            raise TaskDataError("the grammar's rules do not come to an end")
        for node in nodes:
            if isinstance(node, _Text):
                parts.append(node.text)
            elif isinstance(node, _Value):
                parts.append(_value(node.expression, world, {name: entity for (name, _), entity in bindings.items()}))
            elif isinstance(node, _Call):
                self._derive(self._choose(node.rule, world, bindings), world, bindings, parts, depth + 1)
            else:
                self._each(node, world, bindings, parts, depth)

    def _each(self, node: _Each, world: World, bindings: Bindings, parts: list[str], depth: int) -> None:
        answers = list(_answers(node.query, world, bindings)) if node.query else [bindings]
        if node.is_list and not answers:
            self._derive((_Call("list_empty"),), world, bindings, parts, depth + 1)
        for place, answer in enumerate(answers):
            if node.is_list and place:
                separator = "list_last_separator" if place == len(answers) - 1 else "list_separator"
                self._derive((_Call(separator),), world, bindings, parts, depth + 1)
            self._derive((node.body,), world, answer, parts, depth + 1)

    def _choose(self, name: str, world: World, bindings: Bindings) -> tuple[_Node, ...]:
        for rule in self._rules.get(name, ()):
            if not rule.condition or next(_answers(rule.condition, world, bindings), None) is not None:
                return rule.body
        raise TaskDataError(f"the grammar has no rule for #{name}# here")


def _answers(query: Query, world: World, bindings: Bindings) -> Iterator[Bindings]:
    """Yield all ways to satisfy the conditions; different placeholders stand for different things."""
    if not query:
        yield bindings
        return
    predicate, slots = query[0]
    for arguments in world.matching(predicate, slots, bindings):
        extended = dict(bindings)
        for slot, argument in zip(slots, arguments, strict=True):
            if slot not in extended and argument in extended.values():
                break
            if extended.setdefault(slot, argument) != argument:
                break
        else:
            yield from _answers(query[1:], world, extended)


def _value(node: ast.expr, world: World, names: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return world.name(_entity(name, names))
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            entity = _entity(name, names)
            if attribute == "id":
                return entity
            return {"definite": "the", "indefinite": "a"}.get(attribute) or world.name(entity)
        case ast.BinOp(left=left, right=right):
            return _value(left, world, names) + _value(right, world, names)
        case ast.BoolOp(op=operator, values=values):
            texts = [_value(value, world, names) for value in values]
            wanted = isinstance(operator, ast.Or)
            return next((text for text in texts if bool(text) == wanted), texts[-1])
    raise AssertionError(f"_expression lets {type(node).__name__} pass")


def _entity(name: str, names: Mapping[str, str]) -> str:
    try:
        return names[name]
    except KeyError:
        raise TaskDataError(f"the grammar uses {{{name}}} where nothing is called so") from None


def _parsed(text: str) -> tuple[_Node, ...]:
    return _nodes(_symbols(text))


@lru_cache(maxsize=256)
def _symbols(text: str) -> Any:
    return textgen._parse_and_convert(text, rule_name="symbols")  # noqa: SLF001 - its only entry


def _nodes(symbols: Collection[Any]) -> tuple[_Node, ...]:
    return tuple(_node(symbol) for symbol in symbols)


def _node(symbol: Any, *, is_list: bool = False) -> _Node:
    match symbol:
        case textgen.TerminalSymbol():
            return _Text(str(symbol.symbol))
        case textgen.NonterminalSymbol():
            return _Call(str(symbol.symbol))
        case textgen.EvalSymbol():
            return _Value(_expression(str(symbol.expression)))
        case textgen.ListSymbol():
            return _node(symbol.symbol, is_list=True)
        case textgen.ConditionalSymbol():
            return _Each(_node(symbol.expression), _query(symbol.given or ""), is_list)
    raise ValueError(f"unknown symbol {symbol!r}")


def _expression(text: str) -> ast.expr:
    """Parse an expression, if `_value` supports it."""
    tree = ast.parse(text.strip(), mode="eval").body
    for node in ast.walk(tree):
        known = (
            isinstance(node, (ast.Name, ast.BoolOp, ast.Or, ast.And, ast.Add, ast.Load))
            or (isinstance(node, ast.Constant) and isinstance(node.value, str))
            or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add))
            or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _ATTRIBUTES)
        )
        if not known:
            raise ValueError(f"the expression {text[:100]!r} is not made of names, attributes and texts")
    return tree


def _query(text: str) -> Query:
    """Parse conditions such as `atlocation(a:agent, l:location) & holds(a:agent, o:object)`."""
    if not text.strip():
        return ()
    conditions: list[Condition] = []
    for part in text.split("&"):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ValueError(f"the condition {part[:100]!r} is not like 'holds(a:agent, o:object)'")
        slots = []
        for parameter in filter(None, (item.strip() for item in match[2].split(","))):
            name, _, kind = parameter.partition(":")
            slots.append((name.strip(), (kind or name).strip()))
        conditions.append((match[1].strip(), tuple(slots)))
    return tuple(conditions)
