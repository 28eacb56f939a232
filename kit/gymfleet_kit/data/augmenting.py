"""Changed episodes from an augmenter, whose answers are checked."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import structlog
from gymfleet_contracts.rollout import MAX_MOVES, Move
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import Trajectory

from gymfleet_kit.data.augmenter import Augmenter
from gymfleet_kit.data.making import made, told
from gymfleet_kit.plugins import PluginError, PluginKind

log = structlog.get_logger()

AUGMENTERS: Final = PluginKind[Augmenter[Any]]("augmenter", (Augmenter,), "gymfleet_kit.data.augmenters")
MAX_PROPOSALS: Final = 1000
"""The most proposals for one episode."""


class AugmenterFailed(PluginError):
    """An augmenter raised, or answered nonsense."""


class CheckedAugmenter:
    """An augmenter whose answers can be relied on."""

    def __init__(self, name: str, plugin: Augmenter[Any]) -> None:
        self.name = name
        self.plugin = plugin

    def note(self, episode: Trajectory) -> None:
        """Show it an episode. Raises `AugmenterFailed`."""
        try:
            self.plugin.note(episode)
        except (Exception, SystemExit) as error:
            log.error("augmenter.failed", augmenter=self.name, what="note", exc_info=error)
            raise self._nonsense(episode, f"failed in note: {told(error)}") from error

    def proposals(self, episode: Trajectory) -> list[tuple[Move, ...]]:
        """Return the moves of each changed episode. Raises `AugmenterFailed`."""
        try:
            answer = self.plugin.augment(episode)
            if not isinstance(answer, Iterable):
                raise self._nonsense(episode, f"returns {type(answer).__name__} instead of lists of moves")
            given = list(islice(answer, MAX_PROPOSALS + 1))
        except AugmenterFailed:
            raise
        except (Exception, SystemExit) as error:
            log.error("augmenter.failed", augmenter=self.name, exc_info=error)
            raise self._nonsense(episode, f"failed: {told(error)}") from error
        if len(given) > MAX_PROPOSALS:
            raise self._nonsense(episode, f"makes more than {MAX_PROPOSALS} episodes")
        return [self._moves(episode, moves) for moves in given]

    def _moves(self, episode: Trajectory, moves: object) -> tuple[Move, ...]:
        if not isinstance(moves, list | tuple):
            raise self._nonsense(episode, f"yields {type(moves).__name__} instead of a list of moves")
        if strange := [type(move).__name__ for move in moves if type(move) is not Move]:
            raise self._nonsense(episode, f"yields a list with {strange[0]} among the moves")
        if not 0 < len(moves) <= MAX_MOVES:
            raise self._nonsense(episode, f"yields {len(moves)} moves; an episode has 1 to {MAX_MOVES}")
        return tuple(moves)

    def _nonsense(self, episode: Trajectory, what: str) -> AugmenterFailed:
        return AugmenterFailed(f"the augmenter {self.name}, for {episode.trajectory_id}, {what}")


def augmenter_of(given: str | Mapping[str, Any], *, table: str) -> CheckedAugmenter:
    """Return the augmenter named at `table` in a recipe. Raises `PluginError`."""
    return CheckedAugmenter(*made(AUGMENTERS, given, table=table))


def proposed(
    augmenters: Mapping[str, CheckedAugmenter], episodes: Sequence[Trajectory]
) -> Iterator[tuple[str, Trajectory, tuple[Move, ...]]]:
    """Yield the proposals of each augmenter for each episode, equal moves of a task once. Raises `AugmenterFailed`."""
    for augmenter in augmenters.values():
        for episode in episodes:
            augmenter.note(episode)
    seen: set[tuple[TaskRef, tuple[Move, ...]]] = set()
    for episode in episodes:
        for name, augmenter in augmenters.items():
            for moves in augmenter.proposals(episode):
                if (proposal := (episode.task, moves)) not in seen:
                    seen.add(proposal)
                    yield name, episode, moves
