"""A language model's ranking of the episodes of a group."""

from collections.abc import Sequence

from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.judging.asking import UNDECIDED, ByRanking
from gymfleet_kit.judging.transcript import fingerprint

from gymfleet_reward.judging.component import GroupJudgeComponent, JudgeOptions, showing


class RankingJudge(GroupJudgeComponent[JudgeOptions]):
    """A judge's scores, from 0 to 1, for the episodes of a group, which it sees together.

    Scores can only be compared within a group, as a group's baseline does. Episodes with equal transcripts are shown
    once and have the same score; if all are equal, it is 0.5, and no judge is asked. The transcripts determine the
    order in which they are shown. After OpenPipe's RULER.
    """

    Options = JudgeOptions
    version = "1"

    @property
    def asking(self) -> ByRanking:
        """See `JudgeComponent`."""
        return ByRanking(self.options)

    async def score_batch(self, episodes: Sequence[Trajectory]) -> list[float]:
        """See `Component`."""
        self.check_size(episodes)
        transcripts = self.transcripts(episodes)
        different = sorted(set(transcripts), key=fingerprint)
        if len(different) == 1:
            return [UNDECIDED] * len(episodes)
        with showing():
            question = self.asking.question(different)
        scores = await self.verdict(question)
        by_transcript = dict(zip(different, scores, strict=True))
        return [by_transcript[transcript] for transcript in transcripts]
