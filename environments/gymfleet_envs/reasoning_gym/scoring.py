"""Whether an answer is right, by the package's own scorer, which no answer may crash, hang or talk into a point."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from gymfleet_envs.deadline import Overdue, within
from gymfleet_envs.reasoning_gym.guards import GUARDS

MAX_CHARS: Final = 16_384
TIMEOUT_S: Final = 5.0
_FULL: Final = 1 - 1e-9


def package_score(name: str, dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """Return what the package gives, in [0, 1]; 0 for what its scorer cannot read, or not in `TIMEOUT_S`."""
    if not answer or len(answer) > MAX_CHARS or any("\ud800" <= sign <= "\udfff" for sign in answer):
        return 0.0
    guard = GUARDS.get(name)
    if guard is not None and (told := guard(answer, entry)) is not None:
        return float(told)
    try:
        # Some scorers write into the entry, which the sessions of a group share.
        given = within(TIMEOUT_S, lambda: float(dataset.score_answer(answer, copy.deepcopy(entry))))
    except (Exception, Overdue):  # noqa: BLE001 - foreign code on a text that a model wrote
        return 0.0
    return given if 0.0 <= given <= 1.0 else 0.0


def is_right(given: float) -> bool:
    """Return whether it is the package's full score. What it pays for less is no success."""
    return given >= _FULL
