"""The rules of TextWorld's games, taken from the package's logic, and the actions that they allow in a state."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

Fact = tuple[str, ...]
"""A predicate and the ids that it holds of, such as `("in", "o_1", "c_0")`."""
Index = Mapping[tuple[str, int, str], list[Fact]]
"""Facts by predicate, place and the id at that place, and by predicate alone as `(predicate, 0, "")`."""
_NONE: Final[list[Fact]] = []


@dataclass(frozen=True, slots=True)
class Pattern:
    """A predicate of a rule, with names of variables instead of ids."""

    predicate: str
    variables: tuple[str, ...]

    def bound(self, bindings: Mapping[str, str]) -> Fact:
        """Return the pattern's fact about the bound ids."""
        return (self.predicate, *(bindings[name] for name in self.variables))


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of action: `conditions` must hold, `removed` ceases to hold, `added` begins to hold."""

    name: str
    command: str
    """A template with the variables' names in braces."""
    conditions: tuple[Pattern, ...]
    removed: tuple[Pattern, ...]
    added: tuple[Pattern, ...]
    types: Mapping[str, frozenset[str]]
    """The types of things that each variable may stand for."""
    constants: Mapping[str, str]
    """The variables in capitals, such as the player; each stands for the thing with that id."""


@dataclass(frozen=True, slots=True)
class Action:
    """A rule with ids for its variables."""

    rule: str
    command: str
    bindings: Mapping[str, str]
    removed: frozenset[Fact]
    added: frozenset[Fact]


@dataclass(frozen=True)
class Logic:
    """The rules of a kind of games."""

    rules: tuple[Rule, ...]
    changing: frozenset[str]
    """The predicates that some rule changes; facts of other predicates always hold."""
    kinds: Mapping[str, frozenset[str]]
    """Each type with all its parents, and itself."""
    arities: Mapping[str, int]
    """The number of arguments of each predicate in the rules."""

    @cached_property
    def verbs(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules by the first word of their commands."""
        found: dict[str, tuple[Rule, ...]] = {}
        for rule in self.rules:
            verb = rule.command.split()[0]
            found[verb] = (*found.get(verb, ()), rule)
        return found

    def actions(
        self, verb: str, index: Index, fixed: Index, types: Mapping[str, str], names: Mapping[str, str]
    ) -> list[Action]:
        """Return the possible actions of a verb, in the order of the rules.

        Args:
            verb: one of `verbs`.
            index: the facts of predicates in `changing`.
            fixed: the other facts.
            types: the type of each id.
            names: the name of each id in a command.
        """
        return [
            _action(rule, bindings, names)
            for rule in self.verbs[verb]
            for bindings in self._matches(rule, 0, dict(rule.constants), index, fixed, types)
        ]

    def _matches(
        self, rule: Rule, place: int, bindings: dict[str, str], index: Index, fixed: Index, types: Mapping[str, str]
    ) -> Iterator[dict[str, str]]:
        if place == len(rule.conditions):
            yield bindings
            return
        pattern = rule.conditions[place]
        key = (pattern.predicate, 0, "")
        for position, name in enumerate(pattern.variables, start=1):
            if name in bindings:
                key = (pattern.predicate, position, bindings[name])
                break
        source = index if pattern.predicate in self.changing else fixed
        for fact in source.get(key, _NONE):
            if (more := _extended(rule, pattern, fact, bindings, types)) is not None:
                yield from self._matches(rule, place + 1, more, index, fixed, types)


def indexed(facts: Iterable[Fact]) -> Index:
    """Return the facts by their contents, in their order."""
    index: dict[tuple[str, int, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        index[fact[0], 0, ""].append(fact)
        for position in range(1, len(fact)):
            index[fact[0], position, fact[position]].append(fact)
    return dict(index)


def logic_of(knowledge: Any) -> Logic:
    """Return the rules of one of the package's knowledge bases."""
    kinds = {
        kind.name: frozenset({kind.name, *(parent.name for parent in kind.ancestors)}) for kind in knowledge.logic.types
    }
    rules = tuple(_rule(rule, kinds) for rule in knowledge.rules.values() if rule.command_template is not None)
    changing = frozenset(pattern.predicate for rule in rules for pattern in (*rule.removed, *rule.added))
    arities = {
        pattern.predicate: len(pattern.variables) for rule in rules for pattern in (*rule.conditions, *rule.added)
    }
    return Logic(rules, changing, kinds, arities)


def _rule(rule: Any, kinds: Mapping[str, frozenset[str]]) -> Rule:
    conditions, after = _patterns(rule.preconditions), _patterns(rule.postconditions)
    return Rule(
        rule.name,
        rule.command_template,
        _in_a_good_order(conditions),
        tuple(pattern for pattern in conditions if pattern not in after),
        tuple(pattern for pattern in after if pattern not in conditions),
        {
            variable.name: frozenset(kind for kind, supertypes in kinds.items() if variable.type in supertypes)
            for variable in rule.placeholders
        },
        {variable.name: variable.name for variable in rule.placeholders if variable.name.isupper()},
    )


def _patterns(predicates: Iterable[Any]) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(predicate.name, tuple(variable.name for variable in predicate.parameters)) for predicate in predicates
    )


def _in_a_good_order(conditions: Iterable[Pattern]) -> tuple[Pattern, ...]:
    """Put conditions on the player first, then always the condition with the fewest variables that are still open."""
    left = sorted(conditions, key=lambda pattern: "P" not in pattern.variables)
    ordered: list[Pattern] = []
    bound = {name for pattern in left for name in pattern.variables if name.isupper()}
    while left:
        following = min(left, key=lambda pattern: len(set(pattern.variables) - bound)) if ordered else left[0]
        left.remove(following)
        ordered.append(following)
        bound.update(following.variables)
    return tuple(ordered)


def _extended(
    rule: Rule, pattern: Pattern, fact: Fact, bindings: dict[str, str], types: Mapping[str, str]
) -> dict[str, str] | None:
    more = bindings
    for name, entity in zip(pattern.variables, fact[1:], strict=True):
        known = more.get(name)
        if known == entity:
            continue
        # Different variables stand for different things.
        if known is not None or types[entity] not in rule.types[name] or entity in more.values():
            return None
        if more is bindings:
            more = dict(bindings)
        more[name] = entity
    return more


def _action(rule: Rule, bindings: Mapping[str, str], names: Mapping[str, str]) -> Action:
    return Action(
        rule.name,
        rule.command.format_map({name: names[entity] for name, entity in bindings.items()}),
        bindings,
        frozenset(pattern.bound(bindings) for pattern in rule.removed),
        frozenset(pattern.bound(bindings) for pattern in rule.added),
    )
