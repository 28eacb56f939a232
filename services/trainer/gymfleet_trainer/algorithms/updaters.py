"""The updaters, and the choice between them that a recipe makes."""

from typing import Unpack

from gymfleet_contracts.recipe import RlSection

from gymfleet_trainer.algorithms.policy_update import PolicyUpdater, UpdaterOptions
from gymfleet_trainer.algorithms.ppo_update import PpoUpdater
from gymfleet_trainer.algorithms.sft_update import SftUpdater
from gymfleet_trainer.algorithms.update_metrics import SftMetrics, UpdateMetrics
from gymfleet_trainer.model.policy_model import PolicyModel

__all__ = ["PolicyUpdater", "PpoUpdater", "SftMetrics", "SftUpdater", "UpdateMetrics", "build_updater"]


def build_updater(model: PolicyModel, rl: RlSection, **options: Unpack[UpdaterOptions]) -> PolicyUpdater:
    """Create the updater of the recipe's algorithm; arguments as for `PolicyUpdater`."""
    updater = PpoUpdater if rl.algorithm == "ppo" else PolicyUpdater
    return updater(model, rl, **options)
