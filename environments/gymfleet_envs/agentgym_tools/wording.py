"""The words of AgentGym's tool servers."""

from typing import Final

FORMAT_ERROR: Final = (
    'Format error, please response in the format of  "Action: [your action] with Action Input: [your action input]'
)
UNREADABLE: Final = "Exception(Parameters in action input are not valid, please change your action input.)"
OVER: Final = "The task is over."


def opening(goal: str) -> str:
    """Return the first observation."""
    return f"Now new trial starts.\nYou should perform actions to accomplish the goal: {goal}\nGive me one action."


def shown(result: object) -> str:
    """Return the observation with a call's result, written as Python's `str` writes it."""
    text = str(result).encode("utf-8", "replace").decode("utf-8")  # "\ud800" in JSON is no character
    return f"Observation: {text}\nGive me one action."
