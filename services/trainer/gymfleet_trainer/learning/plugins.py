"""Which algorithm a stage means, with its options."""

from typing import Any, Final

from gymfleet_kit.plugins import PluginKind, checked_options

from gymfleet_trainer.learning.algorithm import Algorithm
from gymfleet_trainer.learning.options import ReinforceOptions

ALGORITHMS: Final = PluginKind[Algorithm[Any]]("algorithm", (Algorithm,), "gymfleet_trainer.algorithms")


def algorithm_of(rl: ReinforceOptions, table: str = "stages.reinforce") -> Algorithm[Any]:
    """Return the algorithm of a stage, whose options stand in `table`.

    Raises `PluginError` for one that does not exist, and for options that it does not take.
    """
    kind = ALGORITHMS.find(rl.algorithm)
    return kind(checked_options(kind.Options, rl.options, table=table, owner=rl.algorithm))
