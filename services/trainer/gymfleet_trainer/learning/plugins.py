"""Finding the algorithm of a stage, with its options, and handling its failures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import structlog
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.plugins import PluginKind, checked_options

from gymfleet_trainer.errors import PluginFailed
from gymfleet_trainer.learning.algorithm import Algorithm, Verdict

log = structlog.get_logger()

ALGORITHMS: Final = PluginKind[Algorithm[Any]]("algorithm", (Algorithm,), "gymfleet_trainer.algorithms")


class NamesAlgorithm(Protocol):
    """A stage's choice of its algorithm."""

    @property
    def algorithm(self) -> str:
        """Return the reference under which it is found."""

    @property
    def options(self) -> dict[str, Any]:
        """Return its options, unchecked."""

    @property
    def roles(self) -> tuple[str, ...] | None:
        """Return the roles whose tokens are trained; None for all."""


def algorithm_of(named: NamesAlgorithm, table: str = "stages.reinforce") -> Algorithm[Any]:
    """Return the algorithm of a stage, whose options are in `table`.

    Raises `PluginError` for an algorithm that does not exist, and for options that it does not take.
    """
    kind = ALGORITHMS.find(named.algorithm)
    algorithm = kind(checked_options(kind.Options, named.options, table=table, owner=named.algorithm))
    algorithm.roles = named.roles
    return algorithm


@contextmanager
def blamed(algorithm: Algorithm[Any]) -> Iterator[None]:
    """Raise `PluginFailed`, with one line, for whatever a plug-in raises in the body.

    An error of an algorithm that comes with gymfleet is our mistake, and is raised as it is.
    """
    try:
        yield
    except Exception as error:
        if type(algorithm).__module__.startswith("gymfleet_trainer."):
            raise
        log.exception("plugin.failed")
        name, reason = type(algorithm).__name__, " ".join(str(error).split())
        raise PluginFailed(
            f"the algorithm {name} failed: {type(error).__name__}: {reason}; its traceback is in the log"
        ) from error


def verdict_on(group: Sequence[ScoredTrajectory], algorithm: Algorithm[Any]) -> Verdict:
    """Return an algorithm's verdict on a group. Raises `PluginFailed` if it raises, or returns something else."""
    with blamed(algorithm):
        verdict: object = algorithm.select(group)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"select must return Verdict.KEEP, Verdict.DROP or Verdict.ANOTHER, not {verdict!r:.100}")
    return verdict
