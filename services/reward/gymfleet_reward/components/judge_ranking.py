"""How a language model ranks the episodes of a group."""

from collections.abc import Sequence

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.judging.component import UNDECIDED, GroupJudgeComponent, JudgeOptions
from gymfleet_reward.judging.prompts import Prompt
from gymfleet_reward.judging.transcript import fingerprint
from gymfleet_reward.judging.verdict import shares_of

_WHAT = (
    'its "episodes" are attempts at one task, each with its turns in order; what all of them begin with stands once, '
    'as "beginning";'
)
_ANSWER = (
    '"scores" is an object that gives each key of "episodes" a number from 0 to 1: a better episode has a higher '
    "number than a worse one, and a small difference makes a small difference."
)


class RankingJudge(GroupJudgeComponent[JudgeOptions]):
    """A judge's scores, from 0 to 1, for the episodes of a group, which it sees together.

    Only comparisons within a group mean anything, as a group's baseline makes them. Episodes that say the same are
    shown once and have the same score: 0.5 where all do, and nobody is asked. The order in which they are shown comes
    from what they say. After OpenPipe's RULER.
    """

    Options = JudgeOptions
    version = "1"

    @property
    def prompt(self) -> Prompt:
        """See `JudgeComponent`."""
        return Prompt(_WHAT, "scores", _ANSWER, self.rubric)

    async def score_batch(self, episodes: Sequence[Trajectory]) -> list[float]:
        """See `Component`."""
        self.check_size(episodes)
        transcripts = self.transcripts(episodes)
        different = sorted(set(transcripts), key=fingerprint)
        if len(different) == 1:
            return [UNDECIDED] * len(episodes)
        shown = {f"e{number}": transcript for number, transcript in enumerate(different, 1)}
        scores = await self.asked.verdict(self.question(shown, shares_of(list(shown)), around="episodes"))
        by_transcript = dict(zip(different, scores, strict=True))
        return [by_transcript[transcript] for transcript in transcripts]
