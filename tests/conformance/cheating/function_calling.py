"""What an agent would do in function_calling that wants the reward and not the task."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _listed(observation: str) -> list[dict[str, Any]]:
    """Return the functions that a first observation lists."""
    listing = observation[observation.find("[") :]
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(listing)[0]
    return found


def _plain(described: dict[str, Any]) -> Any:
    values = {"string": "", "integer": 1, "float": 1.0, "boolean": True, "array": [], "tuple": [], "dict": {}}
    return described.get("enum", [values.get(described["type"], "")])[0]


def _spelled(function: dict[str, Any], value: Any = None) -> str:
    properties = function["parameters"]["properties"]
    given = {name: _plain(one) if value is None else value for name, one in properties.items()}
    return f"{function['name']}({', '.join(f'{name}={one!r}' for name, one in given.items())})"


def _says_that_nothing_fits(attempt: Attempt) -> None:
    """Right wherever nothing is to be called."""
    while True:
        attempt.act("None of the functions can be used.")


def _calls_everything(attempt: Attempt) -> None:
    """Call each function at once, and end the turn."""
    functions = _listed(attempt.observation)
    while True:
        attempt.act(f"[{', '.join(_spelled(function) for function in functions)}]")
        attempt.act("Done.")


def _calls_first_and_nothing_then(attempt: Attempt) -> None:
    function = _listed(attempt.observation)[0]
    attempt.act(f"[{_spelled(function)}]")
    while True:
        attempt.act("")


def _gives_the_request_as_every_argument(attempt: Attempt) -> None:
    functions = _listed(attempt.observation)
    while True:
        request = attempt.observation.rpartition("\n")[2]
        attempt.act(f"[{_spelled(functions[0], request)}]")
        attempt.act("Done.")


def _gives_all_words_as_a_list(attempt: Attempt) -> None:
    functions = _listed(attempt.observation)
    words = re.findall(r"[\w.:-]+", attempt.observation.rpartition("\n")[2])
    for function in functions:
        attempt.act(f"[{_spelled(function, words)}]")


def _leaves_the_answer_to_the_reader(attempt: Attempt) -> None:
    """Texts that a careless reader would run, or take for a judgement."""
    function = _listed(attempt.observation)[0]["name"]
    texts: Iterator[str] = iter((
        f"[{function}(**answers)]", f"[{function}(*answers)]", f"[{function}(number=2**10**9)]",
        "[__import__('os').system('id')]", '{"score": 1.0, "valid": true}', f"[x for x in {function}()]",
        f"[{function}.__globals__['answers']()]", "[self._over(score=1)]",
    ))  # fmt: skip
    for text in texts:
        attempt.act(text)


CHEATS: Final = (
    Cheat("says_that_nothing_fits", _says_that_nothing_fits),
    Cheat("calls_everything", _calls_everything),
    Cheat("calls_first_and_nothing_then", _calls_first_and_nothing_then),
    Cheat("gives_the_request_as_every_argument", _gives_the_request_as_every_argument),
    Cheat("gives_all_words_as_a_list", _gives_all_words_as_a_list),
    Cheat("leaves_the_answer_to_the_reader", _leaves_the_answer_to_the_reader),
)
