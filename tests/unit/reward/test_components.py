"""The components that come with gymfleet, one by one, against numbers worked out by hand."""

import math
import time
from typing import Any

import pytest
from gymfleet_contracts.trajectory import Trajectory, Turn
from gymfleet_reward.component import Component, ComponentError
from gymfleet_reward.component_checks import examine
from gymfleet_reward.plugins import COMPONENTS
from pydantic import ValidationError

from tests.fixtures.trajectories import make_trajectory, make_turn

GOLD: dict[str, Any] = {"ground_truth_from": "info.gold"}
NEEDS: dict[str, dict[str, Any]] = {
    name: {"ground_truth_from": "info.answer"}
    for name in ("accuracy", "bleu", "exact_match", "f1", "numeric_match", "rouge", "set_match")
}


def component(name: str, **options: Any) -> Component[Any]:
    kind = COMPONENTS.find(name)
    return kind(kind.Options.model_validate(options))


def raw(name: str, episode: Trajectory, **options: Any) -> Any:
    return component(name, **options).score(episode)


def answered(action: str | None, gold: Any, text: str = "") -> Trajectory:
    turn = make_turn(2).model_copy(update={"action": action, "text": text, "info": {"gold": gold}})
    return make_trajectory(turns=(make_turn(2), turn))


def replies(*texts: str) -> Trajectory:
    return make_trajectory(turns=tuple(make_turn(2).model_copy(update={"text": text}) for text in texts))


def understood(*good: bool | None) -> Trajectory:
    """Replies whose action was understood, was not, or (None) that asked for none."""
    turns = [
        make_turn(2).model_copy(
            update={"action": None if one is None else f"go {place}", "action_valid": bool(one), "observation": "here"}
        )
        for place, one in enumerate(good)
    ]
    return make_trajectory(turns=tuple(turns))


# --- answers


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0),
        ("  An  apple ", "the apple", 1.0),
        ("theatre", "atre", 0.0),
        ("U.S.A.", "usa", 1.0),
        ("Paris", ["London", "paris"], 1.0),
        ("Rome", ["London", "Paris"], 0.0),
        ("7", 7, 1.0),
        (None, "Paris", 0.0),
        ("", "the", 0.0),
        ("a", "A", 1.0),
        ("the", "A", 0.0),
        (".", "A", 0.0),
        ("(A).", "A", 1.0),
        ("A", "(A)", 1.0),
        ("(an)", "A", 0.0),
        ("+", "+", 1.0),
        ("-", "+", 0.0),
    ],
)
def test_exact_match_is_that_of_squad(answer: str | None, gold: Any, value: float) -> None:
    assert raw("exact_match", answered(answer, gold), **GOLD) == value


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("the cat sat", "cat sat down", 0.8),  # 2 of 2 words, 2 of 3
        ("Denver Broncos", "broncos", 2 / 3),
        ("red red", "red blue", 0.5),  # a word counts as often as it stands in both
        ("x", ["y", "x z"], 2 / 3),
        ("the", "the", 1.0),  # no word left on either side
        ("the", "cat", 0.0),
        ("dog", "cat", 0.0),
    ],
)
def test_f1_counts_words_as_squad_does(answer: str, gold: Any, value: float) -> None:
    assert raw("f1", answered(answer, gold), **GOLD) == pytest.approx(value)


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("42", 42, 1.0),
        ("the total is 1,200 dollars", "1200", 1.0),
        ("1.2e3", 1200, 1.0),
        ("50 %", 0.5, 1.0),
        ("50 %", 50, 1.0),
        ("-3", -3.0, 1.0),
        ("3", -3, 0.0),
        ("41 or 42", 42, 0.0),  # it has not decided
        ("no idea", 42, 0.0),
        ("42\u00b2", 42, 0.0),  # a power
        ("e42", 42, 1.0),  # a letter before it makes no power of ten
        (".5e1", 5, 1.0),
        ("-.5", -0.5, 1.0),
        ("- .", 42, 0.0),
        ("42.00000001", 42, 1.0),
        ("0.3", 0.1 + 0.2, 1.0),
        ("1000001", 1_000_000, 0.0),
        ("42.1", 42, 0.0),
        ("9" * 5000, 42, 0.0),
        ("-$42", 42, 0.0),
        ("\u221242", 42, 0.0),  # a minus sign
        ("\u221242", -42, 1.0),
        ("$42.00", 42, 1.0),
        ("42 \u0664\u0663", 42, 0.0),  # a second number, in Arabic-Indic digits
        ("size5 and 42", 42, 0.0),
        ("9e999", 42, 0.0),
        ("12345678901234567891", "12345678901234567890", 1.0),  # within the tolerance
    ],
)
def test_the_only_number_must_be_the_right_one(answer: str, gold: Any, value: float) -> None:
    assert raw("numeric_match", answered(answer, gold), **GOLD) == value


def test_how_far_off_a_number_may_be_is_an_option() -> None:
    assert raw("numeric_match", answered("42.1", 42), tolerance=0.01, **GOLD) == 1.0
    big = answered("12345678901234567891", "12345678901234567890")
    assert raw("numeric_match", big, tolerance=0.0, **GOLD) == 0.0, "compared exactly, not as floats"


def test_a_tolerance_is_relative_to_the_right_number() -> None:
    assert raw("numeric_match", answered("-8", -4), tolerance=1.0, **GOLD) == 1.0
    for far in ("9e99", "-8.1", "0.1"):
        assert raw("numeric_match", answered(far, -4), tolerance=1.0, **GOLD) == 0.0


@pytest.mark.parametrize(
    ("answer", "measure", "value"),
    [
        ("Rome, paris", "exact", 1.0),
        ('["Paris", "Rome"]', "exact", 1.0),
        ("Paris", "exact", 0.0),
        ("Paris, Rome, Oslo", "exact", 0.0),
        ("Paris", "f1", 2 / 3),  # 1 of 1, 1 of 2
        ("Paris, Rome, Oslo, Bern", "f1", 2 / 3),  # 2 of 4, 2 of 2
        ("Paris, paris, PARIS", "f1", 2 / 3),
        (", ,", "f1", 0.0),
    ],
)
def test_a_set_has_no_order(answer: str, measure: str, value: float) -> None:
    found = raw("set_match", answered(answer, ["Paris", "Rome"]), measure=measure, **GOLD)

    assert found == pytest.approx(value)


def test_one_thing_is_a_set() -> None:
    assert raw("set_match", answered("paris", "Paris"), **GOLD) == 1.0


@pytest.mark.parametrize(("answer", "value"), [("c, a", 1.0), ("C", 0.0), ("a", 0.0), ("A, C, the", 0.0)])
def test_an_article_is_a_thing_like_any_other(answer: str, value: float) -> None:
    assert raw("set_match", answered(answer, ["A", "C"]), **GOLD) == value


def test_things_may_be_separated_otherwise() -> None:
    assert raw("set_match", answered("Paris#Rome", ["Rome", "Paris"]), separator="#", **GOLD) == 1.0


@pytest.mark.parametrize(
    ("options", "action", "text", "value"),
    [
        ({"prefix": "answer(", "suffix": ")"}, "answer(Paris)", "", 1.0),
        ({"prefix": "answer(", "suffix": ")"}, "search(Paris)", "", 0.0),
        ({"prefix": "answer(", "suffix": " end"}, "answer(Paris end", "", 1.0),
        ({"answer_from": "reply"}, None, " paris.\n", 1.0),
        ({"answer_from": "tag"}, None, "<answer>London</answer> no: <answer> Paris </answer>", 1.0),
        ({"answer_from": "tag"}, None, "<answer>Paris</answer> or <answer>London</answer>", 0.0),
        ({"answer_from": "tag"}, None, "<answer>Paris", 0.0),
        ({"answer_from": "tag"}, "Paris", "Paris", 0.0),
        ({"answer_from": "action"}, None, "Paris", 0.0),
    ],
)
def test_where_the_answer_stands_is_an_option(
    options: dict[str, Any], action: str | None, text: str, value: float
) -> None:
    assert raw("exact_match", answered(action, "Paris", text), **GOLD, **options) == value


@pytest.mark.parametrize(
    ("name", "gold", "reason"),
    [
        ("exact_match", {"a": 1}, "info.gold is dict, no text and no number"),
        ("exact_match", True, "info.gold is bool"),
        ("exact_match", [], "an empty list: no answer is right"),
        ("f1", None, "info.gold is NoneType"),
        ("numeric_match", "many", "info.gold is no number"),
        ("numeric_match", "1 or 2", "info.gold is no number"),
        ("set_match", [], r"info\.gold holds nothing that could be named"),
        ("set_match", [["Paris"]], r"info\.gold is list, no text"),
        ("set_match", ["", " "], r"info\.gold holds nothing"),
    ],
)
def test_a_right_answer_that_is_none_is_no_reward_whatever_was_answered(name: str, gold: Any, reason: str) -> None:
    for action in ("Paris", None):
        with pytest.raises(ComponentError, match=reason):
            raw(name, answered(action, gold), **GOLD)


def test_an_episode_without_a_right_answer_is_no_reward() -> None:
    with pytest.raises(ComponentError, match=r"^the episode has no private\.gold$"):
        raw("exact_match", answered("Paris", "Paris"), ground_truth_from="private.gold")


# --- ways to play


@pytest.mark.parametrize(
    ("num_turns", "success", "value"),
    [(1, True, 1.0), (2, True, 1.0), (6, True, 0.5), (10, True, 0.0), (12, True, 0.0), (1, False, 0.0)],
)
def test_efficiency_pays_for_solved_tasks_alone(num_turns: int, success: bool, value: float) -> None:
    episode = make_trajectory((1,) * num_turns, success=success)

    assert raw("efficiency", episode, best_turns=2, worst_turns=10) == value


def test_efficiency_counts_up_to_twenty_turns_unless_told() -> None:
    assert raw("efficiency", make_trajectory((1,) * 11, success=True)) == 9 / 19
    assert raw("efficiency", make_trajectory((1,) * 19, success=True)) == 1 / 19
    assert raw("efficiency", make_trajectory((1,) * 2, success=True), worst_turns=2) == 0.0


@pytest.mark.parametrize(
    ("good", "within", "value"),
    [
        ((True, True), 1, 0.0),
        ((False, True, False, True), 1, 0.0),  # each was mended at once
        ((False, False, True), 1, -0.5),
        ((False, False, True), 2, 0.0),
        ((True, False), 1, -1.0),
        ((None, True), 1, 0.0),
        ((True, None, None), 2, -1.0),
    ],
)
def test_recovery_is_never_better_than_no_mistake(good: tuple[bool | None, ...], within: int, value: float) -> None:
    assert raw("recovery", understood(*good), within=within) == pytest.approx(value)


def test_each_action_that_was_not_understood_costs_where_it_stands() -> None:
    assert raw("invalid_action", understood(True, False, None, True)) == [0.0, 1.0, 1.0, 0.0]
    assert component("invalid_action").options.weight == -0.1


def test_an_action_in_vain_is_the_same_one_upon_the_same_sight() -> None:
    def turn(observation: str, action: str | None, *, valid: bool = True) -> Turn:
        told = {"observation": observation, "action": action, "action_valid": valid}
        return make_turn(2).model_copy(update=told)

    episode = make_trajectory(
        turns=(turn("a", "look"), turn("a", "look"), turn("b", "look"), turn("a", "go"), turn("a", "fly", valid=False))
    )

    assert raw("action_use", episode) == 3 / 5


# --- ways to reply


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a b c a b c", 1 / 4),  # abc bca cab abc: 3 of 4 are different
        ("a b c d", 0.0),
        ("A a a a", 1 / 2),
        ("a b", 0.0),
        ("", 0.0),
    ],
)
def test_repetition_is_the_share_of_ngrams_that_came_before(text: str, value: float) -> None:
    assert raw("repetition", replies(text)) == pytest.approx(value)
    assert raw("repetition", replies(text, "one two three four")) == pytest.approx(value / 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Step 1: look. Step 2: go. Step 3: open.", 1.0),
        ("1. look\n2. go", 2 / 3),
        ("First, I look.", 1 / 3),
        ("list:\n- a\n* b\n- c\n- d", 1.0),
        ("I go.", 0.0),
    ],
)
def test_reasoning_steps_are_counted_as_open_r1_does(text: str, value: float) -> None:
    assert raw("reasoning_steps", replies(text)) == pytest.approx(value)


WHOLE = "<think>\nwhy\n</think>\n<answer>\nyes\n</answer>"


@pytest.mark.parametrize(
    ("text", "whole", "tags"),
    [
        (WHOLE, 1.0, 1.0),
        (f" {WHOLE}", 0.0, 1.0),
        (WHOLE.replace("\n<answer>\nyes", ""), 0.0, 0.75),
        (WHOLE.replace("<think>\n", "<think>\n<think>\n"), 1.0, 0.75),
        ("<think>why</think><answer>yes</answer>", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_think_format_is_that_of_open_r1(text: str, whole: float, tags: float) -> None:
    assert raw("think_format", replies(text)) == whole
    assert raw("think_format", replies(text), measure="tags") == tags


def test_a_reply_that_repeats_its_tags_is_read_in_no_time() -> None:
    looping = "<think>\n" + "\n</think>\n<answer>\n" * 8_000

    began = time.process_time()
    assert raw("think_format", replies(looping)) == 0.0
    assert raw("think_format", replies(f"{looping}\n</answer>")) == 1.0
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("num_tokens", "success", "value"),
    [
        (10, True, 0.5 + 0.25 * (1 + math.cos(0.1 * math.pi))),
        (50, True, 0.75),
        (100, True, 0.5),
        (200, True, 0.5),
        (50, False, -0.75),
        (100, False, -0.5),
    ],
)
def test_cosine_length(num_tokens: int, success: bool, value: float) -> None:
    episode = make_trajectory((num_tokens,), success=success)

    assert raw("cosine_length", episode, max_tokens=100) == pytest.approx(value)


def test_a_thousand_tokens_are_long_by_default() -> None:
    assert raw("cosine_length", make_trajectory((999,), success=True)) > 0.5
    assert raw("cosine_length", make_trajectory((1000,), success=True)) == 0.5


def test_group_length_compares_the_episodes_of_a_group() -> None:
    episodes = [
        make_trajectory((num_tokens,), success=success)
        for num_tokens, success in ((10, True), (20, True), (30, True), (10, False), (25, False))
    ]

    assert component("group_length").score_batch(episodes) == pytest.approx([0.5, 0.0, -0.5, 0.0, -0.25])
    assert component("group_length").score_batch(episodes[:1] * 3) == [0.0, 0.0, 0.0]


# --- OpenManus-RL's


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (("<think>a</think><memory>b</memory><plan>c</plan><think>d</think><act>e</act>",), 1.0),
        (("<think>a", "<memory>b", "<plan>c", "<think>d", "<act>e"), 1.0),
        (("<act>e<plan>c<memory>b<think>a",), 1 / 3),
        (("<think>a</think><act>e</act>",), 0.25),
        (("<act>e</act>",), -0.5),
        (("go",), -0.5),
    ],
)
def test_tag_order(texts: tuple[str, ...], value: float) -> None:
    assert raw("tag_order", replies(*texts)) == value


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (0, -0.25), (7, 0.5 - 0.375 * 0.8), (34, 0.5 - 0.375 / 35), (35, 0.5), (65, 0.5), (78, 0.5 - 0.375 * 0.2),
        (130, 0.125), (500, 0.125),
    ],
)  # fmt: skip
def test_thought_length(words: int, value: float) -> None:
    half = words // 2
    turns = [make_turn(2).model_copy(update={"thought": "so " * number}) for number in (half, words - half)]

    assert raw("thought_length", make_trajectory(turns=tuple(turns))) == pytest.approx(value)


@pytest.mark.parametrize(
    ("actions", "match", "value"),
    [
        (("look", "Take  Key", "open door"), "in_order", 1.0),
        (("take key", "look", "open door"), "in_order", 1 / 3),  # after `look`, `take key` is still to come
        (("look", "dance", "take key"), "in_order", 2 / 3),
        (("look", "dance", "take key"), "prefix", 1 / 3),
        (("dance",), "in_order", 0.0),
        ((None,), "in_order", 0.0),
        (("look", "take key", "open door", "look"), "prefix", 1.0),
    ],
)
def test_action_path(actions: tuple[str | None, ...], match: str, value: float) -> None:
    gold = {"gold": ["look", "take key", "open door"]}
    turns = [make_turn(2).model_copy(update={"action": action, "info": gold}) for action in actions]

    found = raw("action_path", make_trajectory(turns=tuple(turns)), match=match, **GOLD)

    assert found == pytest.approx(value)


@pytest.mark.parametrize("gold", [[], "look", ["look", 7], None])
def test_a_solution_that_is_none_is_no_reward(gold: Any) -> None:
    with pytest.raises(ComponentError, match=r"info\.gold must be a list of actions"):
        raw("action_path", answered("look", gold), **GOLD)


def test_the_environments_rewards_are_scaled_and_their_sum_clipped() -> None:
    episode = make_trajectory(turns=tuple(make_turn(1, reward=reward) for reward in (1.0, 3.0, -0.5)))

    assert raw("environment", episode, scale=2.0) == 7.0
    assert raw("environment", episode, scale=2.0, clip=5.0) == 5.0
    assert raw("environment", episode, scale=-2.0, clip=5.0) == -5.0
    assert raw("environment", episode, scale=2.0, credit="per_turn") == [2.0, 6.0, -1.0]
    with pytest.raises(ValidationError, match="clip is for credit"):
        component("environment", clip=5.0, credit="per_turn")


# --- all of them


@pytest.mark.parametrize("name", COMPONENTS.included())
def test_those_that_come_with_gymfleet_are_sound(name: str) -> None:
    assert examine(name, NEEDS.get(name)) == []


@pytest.mark.parametrize("name", ["length", "cosine_length", "group_length"])
def test_replies_without_tokens_are_not_taken_for_short_ones(name: str) -> None:
    """As in episodes that another model played, whose replies are texts alone."""
    collected = make_trajectory(turns=(make_turn(3), make_turn(0).model_copy(update={"text": "Action: look"})))

    with pytest.raises(ComponentError, match="the replies have no tokens"):
        component(name).score_batch([collected]) if name == "group_length" else raw(name, collected)
