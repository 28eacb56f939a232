"""PPO: the policy gradient with a critic, generalised advantage estimation and whitening."""

from typing import ClassVar

from gymfleet_trainer.learning.actor_critic import ActorCritic, ActorCriticOptions


class PpoOptions(ActorCriticOptions):
    """Options of PPO; none of its own."""


class Ppo(ActorCritic[PpoOptions]):
    """PPO, arXiv:1707.06347, equation 7, with a critic and generalised advantage estimation, arXiv:1506.02438.

    During the first `critic.warmup_steps` batches only the critic learns.
    """

    Options: ClassVar[type[PpoOptions]] = PpoOptions
