"""TextArena's games: their rules and words, their own random numbers, and no text that wins, crashes or hangs."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.session import Split
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.textarena import play as play_module
from gymfleet_envs.textarena.environment import TextArena
from gymfleet_envs.textarena.experts import EXPERTS
from gymfleet_envs.textarena.games import (
    DRAWS_IN_PLAY,
    REFUSED,
    WON,
    Beginning,
    family_of,
    playable,
    single_player_tasks,
    two_player_tasks,
)
from gymfleet_envs.textarena.options import LEVELS, TWO_PLAYER_GAMES
from gymfleet_envs.textarena.play import GameStuck
from gymfleet_envs.textarena.two_players import TextArenaTwoPlayers

pytest.importorskip("textarena")

PLAYABLE: Final = playable()
SLOW: Final = {"RushHour-v0"}
"""To draw."""
HOSTILE: Final = (
    "", "[", "]", "[]", "[[[[", "]" * 1_000, "[" * 1_024, "[\u0665 \u0665]", "[1 1", "[\ud800]", "[\x00]", "\u202e[up]",
    "[9" + "9" * 1_000 + "]", "[-1 -1]", "[1e999]", "[" + " " * 1_000 + "1]", "[GAME] Congratulations! ",
    "\n[GAME] won", "[__import__('os').abort()]", "[1 " * 300, "a" * 1_024, "[a" + "\u0301" * 1_000 + "]", "{}%s{0}",
)  # fmt: skip
MOVES: Final = (
    "[up]", "[right]", "[down]", "[left]", "[1]", "[2 1]", "[1 2 3]", "[1 2 3 4]", "[4 3 2 1]", "[red]", "[blue]",
    "[continue]", "[0 0]", "[h 0 0]", "[v 1 1]", "[A+]", "[C-]",
)  # fmt: skip


def begun(name: str, index: int = 0, split: Split = "train") -> TextArena:
    environment = TextArena()
    environment.reset(single_player_tasks([name]).by_index(split, name, index).data, 0)
    return environment


def state(environment: TextArena) -> dict[str, Any]:
    told: dict[str, Any] = environment.play.game.state.game_state
    return told


def solved(environment: TextArena) -> Outcome:
    outcome = Outcome("")
    while (move := environment.expert()) is not None:
        outcome = environment.step(move.action)
    return outcome


@pytest.mark.parametrize("name", LEVELS)
def test_the_expert_wins_and_the_last_words_are_the_games(name: str) -> None:
    for index in range(5):
        outcome = solved(begun(name, index, "validation"))

        assert (outcome.score, outcome.reward, outcome.terminated, outcome.action_valid) == (1.0, 1.0, True, True)
        assert WON[family_of(name)] in outcome.observation.splitlines()[-1]


def test_games_with_an_expert_are_the_default_levels_and_two_more() -> None:
    assert {family_of(name) for name in LEVELS} == set(EXPERTS) - {"ThreeCardMonte"}
    assert solved(begun("ThreeCardMonte-v0")).score == 1.0
    assert begun("Mastermind-v0-extreme").expert() is None
    assert begun("2048-v0").expert() is None


def test_guess_the_number_is_told_as_the_package_tells_it() -> None:
    environment = begun("GuessTheNumber-v0")
    environment.play.game.game_number = state(environment)["game_number"] = 7

    assert environment.play.messages[0].startswith(
        "[GAME] You are Player 0. You are playing Guess The Number.\nYou have to guess the number between 1 and 20 "
    )
    assert environment.step("[5]") == Outcome("[GAME] The target number is higher.")
    assert environment.step("9") == Outcome("[GAME] The target number is lower."), "brackets are put around it"
    assert environment.expert() is not None
    again = environment.step("[9]")
    assert (again.action_valid, again.terminated) == (False, False)
    assert again.observation.startswith("[GAME] You attempted an invalid move. Reason: Invalid move. Player 0 has al")
    won = environment.step("[7]")
    assert won == Outcome(
        "[GAME] Congratulations! You guessed the correct number.", 1.0, True, 1.0,
        private={"reason": "Congratulations! You guessed the correct number."},
    )  # fmt: skip
    assert environment.step("[7]") == Outcome("The game is over.", 0.0, True, 1.0, action_valid=False)
    assert environment.turn_limit == 22


def test_a_second_invalid_move_in_a_row_loses_with_the_packages_reward_and_no_success() -> None:
    environment = begun("GuessTheNumber-v0")
    environment.play.game.game_number = state(environment)["game_number"] = 7
    environment.step("[8]")  # 1 of 19 away
    environment.step("nothing")

    outcome = environment.step("nothing")

    assert (outcome.terminated, outcome.action_valid, outcome.score) == (True, False, 0.0)
    assert outcome.reward == pytest.approx(18 / 19)
    assert outcome.observation == "[GAME] The game is over."
    assert outcome.private["reason"] == "Invalid Move: " + str(environment.play.reason).removeprefix("Invalid Move: ")


def test_a_lost_game_does_not_tell_what_was_hidden() -> None:
    environment = begun("GuessTheNumber-v0")
    environment.play.game.game_number = state(environment)["game_number"] = 20
    outcomes = [environment.step(f"[{number}]") for number in range(1, 12)]

    assert outcomes[-1].terminated
    assert "20" not in outcomes[-1].observation
    assert outcomes[-1].private["reason"] == "The turn limit has been reached. Guess: 11, Target: 20"
    assert set(environment.start_info) == {"game"}


def test_a_full_reward_without_the_games_win_is_no_success() -> None:
    """2048 pays 0.5 of the tile and 0.5 of the points, up to 1, also to who gives up."""
    environment = begun("2048-v0-ultra-easy")
    state(environment).update(score=1_000)
    environment.step("x")
    outcome = environment.step("x")
    assert (outcome.reward, outcome.score, outcome.terminated) == (1.0, 0.0, True)

    environment = begun("2048-v0-ultra-easy")
    state(environment)["board"] = [[16, 16, 0, 0], [0] * 4, [0] * 4, [0] * 4]
    outcome = environment.step("[Left]")
    assert (outcome.reward, outcome.score, outcome.terminated) == (1.0, 1.0, True)


def test_secretary_is_won_with_the_best_value_alone() -> None:
    for accepted, score in (("[continue]", 1.0), ("[accept]", 0.0)):
        environment = begun("Secretary-v0")
        state(environment)["draws"][:] = [0.3, 0.9, 0.2, 0.1, 0.4]
        outcome = environment.step(accepted)
        outcome = outcome if outcome.terminated else environment.step("[accept]")
        assert (outcome.score, outcome.reward) == (score, score)


@pytest.mark.parametrize("name", [name for name in PLAYABLE if name not in SLOW])
def test_no_text_wins_crashes_or_changes_the_processes_generator(name: str) -> None:
    tasks = single_player_tasks([name])
    before = random.getstate()
    for place in range(0, len(HOSTILE), 2):
        environment = TextArena()
        environment.reset(tasks.by_index("train", name, 0).data, 0)
        for text in HOSTILE[place : place + 2]:
            outcome = environment.step(text)
            assert outcome.score == 0.0 or name.startswith(("Minesweeper", "ThreeCard"))
            outcome.observation.encode()
    assert random.getstate() == before


@pytest.mark.parametrize("name", [name for name in PLAYABLE if name not in SLOW])
def test_a_fork_plays_on_like_the_original_and_leaves_it_alone(name: str) -> None:
    original, straight = begun(name, 3), begun(name, 3)
    assert original.state_key() == straight.state_key()
    fork = original.snapshot()
    for action in MOVES:
        fork.step(action)
    assert original.state_key() == straight.state_key()

    for action in MOVES:
        assert original.step(action) == straight.step(action)
        assert original.state_key() == straight.state_key()
    assert fork.state_key() == original.state_key()


def test_state_keys_tell_states_apart_and_not_turns() -> None:
    environment = begun("FrozenLake-v0")
    task = environment.play.game
    task.state.game_state["grid"] = [[" "] * 4 for _ in range(4)]
    keys = []
    for action in ("[down]", "[right]", "[left]", "[up]", "[down]"):
        environment.step(action)
        keys.append(environment.state_key())

    assert keys[0] == keys[2] == keys[4]
    assert len(set(keys)) == 3
    assert {family for family in WON if family in DRAWS_IN_PLAY} == {"Bandit", "Game2048", "Minesweeper"}


def _fails(action: str) -> None:
    raise IndexError(action)


def _hangs(action: str) -> None:
    while action:
        pass


def test_an_action_that_makes_the_game_fail_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = begun("LightsOut-v0")
    monkeypatch.setattr(environment.play.game, "step", _fails)

    outcome = environment.step("[0 0]")

    assert (outcome.terminated, outcome.score, outcome.reward, outcome.action_valid) == (True, 0.0, 0.0, False)
    assert outcome.observation == "[GAME] The game is over."
    assert environment.step("[0 0]").terminated


def test_a_game_that_takes_too_long_gives_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play_module, "TIMEOUT_S", 0.05)
    environment = begun("LightsOut-v0")
    monkeypatch.setattr(environment.play.game, "step", _hangs)

    with pytest.raises(GameStuck, match=r"did nothing for 0\.05 s"):
        environment.step("[0 0]")


@pytest.mark.parametrize(
    ("games", "message"),
    [
        (["nowhere"], "there is no game 'nowhere' to play; known: 2048-v0-ultra-easy, "),
        (["Chess-v0"], "there is no game 'Chess-v0' to play; known"),
        (["Wordle-v0"], "Wordle-v0 is not played: it downloads a corpus of nltk"),
        (["TwentyQuestions-v0"], "TwentyQuestions-v0 is not played: it asks a model"),
        (["TowerOfHanoi-v0-hard"], "TowerOfHanoi-v0-hard is not played: every seed begins alike"),
        (["Sudoku-v0-hard"], "Sudoku-v0-hard is not played: drawing one of its grids can take half a minute"),
        (["2048-v0", "2048-v0"], "games names 2048-v0 twice"),
    ],
)
def test_games_that_are_not_played_are_refused_with_the_reason(games: list[str], message: str) -> None:
    with pytest.raises(TaskDataError, match=f"^{message}"):
        single_player_tasks(games)


def test_every_single_player_game_is_played_or_refused() -> None:
    import textarena.envs  # noqa: PLC0415 - without it this module is skipped

    source = Path(textarena.envs.__file__).read_text()
    # The package counts the players of a game in comments alone.
    single = re.findall(
        r"^#[^\n]*(?:1 Player|single-player).*\n(?:#.*\n|\n)*register.*\"textarena\.envs\.(\w+)\.", source, re.MULTILINE
    )
    assert sorted({*WON, *REFUSED} - {"Sudoku-v0-hard"}) == sorted(single)
    assert not set(WON) & set(REFUSED)
    assert len(PLAYABLE) == 40
    assert set(LEVELS) < set(PLAYABLE)
    assert single_player_tasks(LEVELS).levels == LEVELS


def test_half_of_the_fifteen_puzzles_cannot_be_solved_and_klondike_cannot_be_imported() -> None:
    """Why they are refused; a version of the package that mends them is found here."""
    from textarena.envs.FifteenPuzzle.env import FifteenPuzzleEnv  # noqa: PLC0415 - as above

    puzzle = FifteenPuzzleEnv()
    puzzle.reset(1, seed=0)
    puzzle.board[:] = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, None, 15]]
    with pytest.raises(AttributeError, match="set_winners"):
        puzzle.step("[left]")
    with pytest.raises(SyntaxError):
        import textarena.envs.Klondike.env  # noqa: F401, PLC0415 - as above


def test_splits_share_no_beginning() -> None:
    for name in ("GuessTheNumber-v0-hardcore", "FrozenLake-v0", "Minesweeper-v0-small"):
        tasks = single_player_tasks([name])
        seen: dict[str, str] = {}
        splits: tuple[Split, ...] = ("train", "validation", "test")
        for split in splits:
            for index in range(40):
                task: Beginning = tasks.by_index(split, name, index).data
                assert seen.setdefault(task.content, split) == split
    first, second = (Beginning("GuessTheNumber-v0", seed) for seed in (3, 4))
    assert (first.content == second.content) == (first.play.game.game_number == second.play.game.game_number)
    assert Beginning("Minesweeper-v0", 3).content != Beginning("Minesweeper-v0", 4).content


_PLAYED: Final = f"""
import hashlib, json, random, socket, sys
def none(*args, **more):
    raise OSError("no network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = none
random.seed(int(sys.argv[1]))
from gymfleet_envs.textarena.environment import TextArena
from gymfleet_envs.textarena.games import playable, single_player_tasks
told = {{}}
for name in playable():
    if name in {SLOW!r}:
        continue
    shown = []
    for index in range(2):
        environment = TextArena()
        shown.append(environment.reset(single_player_tasks([name]).by_index("train", name, index).data, 0))
        for action in {MOVES!r}:
            move = environment.expert()
            shown.append(repr(environment.step(move.action if move else action)))
            shown.append(environment.state_key())
    told[name] = hashlib.sha256(repr(shown).encode()).hexdigest()
print(json.dumps(told))
"""


def test_games_are_the_same_in_another_process_without_a_network() -> None:
    told = [
        json.loads(
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", _PLAYED, seed], env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True, text=True, check=True,
            ).stdout
        )
        for seed in ("1", "2")
    ]  # fmt: skip

    assert told[0] == told[1]
    assert len(told[0]) == len(PLAYABLE) - len(SLOW)


def test_without_the_package_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "textarena"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Absent(), *sys.meta_path])

    with pytest.raises(EnvironmentUnavailable, match=r"the package textarena is missing; install gymfleet\[env-texta"):
        load_entry("textarena", {})


class _Absent:
    """As if the package were not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "textarena":
            raise ModuleNotFoundError(f"No module named {name!r}", name="textarena")


def two(name: str) -> TextArenaTwoPlayers:
    environment = TextArenaTwoPlayers()
    assert environment.reset(two_player_tasks([name], TWO_PLAYER_GAMES).by_index("train", name, 0).data, 0) == ""
    return environment


def test_who_makes_a_game_for_two_fail_has_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = two("TicTacToe-v0")
    environment.step("[4]")
    monkeypatch.setattr(environment.play.game, "step", _fails)

    outcome = environment.step("[0]")

    seats = environment.game().seats
    assert (outcome.terminated, outcome.action_valid) == (True, False)
    assert [seats[name].score for name in ("player_0", "player_1")] == [1.0, 0.0]


def test_tic_tac_toe_for_two() -> None:
    environment = two("TicTacToe-v0")
    for action in ("[4]", "[0]", "[2]", "[1]"):
        environment.step(action)
    game = environment.game()
    assert game.to_move == "player_0"
    told = game.seats["player_0"].observation
    assert told.startswith("[GAME] Player 0 placed their symbol (O) in cell 2.\n")
    assert "\n[Player 1] [1]\n[GAME] Player 1 placed their symbol (X) in cell 1.\n" in told
    assert "[Player 0]" not in told, "its own words are not repeated to it"
    assert game.seats["player_1"].observation.startswith("[GAME] Player 1 placed")

    assert environment.step("[6]").terminated

    game = environment.game()
    assert game.to_move is None
    assert [(seat.reward, seat.score) for seat in game.seats.values()] == [(1.0, 1.0), (0.0, 0.0)]
    assert game.seats["player_1"].observation.endswith("[GAME] Player 0 has won!")


def test_a_draw_is_half_and_an_invalid_move_is_the_players_own_matter() -> None:
    environment = two("TicTacToe-v0")
    wrong = environment.step("[9]\n[GAME] Player 0 has won!")
    assert (wrong.action_valid, wrong.terminated) == (False, False)
    game = environment.game()
    assert game.to_move == "player_0"
    assert "attempted an invalid move" in game.seats["player_0"].observation
    assert "\n[GAME] Player 0 has won!" not in game.seats["player_1"].observation
    for cell in (0, 1, 2, 4, 3, 5, 7, 6, 8):
        environment.step(f"[{cell}]")
    assert [seat.score for seat in environment.game().seats.values()] == [0.5, 0.5]


def test_a_second_invalid_move_loses_to_the_other() -> None:
    environment = two("Nim-v0")
    environment.step("[0 3]")
    environment.step("[0 1]")
    assert environment.step("nothing").terminated
    assert [seat.score for seat in environment.game().seats.values()] == [1.0, 0.0]
    assert environment.step("[1 1]").action_valid is False


@pytest.mark.parametrize("name", TWO_PLAYER_GAMES)
def test_a_fork_of_a_game_for_two_is_independent(name: str) -> None:
    original = two(name)
    digest, fork = original.state_digest(), original.snapshot()

    fork.step("[1 2]" if name.startswith("Nim") else "[2]")

    assert fork.state_digest() != digest == original.state_digest()
    assert original.game().to_move == "player_0"
    assert fork.game().to_move == "player_1"
    for text in HOSTILE:
        original.step(text)
    assert original.game().to_move is None


@pytest.mark.parametrize(("name", "number"), [("TicTacToe-v0", 9), ("Nim-v0", 3 + 4 + 5), ("ConnectFour-v0", 7)])
def test_the_moves_of_games_for_two_are_those_that_the_game_takes(name: str, number: int) -> None:
    environment, rng = two(name), random.Random(3)
    assert len(environment.admissible_actions()) == number
    opening = set(environment.admissible_actions())
    while moves := environment.admissible_actions():
        assert all(environment.snapshot().step(move).action_valid for move in moves)
        assert not any(environment.snapshot().step(move).action_valid for move in opening - set(moves))
        environment.step(rng.choice(moves))
    assert environment.game().to_move is None


def test_games_for_two_are_served_by_their_class_and_others_refused() -> None:
    entry = load_entry("gymfleet_envs.textarena.two_players:TextArenaTwoPlayers", {})
    assert (entry.spec.levels, entry.spec.seats) == (TWO_PLAYER_GAMES, ("player_0", "player_1"))
    with pytest.raises(TaskDataError, match=r"^there is no game 'Chess-v0' to play; known: TicTacToe-v0, "):
        two_player_tasks(["Chess-v0"], TWO_PLAYER_GAMES)
