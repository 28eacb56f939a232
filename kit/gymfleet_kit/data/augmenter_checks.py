"""The promises of every augmenter, tested on a user's or an included one: behind `gymfleet check FILE`."""

from collections.abc import Iterator

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_kit.data import samples
from gymfleet_kit.data.augmenting import CheckedAugmenter, augmenter_of
from gymfleet_kit.plugins import PluginError


def examine(reference: str) -> list[str]:
    """Return one line for each promise that an augmenter breaks with its default options; none if it is sound."""
    try:
        if not type(augmenter_of(reference, table="augmenter").plugin).__doc__:
            return ["it has no docstring: `gymfleet plugins list` shows its first line"]
        return list(_broken(reference))
    except PluginError as error:
        return [str(error)]


def _broken(reference: str) -> Iterator[str]:
    """Yield broken promises. A resumed run augments again, and expects the same episodes under the same ids."""
    episodes = [scored.trajectory for scored in samples.episodes()]
    before = [episode.model_dump_json() for episode in episodes]
    augmenter = _noted(reference, episodes)
    first = [augmenter.proposals(episode) for episode in episodes]
    if [episode.model_dump_json() for episode in episodes] != before:
        yield "it changes the episode that it is given"
    if not any(first):
        yield "it proposes nothing for any of the episodes that it is tried on, some of which hold what came to nothing"
    again = [augmenter.proposals(episode) for episode in reversed(episodes)]
    other = _noted(reference, episodes)
    anew = [other.proposals(episode) for episode in episodes]
    if first != again[::-1] or first != anew:
        yield (
            "it makes something else of the same episode the second time: draw from a seed of its options and the "
            "episode's id, and keep nothing"
        )


def _noted(reference: str, episodes: list[Trajectory]) -> CheckedAugmenter:
    augmenter = augmenter_of(reference, table="augmenter")
    for episode in episodes:
        augmenter.note(episode)
    return augmenter
