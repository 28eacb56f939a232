"""Settings of Aquawar."""

from typing import Annotated

from pydantic import Field

from gymfleet_envs.card_game.kinds import Rules
from gymfleet_envs.environment import Options


class CardGameOptions(Options):
    """Which rules, and how patient they are."""

    rules: Rules = "english"
    """What eel and sunfish take of a shared damage: 30 % by AgentBench's English rules, 70 % by its Chinese ones."""
    tries: Annotated[int, Field(ge=1, le=5)] = 1
    """Texts for one turn of which none can be played before the game is lost. AgentBench takes five."""
