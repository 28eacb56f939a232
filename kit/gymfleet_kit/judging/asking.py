"""The ways to ask a judge: its instructions, the parts of episodes that it sees, and the form of its verdict."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from gymfleet_kit.judging.escaping import shown
from gymfleet_kit.judging.prompts import DEFAULT_RUBRIC, Prompt, Question
from gymfleet_kit.judging.transcript import (
    Transcript,
    as_data,
    check_length,
    check_sum,
    common_beginning,
    longest_text,
    transcript_of,
)
from gymfleet_kit.judging.verdict import Shape, number_between, one_of, shares_of
from gymfleet_kit.plugins import ASCENDING

UNDECIDED: Final = 0.5
"""The value if two episodes have the same transcript, or neither is better."""
WORTH: Final = {"first": 1.0, "neither": UNDECIDED, "second": 0.0}
"""The value of each verdict on two episodes for the first one."""
_LIMIT: Final = 1_000_000

Grade = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-_LIMIT, le=_LIMIT), NUMBER]


class AskingOptions(BaseModel):
    """A judge's rubric, and the parts of episodes that it sees."""

    rubric: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    """The criteria, in words for the judge; by default reaching the goal, then few steps, then coming close."""
    thoughts: StrictBool = True
    """Show whole replies; otherwise only the actions."""
    max_chars: Annotated[int, Field(ge=1000, le=4_000_000), NUMBER] = 60_000
    """The limit for an episode's observations and replies together, before they are written as JSON."""
    too_long: Literal["refuse", "cut"] = "refuse"
    """The treatment of a longer episode: with `refuse` it is not judged and has no reward; with `cut` the middle of its
    longest texts is left out, and the judge is told so."""
    prompt_version: Literal[1] = 1
    """The version of the wording of the judge's prompt; a later gymfleet may have more."""


class ScaleOptions(BaseModel):
    """The scale on which a judge answers."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["lowest", "highest"]})

    lowest: Grade = 0.0
    """The judge's worst score."""
    highest: Grade = 10.0
    """The judge's best score, above `lowest`."""

    @model_validator(mode="after")
    def scale_has_two_ends(self) -> Self:
        """`lowest < highest`."""
        if self.lowest >= self.highest:
            raise ValueError("lowest must be below highest")
        return self


class Asking(ABC):
    """One way to ask a judge."""

    def __init__(self, options: AskingOptions) -> None:
        self.options = options
        self.rubric = options.rubric or DEFAULT_RUBRIC

    @property
    @abstractmethod
    def prompt(self) -> Prompt:
        """The prompt for the judge."""

    def transcripts(self, episodes: Sequence[Trajectory]) -> list[Transcript]:
        """Return the transcripts of the episodes. Raises `NotShown` if one cannot be shown."""
        found = [transcript_of(episode, thoughts=self.options.thoughts) for episode in episodes]
        if self.options.too_long == "refuse":
            check_length(found, self.options.max_chars)
        return found

    def _question(self, transcripts: dict[str, Transcript], shape: Shape, around: str | None = None) -> Question:
        """Return the question about transcripts, each under its name.

        Their common beginning is shown once, as `beginning`. With `around`, they are put in a table of that name.
        Raises `NotShown` if they are too long together.
        """
        options, each = self.options, list(transcripts.values())
        limit = longest_text(each, options.max_chars) if options.too_long == "cut" else None
        check_sum(each, limit)
        alike = common_beginning(each) if len(each) > 1 else 0
        data: dict[str, Any] = {name: as_data(one[alike:], limit) for name, one in transcripts.items()}
        data = data if around is None else {around: data}
        if alike:
            data = {"beginning": as_data(each[0][:alike], limit), **data}
        return Question(self.prompt.system, shown(data), shape)


class ByRubric(Asking):
    """A score for one episode."""

    def __init__(self, options: AskingOptions, scale: ScaleOptions) -> None:
        super().__init__(options)
        self._scale = scale

    @property
    def prompt(self) -> Prompt:
        """See `Asking`."""
        lowest, highest = self._scale.lowest, self._scale.highest
        answer = f'"score" is a number from {lowest:g} to {highest:g}, of which {highest:g} is the best.'
        return Prompt('its "turns" stand in order;', "score", answer, self.rubric)

    def question(self, transcript: Transcript) -> Question:
        """Return the question about an episode. Raises `NotShown`."""
        return self._question({"turns": transcript}, number_between(self._scale.lowest, self._scale.highest))


class ByPairs(Asking):
    """A choice of the better of two episodes of a task."""

    @property
    def prompt(self) -> Prompt:
        """See `Asking`."""
        return Prompt(
            '"first" and "second" are attempts at one task, each with its turns in order; what both begin with stands '
            'once, as "beginning";',
            "better",
            '"better" is "first", "second", or "neither" if they are equally good.',
            self.rubric,
        )

    def question(self, first: Transcript, second: Transcript) -> Question:
        """Return the question about two episodes in this order. Raises `NotShown`."""
        return self._question({"first": first, "second": second}, one_of(WORTH))


class ByRanking(Asking):
    """A number for each episode of a group."""

    @property
    def prompt(self) -> Prompt:
        """See `Asking`."""
        return Prompt(
            'its "episodes" are attempts at one task, each with its turns in order; what all of them begin with stands '
            'once, as "beginning";',
            "scores",
            '"scores" is an object that gives each key of "episodes" a number from 0 to 1: a better episode has a '
            "higher number than a worse one, and a small difference makes a small difference.",
            self.rubric,
        )

    def question(self, transcripts: Sequence[Transcript]) -> Question:
        """Return the question about episodes in this order. Raises `NotShown`."""
        named = {f"e{number}": transcript for number, transcript in enumerate(transcripts, 1)}
        return self._question(named, shares_of(list(named)), around="episodes")
