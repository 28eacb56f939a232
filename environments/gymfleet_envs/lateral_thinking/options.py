"""Settings of lateral thinking."""

from typing import Literal

from gymfleet_envs.environment import Options


class LateralThinkingOptions(Options):
    """Who hosts."""

    host: Literal["words", "model"] = "words"
    """`words` answers by the words of a question; `model` is asked as the role `host`, as AgentBench does."""
