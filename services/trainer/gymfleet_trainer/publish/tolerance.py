"""The tolerance of parity: the recipe's number, or one derived from the dtypes and the run's first batch."""

from typing import Final

from gymfleet_contracts.recipe import Recipe

from gymfleet_trainer.publish.probe import Parity
from gymfleet_trainer.run.state import RunState

_MARGIN: Final = 3.0
"""Factor on the first batch's difference: later policies are more peaked, and their log-probabilities differ more."""


def tolerance(recipe: Recipe, state: RunState) -> float:
    """Return the largest mean difference that is allowed now."""
    given = recipe.publish.parity_tolerance
    if given != "auto":
        return given
    return recipe.parity_limits.ceiling if state.parity_tolerance is None else state.parity_tolerance


def calibrated(recipe: Recipe, state: RunState, parity: Parity) -> bool:
    """Set the run's tolerance from the parity of its first batch; return False if it is already set.

    The tolerance is `_MARGIN` times the mean difference, within the limits of the dtypes.
    """
    if recipe.publish.parity_tolerance != "auto" or state.parity_tolerance is not None:
        return False
    limits = recipe.parity_limits
    state.parity_tolerance = min(max(_MARGIN * parity.mean_abs, limits.floor), limits.ceiling)
    return True
