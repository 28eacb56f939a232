"""Augmenters that insert turns, put thoughts in other words, and cut loops out: what each option changes."""

from typing import Any

import pytest
from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.data import samples
from gymfleet_kit.data.augmenters.paraphrase import RULES
from gymfleet_kit.data.augmenting import AugmenterFailed, CheckedAugmenter, augmenter_of

EPISODE, OTHER = (samples.episodes()[number].trajectory for number in (0, 1))
"""look, go left, take key; and go left, jump, nothing, jump, take key, where jumps were not understood."""


def noted(use: str, *episodes: Trajectory, **options: Any) -> CheckedAugmenter:
    augmenter = augmenter_of({"use": use, **options}, table="augmenter")
    for episode in episodes:
        augmenter.note(episode)
    return augmenter


def actions(proposals: list[tuple[Move, ...]]) -> list[list[str]]:
    return [[move.action for move in moves] for moves in proposals]


def walked(*steps: tuple[str, str]) -> Trajectory:
    """What was seen, and what was done then."""
    (turn,) = EPISODE.turns[:1]
    turns = tuple(turn.model_copy(update={"observation": seen, "action": done}) for seen, done in steps)
    return EPISODE.model_copy(update={"turns": turns})


def test_a_distractor_comes_from_other_episodes_and_was_understood_there() -> None:
    (longer,) = noted("distractor", EPISODE, OTHER, copies=1, thought="Hm.").proposals(OTHER)

    (inserted,) = [move for move in longer if move.thought == "Hm."]
    assert inserted.action in {"look", "go left", "take key"}
    assert [move.action for move in longer if move is not inserted] == ["go left", "!jump", "!jump", "take key"]
    assert inserted.role == "agent"


def test_of_another_environment_nothing_is_inserted() -> None:
    elsewhere = EPISODE.model_copy(update={"task": EPISODE.task.model_copy(update={"env": "wordle"})})

    assert noted("distractor", elsewhere).proposals(EPISODE) == []
    assert noted("distractor").proposals(EPISODE) == []


@pytest.mark.parametrize("use", ["distractor", "recovery"])
def test_what_is_inserted_is_drawn_from_the_seed_and_the_options_say_how_much(use: str) -> None:
    def made(**options: Any) -> list[list[str]]:
        return actions(noted(use, EPISODE, OTHER, **options).proposals(EPISODE))

    assert made() == made()
    assert made(copies=8) != made(copies=8, seed=1)
    assert [len(moves) for moves in made(copies=3, turns=2)] == [5, 5, 5]
    assert {tuple(moves) for moves in made(copies=9, actions=["take key"])} <= {
        ("take key", "look", "go left", "take key"), ("look", "take key", "go left", "take key"),
    }  # fmt: skip
    assert made(actions=["fly"]) == [], "nobody did that"


def test_a_wrong_action_has_the_thought_of_the_right_one_and_is_noticed() -> None:
    options = {"copies": 1, "turns": 1, "actions": ["take key"], "notice": "No."}
    for seed in range(9):  # at the last place it is the right one
        if proposals := noted("recovery", EPISODE, **options, seed=seed).proposals(EPISODE):
            break
    (moves,) = proposals

    place = next(place for place, move in enumerate(moves) if move.role == "mistake")
    wrong, right = moves[place : place + 2]
    thought = EPISODE.turns[0].thought
    assert (wrong.action, wrong.thought) == ("take key", thought)
    assert (right.thought, right.role) == (f"No. {thought}", "agent")
    assert [move.action for move in moves if move.role == "agent"] == ["look", "go left", "take key"]


def test_the_role_of_a_wrong_action_is_an_option() -> None:
    (moves,) = noted("recovery", EPISODE, OTHER, copies=1, role="agent").proposals(EPISODE)

    assert {move.role for move in moves} == {"agent"}


def test_thoughts_are_put_in_other_words_and_actions_stay() -> None:
    """There are two ways to say each of the two phrases, "There is" and "I go on"."""
    proposals = noted("paraphrase", copies=50, share=1.0).proposals(EPISODE)

    others = {
        f"{first} nothing else in this room. {second}."
        for first in RULES["There is"] for second in RULES["I go on"]
    }  # fmt: skip
    assert {move.thought for moves in proposals for move in moves} == others
    assert actions(proposals) == [["look", "go left", "take key"]] * len(proposals)
    assert len({tuple(move.thought for move in moves) for moves in proposals}) == len(proposals)


def test_each_option_of_paraphrase() -> None:
    def made(**options: Any) -> list[list[str]]:
        return [[move.thought for move in moves] for moves in noted("paraphrase", **options).proposals(EPISODE)]

    assert made() == made()
    assert made(copies=4) != made(copies=4, seed=1)
    assert len(made(copies=1)) == 1
    assert made(share=0.001) == []
    own = {"There is": ["I find"], "I go on": [], "this room": ["here"]}
    assert made(share=1.0, rules=own) == [["I find nothing else in here. I go on."] * 3]


def test_a_phrase_within_a_word_is_left_as_it_is() -> None:
    (turn,) = EPISODE.turns[:1]
    episode = EPISODE.model_copy(update={"turns": (turn.model_copy(update={"thought": "Known, Forgoing."}),)})

    assert noted("paraphrase", share=1.0).proposals(episode) == []


LOOP = walked(("hall", "left"), ("room", "back"), ("hall", "right"), ("shed", "in"), ("shed", "take"))


def test_loops_are_cut_out_all_at_once_and_each_alone() -> None:
    assert actions(noted("shortened").proposals(LOOP)) == [
        ["right", "take"], ["right", "in", "take"], ["left", "back", "right", "take"],
    ]  # fmt: skip
    assert actions(noted("shortened", copies=1).proposals(LOOP)) == [["right", "take"]]
    assert noted("shortened", loops=False).proposals(LOOP) == []


def test_a_role_stays_with_its_turn() -> None:
    turns = tuple(turn.model_copy(update={"role": "planner"}) for turn in LOOP.turns)
    (moves,) = noted("shortened", copies=1).proposals(LOOP.model_copy(update={"turns": turns}))

    assert {move.role for move in moves} == {"planner"}


def test_one_that_fails_while_it_takes_note_names_the_episode(tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from gymfleet_kit.data.augmenter import Augmenter\n\n\nclass Mine(Augmenter):\n"
        "    def note(self, episode):\n        raise RuntimeError('no')\n\n"
        "    def augment(self, episode):\n        return []\n"
    )

    with pytest.raises(
        AugmenterFailed, match=r"^the augmenter mine, for sample/\S+, failed in note: RuntimeError: no$"
    ):
        noted(str(path), EPISODE)
