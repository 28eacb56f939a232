"""SPARQL queries of programs, made only of checked names: an agent's text never occurs in them."""

from typing import Final

from gymfleet_envs.kg.program import FREEBASE_ID, RELATION, And, Count, Extreme, Join, Program, topics

NAMESPACE: Final = "http://rdf.freebase.com/ns/"
_ENGLISH: Final = "FILTER (!isLiteral(?x) || lang(?x) = '' || langMatches(lang(?x), 'en'))"


def members_query(program: Program, most: int) -> str:
    """Return the query for up to `most` + 1 members of a set, or for the number of a count."""
    if isinstance(program, Count):
        return f"SELECT (COUNT(DISTINCT ?x) AS ?value) WHERE {{ {_members(program.base)} }}"
    return f"SELECT DISTINCT ?x WHERE {{ {_members(program)} }} LIMIT {most + 1}"


def links_query(what: Program | str, *, literals: bool) -> str:
    """Return the query for relations from a set or an entity; with `literals`, also whether each leads to a literal."""
    inner = f"{_entity(what)} ?rel ?obj ." if isinstance(what, str) else f"?x ?rel ?obj . {{ {_members(what)} }}"
    return f"SELECT DISTINCT ?rel{' (isLiteral(?obj) AS ?literal)' * literals} WHERE {{ {inner} }}"


def range_query(relation: str) -> str:
    """Return the query for the type that Freebase expects at the end of a relation."""
    expected = f"<{NAMESPACE}type.property.expected_type>|<http://www.w3.org/2000/01/rdf-schema#range>"
    return f"SELECT DISTINCT ?type WHERE {{ {_name(relation)} ({expected}) ?type }} LIMIT 1"


def _members(program: Program, used: list[int] | None = None) -> str:
    excluded = "".join(f" FILTER (?x != {_entity(one)})" for one in sorted(topics(program)))
    return f"{_pattern(program, '?x', [0] if used is None else used)} {_ENGLISH}{excluded}"


def _pattern(program: Program | str, name: str, used: list[int]) -> str:
    """Return the pattern that binds `name` to a set's members; `used` counts the variables named so far."""
    match program:
        case Join(relation, str() as entity):
            return f"{_entity(entity)} {_name(relation)} {name} ."
        case Join(relation, base):
            inner = _fresh(used)
            return f"{_pattern(base, inner, used)} {inner} {_name(relation)} {name} ."
        case And(left, right):
            return f"{_pattern(left, name, used)} {_pattern(right, name, used)}"
        case Extreme(base, attribute, greatest):
            value = _fresh(used)
            order = f"DESC({value})" if greatest else value
            # The inner `?x` is not the outer one, as only the value leaves the braces.
            best = (f"{{ SELECT {value} WHERE {{ {_members(base, used)} ?x {_name(attribute)} {value} }} "
                    f"ORDER BY {order} LIMIT 1 }}")  # fmt: skip
            return f"{best} {_pattern(base, name, used)} {name} {_name(attribute)} {value} ."
        case _:
            raise ValueError(f"{program!r} has no members")


def _fresh(used: list[int]) -> str:
    used[0] += 1
    return f"?v{used[0]}"


def _entity(one: str) -> str:
    if FREEBASE_ID.fullmatch(one) is None:
        raise ValueError(f"{one!r} is no id of Freebase")
    return f"<{NAMESPACE}{one}>"


def _name(relation: str) -> str:
    if RELATION.fullmatch(relation) is None:
        raise ValueError(f"{relation!r} is no relation")
    return f"<{NAMESPACE}{relation}>"
