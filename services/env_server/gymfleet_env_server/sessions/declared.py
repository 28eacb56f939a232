"""What an environment declares about its state: checked and bounded before it is sent."""

import hashlib
from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.session import AdmissibleActions

MAX_ACTIONS: Final = 1024
MAX_ACTIONS_CHARS: Final = 256 * 1024
"""Maximum length of all listed actions together."""
_KEY_BYTES: Final = 16


def hashed(told: str | None, task_id: str) -> str | None:
    """Return the key of a state: 128 bits of BLAKE2b over the task's id and the environment's text.

    It is a hash because the text may be long and need not be for the agent's eyes. Raises TypeError for anything but a
    text.
    """
    if told is None:
        return None
    if not isinstance(told, str):
        raise TypeError(f"a state key must be a str or None, got {type(told).__name__}")
    text = f"{task_id}\0{told}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=_KEY_BYTES).hexdigest()


def checked_actions(told: Sequence[str]) -> list[str]:
    """Return an environment's list of actions without repeats. Raises TypeError for anything but a list of texts."""
    if isinstance(told, str) or not all(isinstance(action, str) for action in told):
        raise TypeError("the admissible actions must be a list of str")
    return list(dict.fromkeys(told))


def bounded(told: Sequence[str], max_action_chars: int) -> AdmissibleActions:
    """Return as many actions as one answer holds; those that no step would take are left out."""
    actions: list[str] = []
    room = MAX_ACTIONS_CHARS
    for action in told:
        if len(action) > max_action_chars:
            continue
        room -= len(action)
        if room < 0 or len(actions) == MAX_ACTIONS:
            break
        actions.append(action.encode(errors="replace").decode())
    return AdmissibleActions(actions=actions, complete=len(actions) == len(told))
