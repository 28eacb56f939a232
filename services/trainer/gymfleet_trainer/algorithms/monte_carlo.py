"""Monte-Carlo credit: a turn is worth the rise of the state's value, estimated by episodes that continue from it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Final, Self

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import ConfigDict, model_validator

from gymfleet_trainer.learning.algorithm import Models, Sample, Verdict
from gymfleet_trainer.learning.episodes import by_episode, whitened
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, Clipped, ClippedOptions
from gymfleet_trainer.learning.steps import require_turns, shared_turns_once
from gymfleet_trainer.model.batching import TrainSequence

_VALUED: Final = "valued_turns"
"""The share of tokens whose turn was played in a state that has its own value; 0 means that nothing forked."""
_NO_KL: Final = 'kl: values of states hold no KL estimate: give placement = "loss"'


class MonteCarloOptions(ClippedOptions):
    """Options of Monte-Carlo credit."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {
                    "kl": {
                        "properties": {"coefficient": {"exclusiveMinimum": 0}, "placement": {"const": "reward"}},
                        "required": ["coefficient", "placement"],
                    }
                },
                "required": ["kl"],
            },
            "$comment": _NO_KL,
        }
    )

    whiten: bool = False
    """Normalise the advantages of a batch to mean 0 and variance 1 over all tokens."""

    @model_validator(mode="after")
    def values_hold_no_kl(self) -> Self:
        """Reject a KL term in the reward: the reward service, which scores the values, has no reference policy."""
        if self.kl.coefficient > 0 and self.kl.placement == "reward":
            raise ValueError(_NO_KL)
        return self


class MonteCarlo(Clipped[MonteCarloOptions]):
    r"""Exact Monte-Carlo credit by forks: from the environment itself, instead of from a critic or a group.

    .. math::
        A_t = r_t + V(s_{t+1}) - V(s_t), \qquad A_{T-1} = R - V(s_{T-1}), \qquad
        V(s) = \frac{1}{K} \sum_{k=1}^{K} R_k

    VinePPO, arXiv:2410.01679, section 4, with turns in place of reasoning steps. A value is the mean of whole episodes'
    rewards :math:`R_k`, including those before the state, so that :math:`r_t` is part of :math:`V(s_{t+1})`. Where the
    strategy values only some states, the turns from one of them to the next share the gain or loss in between. An
    episode whose first state has no value is compared there with the other episodes of its group, as in RLOO. Turns
    that several episodes share count once.
    """

    Options: ClassVar[type[MonteCarloOptions]] = MonteCarloOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(sums_rewards=True, values=True)
    reported: ClassVar[tuple[str, ...]] = (_VALUED,)

    def rows(self, group: Sequence[Sample]) -> list[TrainSequence]:
        """Return the rows of a group; turns shared with an earlier episode carry no loss."""
        return shared_turns_once(super().rows(group))

    def select(self, group: Sequence[ScoredTrajectory]) -> Verdict:
        """Drop an episode that a spent budget left alone in its group, if its first state has no value."""
        alone = len(group) == 1 and (not (turns := group[0].trajectory.turns) or turns[0].value is None)
        return Verdict.DROP if alone else Verdict.KEEP

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put each turn's gain or loss on its tokens.

        Raises ValueError for an episode that is alone in its group and whose first state has no value, and for trained
        tokens that belong to no turn.
        """
        require_turns(rows, "monte_carlo")
        episodes = {rows[own[0]].trajectory_id: own for own in by_episode(rows)}
        returns = {name: sum(rows[index].total_reward for index in own) for name, own in episodes.items()}
        baselines = _of_the_others(returns, {name: rows[own[0]].group_id for name, own in episodes.items()})
        spread = [torch.zeros(len(row.token_ids), dtype=models.dtype) for row in rows]
        for name, own in episodes.items():
            spans = [(index, span) for index in own for span in rows[index].turns]
            if not spans:
                continue
            valued = [place for place, (_, span) in enumerate(spans) if span.value is not None]
            values = [span.value.mean for _, span in spans if span.value is not None]
            if valued[:1] != [0]:
                valued, values = [0, *valued], [_known(baselines[name], name), *values]
            credit = [after - before for before, after in pairwise([*values, returns[name]])]
            for (first, end), worth in zip(pairwise([*valued, len(spans)]), credit, strict=True):
                for index, span in spans[first:end]:
                    spread[index][span.start : span.end] = worth
        advantages = [values * row.mask() for values, row in zip(spread, rows, strict=True)]
        if self.options.whiten:
            advantages = whitened(rows, advantages)
        return [
            row.with_fields(**{ADVANTAGES: values, _VALUED: _valued(row, models.dtype)})
            for row, values in zip(rows, advantages, strict=True)
        ]


def _of_the_others(returns: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, float | None]:
    """Return, for each episode, the mean return of the others in its group; None if there are none."""
    members: dict[str, list[str]] = {}
    for name, group in groups.items():
        members.setdefault(group, []).append(name)
    others = {name: [returns[other] for other in members[groups[name]] if other != name] for name in returns}
    return {name: sum(own) / len(own) if own else None for name, own in others.items()}


def _valued(row: TrainSequence, dtype: torch.dtype) -> torch.Tensor:
    """Return 1 on the trained tokens of turns whose state has a value."""
    known = torch.zeros(len(row.token_ids), dtype=dtype)
    for span in row.turns:
        if span.value is not None:
            known[span.start : span.end] = 1.0
    return known * row.mask()


def _known(baseline: float | None, name: str) -> float:
    if baseline is None:
        raise ValueError(
            f"{name}: its first state has no value, and its group no other episode: play with the strategy forks, "
            "without `skip`, or give group_size of at least 2"
        )
    return baseline
