"""Settings of Aquawar."""

from typing import Annotated

from pydantic import Field

from gymfleet_envs.card_game.kinds import Rules
from gymfleet_envs.environment import Options


class CardGameOptions(Options):
    """The rules, and how patient they are."""

    rules: Rules = "english"
    """Share of split damage that eel and sunfish take: 30 % by AgentBench's English rules, 70 % by its Chinese ones."""
    tries: Annotated[int, Field(ge=1, le=5)] = 1
    """Number of unplayable texts in one turn that lose the game. AgentBench allows five."""
