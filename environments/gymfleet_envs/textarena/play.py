"""One game of the package in progress: its own random numbers, its messages, and protection from breaking actions."""

import copy
from collections.abc import Mapping
from typing import Any, Final, Self

from gymfleet_envs.deadline import Overdue, within
from gymfleet_envs.own_random import own_random

TIMEOUT_S: Final = 5.0
_GAME: Final = -1
_NOT_STATE: Final = frozenset({"logs", "observations", "step_info", "game_info", "role_mapping", "turn"})


class GameStuck(Exception):
    """A move took the game too long. The cause may be the machine or the text, so there is no score."""


class Play:
    """A game, and the messages that each player has not seen yet.

    All draws of a game come from `seed` and the number of actions so far, so a copy draws the same as the original.
    """

    def __init__(self, game: Any, seed: str, num_players: int) -> None:
        self.game = game
        self.seed = seed
        self.num_actions = 0
        self.broken_by: int | None = None
        """The player whose text made the game fail, and who has lost."""
        self.messages: list[str] = [""] * num_players

    def copy(self) -> Self:
        """Return an independent copy."""
        other = copy.copy(self)
        other.game = copy.deepcopy(self.game)
        other.messages = list(self.messages)
        return other

    @property
    def over(self) -> bool:
        """Whether the game has ended."""
        return self.broken_by is not None or bool(self.game.state.done)

    @property
    def mover(self) -> int:
        """The player whose action is next."""
        return int(self.game.state.current_player_id)

    @property
    def reason(self) -> str:
        """Why the game ended; empty if the game gives no reason. It may reveal the solution."""
        return str(self.game.state.game_info[0].get("reason") or "")

    @property
    def ended_invalid(self) -> bool:
        """Whether a move that the game did not accept ended it."""
        return self.broken_by is not None or any(told["invalid_move"] for told in _players(self.game.state.game_info))

    def rewards(self) -> Mapping[int, float]:
        """Return each player's reward, on the package's scale of -1 to 1; none before the end.

        (Slitherlink and ThreeCardMonte give a text for the reward of an invalid move.)
        """
        if self.broken_by is not None:
            return {player: -1.0 if player == self.broken_by else 1.0 for player in range(len(self.messages))}
        given = self.game.state.rewards or {}
        return {player: float(reward) for player, reward in given.items() if isinstance(reward, int | float)}

    def act(self, action: str) -> bool:
        """Take an action of the player to move; return whether the game accepted it as a move.

        A text that makes the game fail loses the game, which may be changed half-way. Raises GameStuck.
        """
        if "[" not in action and "]" not in action:  # as the package's ActionFormattingWrapper
            action = f"[{action}]"
        action = action.encode(errors="replace").decode()
        mover = self.mover
        self.num_actions += 1
        try:
            with own_random(f"{self.seed}/{self.num_actions}"):
                within(TIMEOUT_S, lambda: self.game.step(action))
        except Overdue:
            raise GameStuck(f"the game did nothing for {TIMEOUT_S:g} s upon an action") from None
        except Exception:  # noqa: BLE001 - foreign code on a text that a model wrote
            self.broken_by = mover
            return False
        self.messages[mover] = ""
        self.collect()
        return not (self.game.state.error_count or self.ended_invalid)

    def collect(self) -> None:
        """Take over the game's new messages, in the package's words; a player does not see its own action again."""
        state = self.game.state
        for player, told in state.observations.items():
            lines = [self.messages[player]] if self.messages[player] else []
            for sender, text, _ in told:
                if sender == _GAME:
                    lines.append(f"[GAME] {text}")
                elif sender != player and sender in state.role_mapping:  # (Slitherlink names a kind for the sender)
                    # In one line, so that no player can write in the game's name.
                    lines.append(f"[{state.role_mapping[sender]}] {' '.join(text.split())}")
            self.messages[player] = "\n".join(lines)
            told.clear()
        state.logs.clear()

    def content(self) -> str:
        """Return a text that is equal for equal states; the number of turns does not count."""
        state = {name: value for name, value in vars(self.game.state).items() if name not in _NOT_STATE}
        return _text({**vars(self.game), "state": state})


def begin(game: Any, key: str, seed: int, num_players: int) -> Play:
    """Begin a game; `key` is the seed of all its draws in play. Raises the game's own errors."""
    play = Play(game, key, num_players)
    with own_random(key):
        game.reset(num_players=num_players, seed=seed)
    play.collect()
    return play


def _players(game_info: Mapping[int, Any]) -> list[Mapping[str, Any]]:
    return [told for player, told in game_info.items() if player >= 0]


def _text(value: Any) -> str:
    """Return data as a text that depends neither on the order of sets nor on the addresses of objects."""
    match value:
        case dict():
            return "{" + ",".join(f"{_text(key)}:{_text(item)}" for key, item in value.items()) + "}"
        case set() | frozenset():
            return "<" + ",".join(sorted(map(_text, value))) + ">"
        case list() | tuple():
            return "[" + ",".join(map(_text, value)) + "]"
        case str() | int() | float() | None:
            return repr(value)
    return type(value).__name__
