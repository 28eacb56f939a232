"""The common parts of the game against a program and the game of two agents."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.card_game import moves
from gymfleet_envs.card_game.match import Match
from gymfleet_envs.card_game.options import CardGameOptions
from gymfleet_envs.card_game.tasks import Duel
from gymfleet_envs.environment import Environment

INSTRUCTIONS: Final = (
    "This is a two-player battle game with four pet fish in each team.\n"
    "Each fish has its 400 initial health, 200 attack power, an active ability and a passive ability. Each "
    "round you choose a living fish to use its active ability, or to make a normal attack, which causes half "
    "of its attack power as damage, on an enemy fish. Passive abilities are triggered by themselves when "
    "their conditions are met, whichever fish is chosen.\n"
    "Where the enemy's fish are hidden, you first guess the type of one of them in each round. If the guess "
    "is right, the fish's type is revealed, and each of the enemy's fish takes 50 damage. The enemy does the "
    "same with yours.\n"
    "The player with more fish alive at the end of the game wins.\n"
    'A move is a JSON object: {"pick_fish": "NAME", "action": "normal" or "active", "target_position": 0 to '
    "3}. The target is an enemy, or a teammate where the ability is used on one; an ability that attacks all "
    'enemies needs none. A guess is {"guess_type": "NAME", "target_position": 0 to 3}.\n'
    "Without a move that can be played, you are defeated."
)


class Aquawar(Environment[Duel]):
    """A match in progress. A step copies the match before changing it."""

    version: ClassVar[str] = "1.0.0"
    instructions: ClassVar[str] = INSTRUCTIONS
    format: ClassVar[str] = "react"
    max_action_chars: ClassVar[int] = 2048
    licence: ClassVar[str] = "Apache-2.0; rules and wording: AgentBench (Apache-2.0)"
    options: ClassVar[CardGameOptions] = CardGameOptions()
    tools: ClassVar[tuple[Tool, ...]] = moves.TOOLS

    _match: Match

    def __init__(self) -> None:
        self._failures = 0

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The arguments as JSON."""
        del tool
        return moves.action_of(arguments)

    def admissible_actions(self) -> Sequence[str]:
        """All moves of the player to move, or all guesses that may still be right after what both have seen."""
        return self._match.possible()

    def state_key(self) -> str:
        """The whole game, including all information given about the last turns."""
        return repr((self._match.state, self._failures))

    def state_digest(self) -> str:
        """A digest of the same state, which includes the draws to come."""
        return hashlib.sha256(self.state_key().encode()).hexdigest()

    def snapshot(self) -> Self:
        """A shallow copy: a step copies the match before changing it."""
        return copy.copy(self)
