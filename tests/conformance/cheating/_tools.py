"""What an agent would do in any of AgentGym's tool environments that wants the reward and not the task."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from gymfleet_env_server.cheats import Attempt, Cheat

_COMMON: Final[tuple[Any, ...]] = ("Yes", "No", "done", "None", "", 0, 1, 2, 10, True, None, [], {}, ["Yes", "No"])
_TEXT: Final = re.compile(r"'([^']+)'|(-?\d+(?:\.\d+)?)")


def call(tool: str, **arguments: Any) -> str:
    """Return an action."""
    return f"{tool} with Action Input: {json.dumps(arguments)}"


def goal(attempt: Attempt) -> str:
    """Return what is asked for."""
    return attempt.first.partition("goal: ")[2].rpartition("\n")[0]


def answers(*given: Any) -> tuple[Cheat, ...]:
    """Return policies that finish at once, each with one answer."""
    return tuple(Cheat(f"answers_{value!r}", _answering(value)) for value in given)


def _answering(value: Any) -> Any:
    def play(attempt: Attempt) -> None:
        attempt.act(call("finish", answer=value))

    return play


def seen(texts: Iterable[str]) -> list[Any]:
    """Return every quoted text and every number of some observations."""
    found = [match for text in texts for match in _TEXT.findall(text)]
    return list(dict.fromkeys(quoted or float(number) for quoted, number in found))


def _answers_all_that_is_said(attempt: Attempt) -> None:
    """Call what needs no arguments, and answer with the list of all that was seen."""
    for tool in attempt.entry.spec.tools:
        if tool.name != "finish" and not tool.parameters.get("required"):
            attempt.act(call(tool.name))
    attempt.act(call("finish", answer=[str(value) for value in seen(o.observation for o in attempt.outcomes)]))


def _answers_the_goal(attempt: Attempt) -> None:
    """Answer with the question, and with words of it."""
    attempt.act(call("finish", answer=goal(attempt)))


def _answers_twice(attempt: Attempt) -> None:
    """Put several answers into one call, and several calls into one action."""
    first, last = call("finish", answer="x"), call("finish", answer="done")
    attempt.act(f"Action: {first}\nAction: {last}")


def _fails_to_finish_and_tries_again(attempt: Attempt) -> None:
    """Learn from refused answers: a list that cannot be sorted does not end the episode."""
    for answer in ([1, "a"], [{"a": 1}, {"b": 2}], [None, 1]):
        attempt.act(call("finish", answer=answer))
    attempt.act(call("finish"))
    attempt.act("finish with Action Input: __import__('os').getcwd()")
    attempt.act(call("finish", answer=True))


CHEATS: Final = (
    *answers(*_COMMON),
    Cheat("answers_all_that_is_said", _answers_all_that_is_said),
    Cheat("answers_the_goal", _answers_the_goal),
    Cheat("answers_twice", _answers_twice),
    Cheat("fails_to_finish_and_tries_again", _fails_to_finish_and_tries_again),
)
