"""The base of scorers, which compare an answer with a row's right answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from gymfleet_contracts.faults import faults
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from gymfleet_envs.dataset.answers import AnswerMark, answer_of
from gymfleet_envs.dataset.parts import UnknownPart, find_part

PACKAGE: Final = "gymfleet_envs.dataset.scorers"


class BadGold(ValueError):
    """A scorer cannot compare with a row's right answer. The message does not reveal the answer."""


class ScorerOptions(BaseModel):
    """Options of every scorer. A misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    answer: AnswerMark = "auto"
    r"""Where to find the answer in a reply: `tag`, the last `<answer>...</answer>`; `boxed`, the last `\boxed{...}`;
    `hash`, after the last `####`; `line`, after the last `Answer:`; `whole`, the reply; `auto`, the later of tag and
    box, else the reply."""


OptionsT = TypeVar("OptionsT", bound=ScorerOptions)


class Scorer(ABC, Generic[OptionsT]):
    """Compares answers with right ones. One object serves all rows of a data source: it keeps nothing about them."""

    Options: ClassVar[type[ScorerOptions]] = ScorerOptions

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def gold(self, told: JsonValue) -> JsonValue:
        """Return a row's right answer; of a whole solution, the part that would be the answer in a reply."""
        return told if not isinstance(told, str) else answer_of(told, self.options.answer) or told

    @abstractmethod
    def checked(self, gold: JsonValue) -> Any:
        """Return a row's right answer as `score` takes it; called once, when the row is read. Raises `BadGold`."""

    @abstractmethod
    def score(self, answer: str, right: Any) -> float:
        """Return how right an answer is, in [0, 1]. Any text can be an answer, even one crafted to be slow to read."""

    def answer(self, said: str) -> str | None:
        """Return the answer of a reply, without its reasoning; None if there is none, which is worth 0."""
        return answer_of(said, self.options.answer)


AnyScorer = Scorer[Any]


def make_scorer(told: str | Mapping[str, JsonValue]) -> AnyScorer:
    """Make the scorer that a table of the options names. Raises `UnknownPart`, also for options unknown to it."""
    table: dict[str, JsonValue] = {"use": told} if isinstance(told, str) else dict(told)
    reference = table.pop("use", None)
    if not isinstance(reference, str):
        raise UnknownPart("a scorer is a name, or a table with its name as `use`")
    kind: type[AnyScorer] = find_part(reference, PACKAGE, Scorer, "scorer")  # type: ignore[type-abstract]
    try:
        return kind(kind.Options.model_validate(table))
    except ValidationError as error:
        known = ", ".join(kind.Options.model_fields)
        raise UnknownPart(f"scorer {reference}: {faults(error)} (it knows: {known})") from None


def text_of(gold: JsonValue) -> str:
    """Return a right answer that is a text or a number. Raises `BadGold`."""
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise BadGold(f"it is {type(gold).__name__}, no text and no number")
    return str(gold)


class OneOf(Scorer[OptionsT]):
    """Compares with each of several right answers: the best comparison counts.

    The right answers are a list, a single answer or, as in Search-R1, an object with either as `target`.
    """

    @abstractmethod
    def right_one(self, gold: str) -> Any:
        """Return a single right answer as `compared` takes it. Raises `BadGold`."""

    @abstractmethod
    def compared(self, answer: str, right: Any) -> float:
        """Return how right an answer is, in [0, 1]."""

    def checked(self, gold: JsonValue) -> tuple[Any, ...]:
        """See `Scorer`."""
        if isinstance(gold, dict):
            gold = gold.get("target")
        several = gold if isinstance(gold, list) else [gold]
        if not several:
            raise BadGold("it is an empty list: no answer is right")
        return tuple(self.right_one(text_of(one)) for one in several)

    def score(self, answer: str, right: tuple[Any, ...]) -> float:
        """See `Scorer`."""
        return max(self.compared(answer, one) for one in right)
