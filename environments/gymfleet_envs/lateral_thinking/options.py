"""Settings of lateral thinking."""

from typing import Literal

from gymfleet_envs.environment import Options


class LateralThinkingOptions(Options):
    """Who plays the host."""

    host: Literal["words", "model"] = "words"
    """`words` answers by the words of a question; `model` asks a model in the role `host`, as AgentBench does."""
