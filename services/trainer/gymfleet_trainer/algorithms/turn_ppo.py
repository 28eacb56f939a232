"""PPO with bi-level advantages: from turn to turn first, and then from token to token within a turn."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gymfleet_trainer.learning.actor_critic import RETURNS, VALUES, ActorCritic, ActorCriticOptions, values_of
from gymfleet_trainer.learning.advantages import gae
from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.episodes import by_episode, whitened
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES
from gymfleet_trainer.learning.steps import Step, require_turns, steps_of
from gymfleet_trainer.model.batching import TrainSequence


class TurnPpoOptions(ActorCriticOptions):
    """PPO's options; the critic's discounts are those within a turn."""

    turn_gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Discount per turn."""
    turn_lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Lambda of generalised advantage estimation from turn to turn."""


class TurnPpo(ActorCritic[TurnPpoOptions]):
    r"""PPO with the bi-level generalised advantage estimation of RAGEN, arXiv:2504.20073.

    With the value :math:`V_k` at the last token of turn k, and the sum :math:`r_k` of the rewards in that turn:

    .. math::
        \hat A_k = \delta_k + \gamma_{turn} \lambda_{turn} \hat A_{k+1}, \qquad
        \delta_k = r_k + \gamma_{turn} V_{k+1} - V_k

    The last token of the turn has :math:`A = \hat A_k`; those before it have
    :math:`A_t = \gamma V_{t+1} - V_t + \gamma\lambda A_{t+1}`, so that only the estimate between turns crosses the end
    of a turn. Then the batch is whitened, as with `ppo`.
    """

    Options: ClassVar[type[TurnPpoOptions]] = TurnPpoOptions

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put advantages on rows, and keep values and returns for the critic.

        Raises ValueError as `ActorCritic` does, and for trained tokens that belong to no turn.
        """
        if not rows:
            return rows
        require_turns(rows, "turn_ppo")
        values, final_values = values_of(rows, models, self.options.critic.cuts)
        rewards = self.penalised_rewards(rows, models)
        episodes = by_episode(rows)
        steps = [steps_of(rows, own, rewards) for own in episodes]
        written = [[_written(rows, step) for step in own] for own in steps]
        final = final_values[[own[-1] for own in episodes]]
        of_turns = self._between_turns(steps, written, values, final)
        advantages = [torch.zeros_like(of_row) for of_row in values]
        for own, places, estimates in zip(steps, written, of_turns, strict=True):
            for step, where, estimate in zip(own, places, estimates, strict=False):
                advantages[step.row][where] = self._within_turn(values[step.row][where], estimate)
        return [
            row.with_fields(**{ADVANTAGES: white, VALUES: value, RETURNS: (plain + value) * row.mask()})
            for row, white, plain, value in zip(rows, whitened(rows, advantages), advantages, values, strict=True)
        ]

    def _between_turns(
        self,
        steps: Sequence[Sequence[Step]],
        written: Sequence[Sequence[Tensor]],
        values: Sequence[Tensor],
        final_values: Tensor,
    ) -> Tensor:
        """Return the (E, K) advantages of K turns of E episodes, from the values at their last tokens."""
        rewards = [torch.tensor([step.reward for step in own], dtype=final_values.dtype) for own in steps]
        last = [
            torch.tensor(
                [float(values[step.row][where[-1]]) for step, where in zip(own, places, strict=True)],
                dtype=final_values.dtype,
            )
            for own, places in zip(steps, written, strict=True)
        ]
        mask = pad_sequence([torch.ones(len(own), dtype=torch.bool) for own in steps], batch_first=True)
        advantages, _ = gae(
            pad_sequence(rewards, batch_first=True), pad_sequence(last, batch_first=True), final_values, mask,
            self.options.turn_gamma, self.options.turn_lam,
        )  # fmt: skip
        return advantages

    def _within_turn(self, values: Tensor, estimate: Tensor) -> Tensor:
        """Return the (N,) advantages of a turn's N tokens; the last token has the turn's advantage."""
        rewards = torch.zeros_like(values)
        rewards[-1] = estimate + values[-1]
        mask = torch.ones(1, len(values), dtype=torch.bool)
        critic, nothing = self.options.critic, values.new_zeros(1)
        advantages, _ = gae(rewards[None], values[None], nothing, mask, critic.gamma, critic.lam)
        return advantages[0]


def _written(rows: Sequence[TrainSequence], step: Step) -> Tensor:
    """Return the (N,) places of a step's trained tokens in its row."""
    places = torch.arange(step.span.start, step.span.end)
    return places[rows[step.row].mask()[places]]
