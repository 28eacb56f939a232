"""What a language model makes of an episode, by a rubric."""

from typing import Annotated, Final, Self

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.plugins import ASCENDING
from pydantic import ConfigDict, Field, model_validator

from gymfleet_reward.judging.component import JudgeComponent, JudgeOptions
from gymfleet_reward.judging.prompts import Prompt
from gymfleet_reward.judging.verdict import number_between

_LIMIT: Final = 1_000_000
Grade = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-_LIMIT, le=_LIMIT), NUMBER]


class RubricOptions(JudgeOptions):
    """The scale on which the judge answers."""

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


class RubricJudge(JudgeComponent[RubricOptions]):
    """A judge's score for an episode, from 0 for `lowest` to 1 for `highest`."""

    Options = RubricOptions
    version = "1"

    @property
    def prompt(self) -> Prompt:
        """See `JudgeComponent`."""
        lowest, highest = self.options.lowest, self.options.highest
        answer = f'"score" is a number from {lowest:g} to {highest:g}, of which {highest:g} is the best.'
        return Prompt('its "turns" stand in order;', "score", answer, self.rubric)

    async def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        lowest, highest = self.options.lowest, self.options.highest
        (transcript,) = self.transcripts([episode])
        question = self.question({"turns": transcript}, number_between(lowest, highest))
        (score,) = await self.asked.verdict(question)
        return (score - lowest) / (highest - lowest)
