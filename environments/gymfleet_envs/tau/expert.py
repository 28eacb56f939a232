"""A clerk who knows the gold calls, and asks the customer as if not knowing them."""

import json
from collections.abc import Collection, Sequence
from typing import Final

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.tau.task import RESPOND, TRANSFER, Call, TauTask

WISH_QUESTION: Final = "What exactly would you like me to do?"
CLOSING: Final = "Is there anything else I can do for you?"
_MAX_SHOWN: Final = 1500
"""Characters of the details that the customer is to confirm."""


def next_move(
    task: TauTask, taken: Sequence[Call], changing: frozenset[str], identity_question: str, *, is_waiting: bool
) -> ExpertMove | None:
    """Return the first step of the plan that was not taken; None if a change was made that is not the gold one.

    The plan: ask who the customer is and what it wants, look up what is needed, say what cannot be done, ask for a
    confirmation of all changes, make the changes, say the outputs, and ask whether there is anything else.

    Args:
        task: the task with the gold calls.
        taken: the calls of the episode so far.
        changing: the tools that change records.
        identity_question: the question that asks who the customer is.
        is_waiting: whether the customer has a wish that it has not named yet.
    """
    gold = [call for call in task.actions if call.name not in {TRANSFER, RESPOND}]
    if _went_wrong(gold, taken, changing):
        return None
    said = {call.arguments for call in taken if call.name == RESPOND}
    first, wish = _say(identity_question), _say(WISH_QUESTION)
    if first.arguments not in said:
        return _move("I must know who the customer is.", first)
    if is_waiting or wish.arguments not in said:
        return _move("I ask what is to be done.", wish)
    left = _left(gold, taken)
    if left and left[0].name not in changing:
        return _move("I look up what is needed.", left[0])
    return _settle(task, left, [call for call in gold if call.name in changing], said)


def _settle(task: TauTask, left: Sequence[Call], changes: Sequence[Call], said: Collection[str]) -> ExpertMove:
    """Return the next step of a clerk who knows all that is needed."""
    refusal, confirmation = _say(task.refusal), _say(_confirmation(changes))
    if task.refusal and refusal.arguments not in said:
        return _move("The policy forbids a part of it.", refusal)
    if left and confirmation.arguments not in said:
        return _move("Before I change anything, the customer must confirm it.", confirmation)
    if left:
        return _move("I do what was confirmed.", left[0])
    if any(call.name == TRANSFER for call in task.actions):
        return _move("This is for a human agent.", Call.of(TRANSFER, summary="The customer needs a human agent."))
    told = f"The answer: {', '.join(task.outputs)}. " if task.outputs else ""
    return _move("All is done.", _say(told + CLOSING))


def _left(gold: Sequence[Call], taken: Sequence[Call]) -> list[Call]:
    """Return the calls of `gold` without those of `taken`; each call of `taken` removes one equal call."""
    rest = [_key(call) for call in taken]
    left = []
    for call in gold:
        if (key := _key(call)) in rest:
            rest.remove(key)
        else:
            left.append(call)
    return left


def _went_wrong(gold: Sequence[Call], taken: Sequence[Call], changing: frozenset[str]) -> bool:
    """Return whether changes other than the gold ones were made, or in another order, which may lead elsewhere."""
    wanted = [_key(call) for call in gold if call.name in changing]
    made = [_key(call) for call in taken if call.name in changing]
    return made != wanted[: len(made)]


def _key(call: Call) -> tuple[str, str]:
    return call.name, json.dumps(call.values(), sort_keys=True)


def _say(content: str) -> Call:
    return Call.of(RESPOND, content=content)


def _move(thought: str, call: Call) -> ExpertMove:
    return ExpertMove(thought=thought, action=call.text)


def _confirmation(changes: Sequence[Call]) -> str:
    shown = "; ".join(
        f"{call.name.replace('_', ' ')}: {', '.join(map(_words, call.values().values()))}" for call in changes
    )
    return f"Do you confirm (yes/no): {shown[:_MAX_SHOWN]}?"


def _words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
