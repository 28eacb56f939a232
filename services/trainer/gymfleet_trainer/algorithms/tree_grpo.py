"""Tree-GRPO: the leaves of a task's trees are compared within their tree, and with all others of the task."""

from collections.abc import Hashable, Sequence
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, Self

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import ConfigDict, Field, model_validator

from gymfleet_trainer.learning.advantages import advantages_where_compared, grpo_advantages
from gymfleet_trainer.learning.algorithm import Models, Sample, Verdict
from gymfleet_trainer.learning.episodes import by_episode
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, Clipped, ClippedOptions
from gymfleet_trainer.learning.steps import require_turns, shared_turns_once
from gymfleet_trainer.model.batching import TrainSequence, TurnSpan

_BRANCHED: Final = "branched_turns"
"""The share of tokens whose turn is compared within its tree; 0 means that nothing branched."""
_NOTHING: Final = "intra_weight and inter_weight are both 0, which leaves no advantage: give one of them above 0"


class TreeGrpoOptions(ClippedOptions):
    """Options of Tree-GRPO."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {"intra_weight": {"const": 0}, "inter_weight": {"const": 0}},
                "required": ["intra_weight", "inter_weight"],
            },
            "$comment": _NOTHING,
        }
    )

    intra: Literal["tree", "siblings"] = "tree"
    """What is compared within a tree: with `tree`, its leaves; with `siblings`, the turns that continue from the same
    node, by the mean return of the leaves below each."""
    intra_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the comparison within a tree."""
    inter_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the comparison with all leaves of the task."""
    normalise_by_std: bool = True
    """Divide the compared returns by their standard deviation."""

    @model_validator(mode="after")
    def something_is_compared(self) -> Self:
        """Require one of the weights to be above 0."""
        if self.intra_weight == self.inter_weight == 0:
            raise ValueError(_NOTHING)
        return self


class _Played(NamedTuple):
    """A turn of an episode, shared or not."""

    episode: int
    row: int
    span: TurnSpan
    edge: Hashable
    """Equal for a turn that several episodes share."""
    origin: Hashable
    """Equal for turns that continue from the same node."""


class TreeGrpo(Clipped[TreeGrpoOptions]):
    r"""Tree-GRPO, arXiv:2509.21240: group-relative advantages within a tree and over all trees of a task.

    .. math::
        A_i = w_a \frac{R_i - \mathrm{mean}_{T(i)}(R)}{F} + w_e \frac{R_i - \mathrm{mean}_g(R)}{F}, \qquad
        A_t = \frac{1}{|L(t)|} \sum_{i \in L(t)} A_i

    R_i is the return of leaf i, T(i) the leaves of its tree, g those of all trees of the task, and F the standard
    deviation of the same leaves or 1. A leaf alone in its tree has no first term. The sum of both terms, with weights
    of 1, is the paper's, quoted from memory. A turn t that several leaves L(t) share has a loss once, with the mean of
    their advantages, where the paper trains on every leaf's whole path: if all leaves of a tree share the turn, the
    first term is then 0. With `intra = "siblings"` the first term compares turns: those that continue from the same
    node, by the mean return of the leaves below each.

    Episodes that begin at the same root form a tree, which a strategy such as `tree_sampling` branches. Episodes that
    were played separately are trees of one leaf, and the algorithm is then GRPO.
    """

    Options: ClassVar[type[TreeGrpoOptions]] = TreeGrpoOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2, sums_rewards=True)
    reported: ClassVar[tuple[str, ...]] = (_BRANCHED,)

    def rows(self, group: Sequence[Sample]) -> list[TrainSequence]:
        """Return the rows of a group; turns shared with an earlier episode carry no loss."""
        return shared_turns_once(super().rows(group))

    def select(self, group: Sequence[ScoredTrajectory]) -> Verdict:
        """Drop an episode that a spent budget left alone in its group."""
        return Verdict.KEEP if len(group) > 1 else Verdict.DROP

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put on each turn's tokens the mean worth of the leaves below it.

        Raises ValueError for a group of one episode, and for trained tokens that belong to no turn.
        """
        require_turns(rows, "tree_grpo")
        episodes = by_episode(rows)
        played = [
            _played(rows[row], episode, row, span)
            for episode, own in enumerate(episodes)
            for row in own
            for span in rows[row].turns
        ]
        returns = torch.tensor(self._returns(rows, episodes, played, models), dtype=models.dtype)
        groups = [rows[own[0]].group_id for own in episodes]
        inter = grpo_advantages(returns, groups, self.options.normalise_by_std)
        of_turns = {edge: self.options.inter_weight * mean for edge, mean in _means(played, inter.tolist()).items()}
        intra = self._within(rows, episodes, played, returns)
        spread, branched = ([torch.zeros(len(row.token_ids), dtype=models.dtype) for row in rows] for _ in range(2))
        for turn in played:
            within, compared = intra[turn.edge]
            worth = of_turns[turn.edge] + self.options.intra_weight * within
            spread[turn.row][turn.span.start : turn.span.end] = worth
            branched[turn.row][turn.span.start : turn.span.end] = float(compared)
        return [
            row.with_fields(**{ADVANTAGES: values * row.mask(), _BRANCHED: told * row.mask()})
            for row, values, told in zip(rows, spread, branched, strict=True)
        ]

    def _returns(
        self,
        rows: Sequence[TrainSequence],
        episodes: Sequence[Sequence[int]],
        played: Sequence[_Played],
        models: Models,
    ) -> list[float]:
        """Return each episode's return, less the KL of all its turns, including turns that another row trains."""
        returns = [sum(rows[row].total_reward for row in own) for own in episodes]
        penalised = self.penalised_rewards(rows, models)
        penalties: dict[Hashable, float] = {}
        for turn in played:
            row, tokens = rows[turn.row], slice(turn.span.start, turn.span.end)
            if any(row.loss_mask[tokens]):
                penalties[turn.edge] = sum(penalised[turn.row][tokens]) - sum(row.token_rewards[tokens])
        for turn in played:
            returns[turn.episode] += penalties.get(turn.edge, 0.0)
        return returns

    def _within(
        self,
        rows: Sequence[TrainSequence],
        episodes: Sequence[Sequence[int]],
        played: Sequence[_Played],
        returns: torch.Tensor,
    ) -> dict[Hashable, tuple[float, bool]]:
        """Return, for each turn, its advantage within its tree, and whether it was compared there."""
        normalise = self.options.normalise_by_std
        if self.options.intra == "siblings":
            means = _means(played, returns.tolist())
            origins = {turn.edge: turn.origin for turn in played}
            found, compared = advantages_where_compared(
                returns.new_tensor([*means.values()]), [origins[edge] for edge in means], normalise
            )
            return dict(zip(means, zip(found.tolist(), compared, strict=True), strict=True))
        trees: list[Hashable] = [(rows[own[0]].group_id, index) for index, own in enumerate(episodes)]
        for turn in played:
            if turn.span.place == 0 and turn.span.parent is not None:
                trees[turn.episode] = turn.origin
        found, compared = advantages_where_compared(returns, trees, normalise)
        known = {turn.edge: compared[turn.episode] for turn in played}
        return {edge: (mean, known[edge]) for edge, mean in _means(played, found.tolist()).items()}


def _played(row: TrainSequence, episode: int, index: int, span: TurnSpan) -> _Played:
    own: Hashable = (row.trajectory_id, span.place)
    edge = own if span.node is None else (row.group_id, "node", span.node)
    origin = own if span.parent is None else (row.group_id, "from", span.parent)
    return _Played(episode, index, span, edge, origin)


def _means(played: Sequence[_Played], values: Sequence[float]) -> dict[Hashable, float]:
    """Return, for each turn, the mean value of the episodes that contain it."""
    members: dict[Hashable, list[float]] = {}
    for turn in played:
        members.setdefault(turn.edge, []).append(values[turn.episode])
    return {edge: sum(own) / len(own) for edge, own in members.items()}
