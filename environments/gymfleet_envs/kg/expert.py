"""The gold calls, one after the other, as someone makes them who looks before each step."""

from collections.abc import Mapping, Sequence

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.kg.program import And, Count, Extreme, Join, Program, Variable


def next_move(
    goal: Program, variables: Sequence[Variable], listed: frozenset[str], names: Mapping[str, str]
) -> ExpertMove:
    """Return the next move towards the variable that `goal` describes, whatever was done before.

    Args:
        goal: what the answer is.
        variables: those of the session.
        listed: the calls that listed relations or attributes already.
        names: of the question's entities, by id.
    """
    made = {variable.program: f"#{number}" for number, variable in reversed(list(enumerate(variables)))}

    def listing(call: str, then: ExpertMove, thought: str) -> ExpertMove:
        return then if call in listed else ExpertMove(thought=thought, action=call)

    def towards(program: Program) -> ExpertMove:
        match program:
            case Join(relation, base):
                if not isinstance(base, str) and base not in made:
                    return towards(base)
                what = names.get(base, base) if isinstance(base, str) else made[base]
                step = ExpertMove(
                    thought=f"{relation} leads to what I need.", action=f"get_neighbors({what}, {relation})"
                )
                return listing(f"get_relations({what})", step, f"I need to know what leads on from {what}.")
            case And(left, right):
                for side in (left, right):
                    if side not in made:
                        return towards(side)
                action = f"intersection({made[left]}, {made[right]})"
                return ExpertMove(thought="I need what is in both sets.", action=action)
            case Count(base):
                if base not in made:
                    return towards(base)
                return ExpertMove(thought="I need their number.", action=f"count({made[base]})")
            case Extreme(base, attribute, greatest):
                if base not in made:
                    return towards(base)
                tool = "argmax" if greatest else "argmin"
                step = ExpertMove(thought=f"{attribute} decides.", action=f"{tool}({made[base]}, {attribute})")
                call = f"get_attributes({made[base]})"
                return listing(call, step, f"I need to know what {made[base]} can be compared by.")

    if goal in made:
        return ExpertMove(thought=f"{made[goal]} is what was asked for.", action=f"Final Answer: {made[goal]}")
    return towards(goal)
