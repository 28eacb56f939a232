"""Augmenters: what ours propose, and those that fail."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.data import samples
from gymfleet_kit.data.augmenter import move_of
from gymfleet_kit.data.augmenter_checks import examine
from gymfleet_kit.data.augmenting import AUGMENTERS, AugmenterFailed, augmenter_of
from gymfleet_kit.plugins import PluginError

HEAD = '''
import random
from gymfleet_contracts.rollout import Move
from gymfleet_kit.data.augmenter import Augmenter, AugmenterOptions, move_of


class Mine(Augmenter):
    """One of somebody's own."""

    def augment(self, episode):
'''


def episode(number: int) -> Trajectory:
    return samples.episodes()[number].trajectory


def proposed(number: int) -> list[list[str]]:
    found = augmenter_of("shortened", table="augmenter").proposals(episode(number))
    return [[move.action for move in moves] for moves in found]


def test_shortened_leaves_out_what_was_not_understood() -> None:
    assert [turn.action for turn in episode(1).turns] == ["go left", "!jump", None, "!jump", "take key"]
    assert proposed(1) == [["go left", "take key"]]


@pytest.mark.parametrize("number", [0, 2, 4], ids=["all was understood", "nothing was", "no turns"])
def test_shortened_proposes_nothing_where_nothing_would_change_or_be_left(number: int) -> None:
    assert proposed(number) == []


def test_the_move_of_a_turn() -> None:
    said, nothing = episode(1).turns[0], episode(1).turns[2]

    move = move_of(said)

    assert move is not None
    assert (move.thought, move.action) == (said.thought, "go left")
    assert move_of(nothing) is None


@pytest.mark.parametrize("name", AUGMENTERS.included())
def test_ours_keep_what_every_augmenter_promises(name: str) -> None:
    assert examine(name) == []


MOVES = '[Move(action="look")]'


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            "return None", "for sample/sample.t000000/0, returns NoneType instead of lists of moves", id="none"
        ),
        pytest.param(f"return {MOVES}", "yields Move instead of a list of moves", id="moves, not lists of them"),
        pytest.param("return ['look']", "yields str instead of a list of moves", id="text"),
        pytest.param("return [['look']]", "yields a list with str among the moves", id="actions"),
        pytest.param("yield []", "yields 0 moves; an episode has 1 to 1000", id="no move"),
        pytest.param(f"yield {MOVES} * 1001", "yields 1001 moves", id="too many moves"),
        pytest.param(f"while True: yield {MOVES}", "makes more than 1000 episodes", id="endless"),
        pytest.param('yield [Move(action=" ")]', "failed: ValidationError: ", id="a blank action"),
        pytest.param("raise SystemExit(3)", "failed: SystemExit: 3", id="it ends the process"),
        pytest.param("return []", "it proposes nothing for any of the episodes", id="nothing"),
        pytest.param(
            "yield [Move(action=str(random.random()))]", "something else of the same episode the second", id="random"
        ),
        pytest.param(
            f"episode.__dict__['score'] = 0.7; yield {MOVES}", "changes the episode that it is given", id="writes"
        ),
    ],
)
def test_a_broken_promise_is_named(tmp_path: Path, body: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}        {body}\n")

    faults = examine(str(path))

    assert told in faults[0]
    assert "\n" not in faults[0]


def test_one_that_fails_names_the_episode(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}        raise RuntimeError('not\\nyet')\n".replace("not\nyet", "not\\nyet"))

    with pytest.raises(
        AugmenterFailed, match=r"^the augmenter mine, for sample/sample\.t000003/0, failed: RuntimeError: not yet$"
    ):
        augmenter_of(str(path), table="augmenter").proposals(episode(3))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("shorter", "there is no augmenter 'shorter'; known: distractor, paraphrase, recovery, shortened;"),
        (
            {"use": "shortened", "by": 3},
            "augmenter.by: Extra inputs are not permitted (the options of shortened: loops, copies)",
        ),
    ],
)
def test_a_mistake_in_a_recipe_is_a_line(given: Any, told: str) -> None:
    with pytest.raises(PluginError) as caught:
        augmenter_of(given, table="augmenter")

    assert str(caught.value).startswith(told)
