"""A language model's score for an episode, by a rubric."""

from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.judging.asking import ByRubric, ScaleOptions

from gymfleet_reward.judging.component import JudgeComponent, JudgeOptions, showing


class RubricOptions(ScaleOptions, JudgeOptions):
    """The scale on which the judge answers."""


class RubricJudge(JudgeComponent[RubricOptions]):
    """A judge's score for an episode, from 0 for `lowest` to 1 for `highest`."""

    Options = RubricOptions
    version = "1"

    @property
    def asking(self) -> ByRubric:
        """See `JudgeComponent`."""
        return ByRubric(self.options, self.options)

    async def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        lowest, highest = self.options.lowest, self.options.highest
        (transcript,) = self.transcripts([episode])
        with showing():
            question = self.asking.question(transcript)
        (score,) = await self.verdict(question)
        return (score - lowest) / (highest - lowest)
