"""Where to find an episode's right answer."""

from typing import Annotated, Any

from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field

from gymfleet_reward.component import Component, ComponentError

Place = Annotated[str, Field(pattern=r"^((info|private)(\.[^.]+)+|task\.(task_id|level|seed))$")]
"""`info.KEY`: that key of the last turn's info (`info.KEY.INNER` in a table of it); `private.KEY`: that key of the
environment's private data for the reward service; `task.task_id`, `task.level` or `task.seed`."""


def ground_truth(component: Component[Any], place: str, episode: Trajectory) -> Any:
    """Return the value at a place. Raises `ComponentError` for an episode that has none."""
    root, *keys = place.split(".")
    found: Any
    match root:
        case "info":
            found = episode.turns[-1].info
        case "private":
            found = component.private(episode)
        case _:
            found = episode.task.model_dump()
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            raise ComponentError(f"the episode has no {place}")
        found = found[key]
    return found
