"""A language model's preferences between pairs of a group's episodes."""

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Final

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.judging.asking import UNDECIDED, ByPairs
from gymfleet_kit.judging.transcript import Transcript, fingerprint
from pydantic import Field

from gymfleet_reward.component import ComponentError
from gymfleet_reward.judging.component import GroupJudgeComponent, JudgeOptions, showing, together
from gymfleet_reward.judging.pairs import pairs_of

_MAX_QUESTIONS: Final = 4096


class PairsOptions(JudgeOptions):
    """The number of comparisons."""

    opponents: Annotated[int, Field(ge=1, le=1024), NUMBER] | None = None
    """Number of episodes of its group with which each is compared, by default all others; one more if both this number
    and the size of the group are odd. A pair costs two questions."""


class PairwiseJudge(GroupJudgeComponent[PairsOptions]):
    """The share of comparisons with other episodes of its group that an episode wins in the eyes of a judge.

    Each pair is shown in both orders, so that a judge that prefers a position favours nobody: a win in only one order
    is half a win, as is a tie. Episodes with equal transcripts are not compared, and tie.
    """

    Options = PairsOptions
    version = "1"

    @property
    def asking(self) -> ByPairs:
        """See `JudgeComponent`."""
        return ByPairs(self.options)

    async def score_batch(self, episodes: Sequence[Trajectory]) -> list[float]:
        """See `Component`."""
        self.check_size(episodes)
        transcripts = self.transcripts(episodes)
        order = sorted(range(len(episodes)), key=lambda place: fingerprint(transcripts[place]))
        pairs = [(order[one], order[other]) for one, other in pairs_of(len(episodes), self.options.opponents)]
        if (num_questions := 2 * len(pairs)) > _MAX_QUESTIONS:
            raise ComponentError(
                f"a group of {len(episodes)} makes {num_questions} questions, {_MAX_QUESTIONS} are the most: set "
                "opponents"
            )
        shares = await together([self._compared(transcripts[one], transcripts[other]) for one, other in pairs])
        return _win_rates(len(episodes), dict(zip(pairs, shares, strict=True)))

    async def _compared(self, one: Transcript, other: Transcript) -> float:
        """Return the share of a win that `one` gets."""
        if one == other:
            return UNDECIDED
        won, lost = await together([self._better(one, other), self._better(other, one)])
        return (won + 1.0 - lost) / 2

    async def _better(self, first: Transcript, second: Transcript) -> float:
        # Written here, and not for all pairs beforehand, so that other tasks of this event loop run in between.
        with showing():
            question = self.asking.question(first, second)
        (worth,) = await self.verdict(question)
        return worth


def _win_rates(count: int, shares: dict[tuple[int, int], float]) -> list[float]:
    """Return the mean over each episode's pairs; `shares` has the share that the first of each pair won."""
    won: list[list[float]] = [[] for _ in range(count)]
    for (one, other), share in shares.items():
        won[one].append(share)
        won[other].append(1.0 - share)
    return [fmean(shares_of_one) for shares_of_one in won]
