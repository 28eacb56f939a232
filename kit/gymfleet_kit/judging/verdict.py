"""The form of a verdict: one JSON object with these keys and no others, and with the nonce of its question."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gymfleet_contracts import strict_json

Values: TypeAlias = tuple[float, ...]

_NONCE: Final = "nonce"
_FENCE: Final = "```"
_AFTER_THINKING: Final = "</think>"
_KEYS: Final = (_NONCE, "reasoning")


class NoVerdict(Exception):
    """The answer is not a verdict. The message gives the reason, and quotes nothing of the answer."""


@dataclass(frozen=True)
class Shape:
    """The part of a verdict other than its nonce and its reasoning."""

    key: str
    schema: Mapping[str, Any]
    """JSON Schema of the value under the key."""
    read: Callable[[Any], Values]
    """Returns the values. Raises `NoVerdict`."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the whole object."""
        text = {"type": "string"}
        keys = [*_KEYS, self.key]
        properties = {**dict.fromkeys(_KEYS, text), self.key: dict(self.schema)}
        return {"type": "object", "properties": properties, "required": keys, "additionalProperties": False}

    def values(self, answer: str, nonce: str) -> Values:
        """Return the values of an answer. Raises `NoVerdict`."""
        verdict = _object(_own_words(answer))
        if verdict.keys() != {*_KEYS, self.key}:
            raise NoVerdict(f"its keys are not nonce, reasoning and {self.key}")
        if not isinstance(verdict["reasoning"], str):
            raise NoVerdict("its reasoning is no text")
        if verdict[_NONCE] != nonce:
            raise NoVerdict("its nonce is not the one that was asked for")
        return self.read(verdict[self.key])

    def written(self, value: Any, nonce: str) -> str:
        """Return the text of a verdict without reasoning, which `values` can read."""
        return json.dumps({_NONCE: nonce, "reasoning": "", self.key: value})


def number_between(lowest: float, highest: float) -> Shape:
    """Return the shape of a number, `score`."""
    schema = {"type": "number", "minimum": lowest, "maximum": highest}
    return Shape("score", schema, lambda found: (_number(found, lowest, highest),))


def one_of(choices: Mapping[str, float]) -> Shape:
    """Return the shape of one of several words, `better`, each of which stands for a number."""

    def read(found: Any) -> Values:
        if not isinstance(found, str) or found not in choices:
            raise NoVerdict(f"better is none of {', '.join(choices)}")
        return (choices[found],)

    return Shape("better", {"type": "string", "enum": list(choices)}, read)


def shares_of(labels: Sequence[str]) -> Shape:
    """Return the shape of a number in [0, 1] for each label, `scores`."""

    def read(found: Any) -> Values:
        if not isinstance(found, dict) or found.keys() != set(labels):
            raise NoVerdict(f"scores has not exactly the keys {', '.join(labels)}")
        return tuple(_number(found[label], 0.0, 1.0) for label in labels)

    share = {"type": "number", "minimum": 0, "maximum": 1}
    schema = {
        "type": "object", "properties": dict.fromkeys(labels, share), "required": list(labels),
        "additionalProperties": False,
    }  # fmt: skip
    return Shape("scores", schema, read)


def _number(found: Any, lowest: float, highest: float) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise NoVerdict("a score is no number")
    if not lowest <= found <= highest:  # nor is what is no number at all
        raise NoVerdict(f"a score is outside [{lowest:g}, {highest:g}]")
    return float(found)


def _own_words(answer: str) -> str:
    """Return an answer without the thoughts before it, and without a fence around it."""
    text = answer.rpartition(_AFTER_THINKING)[2].strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE):
        return text[len(_FENCE) : -len(_FENCE)].removeprefix("json")
    return text


def _object(text: str) -> dict[str, Any]:
    try:
        found = strict_json.loads(text)
    except strict_json.Ambiguous as error:
        raise NoVerdict(str(error)) from None
    except (ValueError, RecursionError):
        raise NoVerdict("it is not one JSON object") from None
    if not isinstance(found, dict):
        raise NoVerdict("it is not one JSON object")
    return found
