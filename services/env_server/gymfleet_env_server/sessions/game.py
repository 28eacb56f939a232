"""A game that several players share: the environment's account of it, checked, and the result of a move."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gymfleet_contracts.session import Game, Seat
from gymfleet_envs import environment
from gymfleet_envs.environment import Outcome

from gymfleet_env_server.sessions.observation import text


class Move(NamedTuple):
    """The result of a step for the player who took it, and the game that it led to."""

    game: Game
    observation: str
    """What the next player sees or, when the game is over, the one who moved."""
    reward: float
    score: float


def dealt(told: Any, first: str, names: Sequence[str], max_chars: int) -> Game:
    """Return a game that has begun; `first` is what `reset` returned. Raises TypeError and ValueError."""
    if first:
        raise ValueError("the reset of a game returns an empty text: what each player sees stands in game()")
    game = _checked(told, names, max_chars)
    if game.to_move is None:
        raise ValueError("a game that has just begun must say who is to move")
    return game


def moved(before: Game, outcome: Outcome, told: Any, max_chars: int, *, cut: bool) -> Move:
    """Return the result of a step; `cut`: whether the turn limit ends the game. Raises TypeError and ValueError."""
    if outcome.observation or outcome.parts or outcome.reward or outcome.score:
        raise ValueError("the step of a game gives no observation, reward or score: they stand in game(), by seat")
    game = _checked(told, list(before.seats), max_chars)
    if (game.to_move is None) != bool(outcome.terminated):
        raise ValueError(f"a game is over when nobody is to move: terminated={outcome.terminated}, {game.to_move=}")
    mover = before.to_move
    if mover is None:
        raise ValueError("the game was over before the step")
    own = game.seats[mover]
    return Move(
        game.model_copy(update={"moved": mover} | ({"to_move": None} if cut else {})),
        game.seats[game.to_move or mover].observation,
        own.reward - before.seats[mover].reward,
        own.score,
    )


def observed(game: Game) -> str:
    """Return a digest of what the players see and have reached: a replay must reproduce it for each of them."""
    seats = ((name, seat.observation, seat.reward, seat.score) for name, seat in game.seats.items())
    return hashlib.blake2b(repr(tuple(seats)).encode(), digest_size=16).hexdigest()


def _checked(told: Any, names: Sequence[str], max_chars: int) -> Game:
    if not isinstance(told, environment.Game):
        raise TypeError(f"game() must return a Game, got {type(told).__name__}")
    if set(told.seats) != set(names):
        raise ValueError(
            f"game() must say what {', '.join(names)} see, and says it of {', '.join(map(str, told.seats))}"
        )
    if told.to_move is not None and told.to_move not in names:
        raise ValueError(f"{told.to_move!r} cannot be to move: the seats are {', '.join(names)}")
    return Game(to_move=told.to_move, seats={name: _seat(told.seats[name], max_chars) for name in names})


def _seat(seat: Any, max_chars: int) -> Seat:
    reward, score = float(seat.reward), float(seat.score)
    if not (math.isfinite(reward) and 0.0 <= score <= 1.0):
        raise ValueError(f"reward must be finite and score within [0, 1], got {reward} and {score}")
    return Seat(observation=text(seat.observation, max_chars), reward=reward, score=score)
