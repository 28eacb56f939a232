"""Settings of both environments of tau-bench."""

from typing import Literal

from gymfleet_envs.environment import Options


class TauOptions(Options):
    """Who plays the customer."""

    customer: Literal["scripted", "model"] = "scripted"
    """`scripted` answers from the task's text by rules; `model` asks a model in the role `customer`."""
