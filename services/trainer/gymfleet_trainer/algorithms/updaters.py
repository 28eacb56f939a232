"""The updaters, and the choice between them that a recipe makes."""

from gymfleet_contracts.recipe import RlSection

from gymfleet_trainer.algorithms.policy_update import PolicyUpdater
from gymfleet_trainer.algorithms.ppo_update import PpoUpdater
from gymfleet_trainer.algorithms.sft_update import SftUpdater
from gymfleet_trainer.algorithms.update_metrics import SftMetrics, UpdateMetrics
from gymfleet_trainer.model.policy_model import PolicyModel

__all__ = ["PolicyUpdater", "PpoUpdater", "SftMetrics", "SftUpdater", "UpdateMetrics", "build_updater"]


def build_updater(
    model: PolicyModel,
    rl: RlSection,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    reference: PolicyModel | None = None,
    sampler_is_exact: bool = False,
) -> PolicyUpdater:
    """Create the updater of the recipe's algorithm; arguments as for `PolicyUpdater`."""
    updater = PpoUpdater if rl.algorithm == "ppo" else PolicyUpdater
    return updater(
        model, rl, seed=seed, temperature=temperature, reference=reference, sampler_is_exact=sampler_is_exact
    )
