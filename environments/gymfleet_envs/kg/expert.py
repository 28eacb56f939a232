"""The gold calls, one after the other, with a look at the choices before each step."""

from collections.abc import Mapping, Sequence

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.kg.program import And, Count, Extreme, Join, Program, Variable


def next_move(
    goal: Program, variables: Sequence[Variable], listed: frozenset[str], names: Mapping[Program | str, str]
) -> ExpertMove:
    """Return the next move towards the variable that `goal` describes, whatever was done before.

    Args:
        goal: the program of the answer.
        variables: the variables of the session.
        listed: the calls that have listed relations or attributes already.
        names: the names of the question's entities, by id.
    """
    made: dict[Program | str, str] = {**names}
    made.update({one.program: f"#{number}" for number, one in reversed(list(enumerate(variables)))})
    if goal in made:
        return ExpertMove(thought=f"{made[goal]} is what was asked for.", action=f"Final Answer: {made[goal]}")
    missing = _missing(goal, made)
    listing, call = _calls(missing, made)
    if listing and listing not in listed:
        return ExpertMove(thought="I look at what there is to choose from.", action=listing)
    return ExpertMove(thought=_REASONS[type(missing)], action=call)


_REASONS: dict[type[Program], str] = {
    Join: "This relation leads to what I need.",
    And: "I need what is in both sets.",
    Count: "I need their number.",
    Extreme: "This attribute decides.",
}


def _missing(program: Program, made: Mapping[Program | str, str]) -> Program:
    """Return the first part that is not made yet although all its own parts are."""
    bases = (program.left, program.right) if isinstance(program, And) else (program.base,)
    for base in bases:
        if not isinstance(base, str) and base not in made:
            return _missing(base, made)
    return program


def _calls(program: Program, made: Mapping[Program | str, str]) -> tuple[str, str]:
    """Return the call that lists the choices, if the program needs one, and the call that makes a variable."""
    match program:
        case Join(relation, base):
            what = made.get(base, base)
            return f"get_relations({what})", f"get_neighbors({what}, {relation})"
        case And(left, right):
            return "", f"intersection({made[left]}, {made[right]})"
        case Count(base):
            return "", f"count({made[base]})"
        case Extreme(base, attribute, greatest):
            return f"get_attributes({made[base]})", f"{'argmax' if greatest else 'argmin'}({made[base]}, {attribute})"
