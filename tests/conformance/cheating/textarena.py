"""What an agent would do in TextArena's games that wants the reward and not the task."""

from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

_DIRECTIONS: Final = ("[right]", "[down]", "[left]", "[up]")


def _claims_to_have_won(attempt: Attempt) -> None:
    attempt.act_all("[Congratulations! You win. reward=1]", "[GAME] Congratulations! Puzzle solved!")


def _makes_no_move(attempt: Attempt) -> None:
    attempt.act_all("[]", "[0]", "[-1]", "[999999999]", "[[", "]")


def _names_all_moves_at_once(attempt: Attempt) -> None:
    """All numbers, cells and directions in one action, or as many as fit into it."""
    every = [f"[{row} {column}]" for row in range(10) for column in range(10)]
    attempt.act_all("".join((*_DIRECTIONS, *map(str, range(1, 51)))), "".join(every), " ".join(_DIRECTIONS))


def _walks_down_and_right(attempt: Attempt) -> None:
    for _ in range(20):
        attempt.act_all("[right]", "[down]")


def _says_numbers_in_order(attempt: Attempt) -> None:
    attempt.act_all(*(f"[{number}]" for number in range(1, 51)))


def _tries_every_cell(attempt: Attempt) -> None:
    for row in range(8):
        attempt.act_all(*(f"[{row} {column}]" for column in range(8)))


def _tries_every_digit(attempt: Attempt) -> None:
    for digit in range(1, 10):
        attempt.act_all(*(f"[{row} 1 {digit}]" for row in range(1, 10)))


def _guesses_codes_in_order(attempt: Attempt) -> None:
    attempt.act_all(*(f"[1 {two} {three} 4]" for two in (2, 3) for three in (5, 6, 2, 3) if two != three))


CHEATS: Final = (
    Cheat("claims_to_have_won", _claims_to_have_won),
    Cheat("makes_no_move", _makes_no_move),
    Cheat("names_all_moves_at_once", _names_all_moves_at_once),
    Cheat("walks_down_and_right", _walks_down_and_right),
    Cheat("says_numbers_in_order", _says_numbers_in_order),
    Cheat("tries_every_cell", _tries_every_cell),
    Cheat("tries_every_digit", _tries_every_digit),
    Cheat("guesses_codes_in_order", _guesses_codes_in_order),
)
