"""BLEU against sacrebleu's own, ROUGE against the package rouge-score (0.1.2), whose values stand here."""

from typing import Any

import pytest
import sacrebleu
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_reward.component import ComponentError
from gymfleet_reward.components import bleu as bleu_module
from gymfleet_reward.plugins import COMPONENTS

from tests.fixtures.trajectories import make_trajectory, make_turn


def raw(name: str, answer: str | None, gold: Any, **options: Any) -> Any:
    kind = COMPONENTS.find(name)
    component = kind(kind.Options.model_validate({"ground_truth_from": "info.gold", **options}))
    return component.score(answering(answer, gold))


def answering(answer: str | None, gold: Any) -> Trajectory:
    turn = make_turn(2).model_copy(update={"action": answer, "info": {"gold": gold}})
    return make_trajectory(turns=(make_turn(2), turn))


CAT = "The cat sat on a mat, 3.5 ft."
CATS = ["the cat sat on the mat , 3.5 ft.", "The cats sat on “a” mat"]


@pytest.mark.parametrize(
    ("options", "theirs", "value"),
    [
        ({}, {}, 0.5410822690539397),
        ({"tokenizer": "char"}, {"tokenize": "char"}, 0.8060118112400974),
        ({"tokenizer": "none"}, {"tokenize": "none"}, 0.2387517132417733),
        ({"tokenizer": "intl"}, {"tokenize": "intl"}, 0.5555238068023583),
        ({"smoothing": "add-k"}, {"smooth_method": "add-k"}, 0.60190067175135795),
        ({"lowercase": True}, {"lowercase": True}, 0.6580370064762461),
    ],
)
def test_bleu_is_that_of_sacrebleu(options: dict[str, Any], theirs: dict[str, Any], value: float) -> None:
    found = raw("bleu", CAT, CATS, **options)

    assert found == pytest.approx(value)
    assert found == pytest.approx(sacrebleu.sentence_bleu(CAT, CATS, use_effective_order=True, **theirs).score / 100)


@pytest.mark.parametrize(
    ("smoothing", "value"),
    [
        # of "a b c d" against "a b x d": 3 of 4 words, 1 of 3 pairs, no triple of 2 and none of 1 quadruple
        ("none", 0.0),
        ("floor", (3 / 4 * 1 / 3 * 0.1 / 2 * 0.1) ** 0.25),
        ("exp", (3 / 4 * 1 / 3 * 1 / (2 * 2) * 1 / 4) ** 0.25),
        ("add-k", (3 / 4 * 2 / 4 * 1 / 3 * 1 / 2) ** 0.25),
    ],
)
def test_what_a_missing_ngram_costs(smoothing: str, value: float) -> None:
    assert raw("bleu", "a b c d", "a b x d", smoothing=smoothing) == pytest.approx(value)


def test_chinese_words_are_characters() -> None:
    assert raw("bleu", "我去北京", "我去上海", tokenizer="zh") > raw("bleu", "我去北京", "我去上海") == 0


@pytest.mark.parametrize(("answer", "gold", "value"), [("7", 7, 1.0), (None, "cat", 0.0), ("dog", ["a", "dog"], 1.0)])
def test_bleu_of_single_words(answer: str | None, gold: Any, value: float) -> None:
    assert raw("bleu", answer, gold) == value


def test_bleu_keeps_no_texts() -> None:
    for answer in ("a b c", "我", "a “b”"):
        for tokenizer in ("13a", "intl", "zh", "char"):
            raw("bleu", answer, "a b", tokenizer=tokenizer)

    assert [kind.__call__.cache_info().currsize for kind in bleu_module._CACHING] == [0] * 5


@pytest.mark.parametrize(
    ("answer", "gold", "rouge1", "rouge2", "rougel"),
    [
        ("the cat was under the bed", "the cat was found under the bed", 12 / 13, 0.727272727273, 12 / 13),
        (
            "The quick brown dog jumps on the log.", "The quick brown fox jumps over the lazy dog",
            0.705882352941, 0.266666666667, 0.588235294118,
        ),
        ("the gunman kill police", "police killed the gunman", 0.75, 0.333333333333, 0.5),
        ("one", "one", 1.0, 0.0, 1.0),
        ("usa 2 0", "U.S.A. 2-0", 0.5, 0.333333333333, 0.5),
        ("b a b a", "a b a b", 1.0, 0.666666666667, 0.75),
        ("naive cafe", "naïve café", 0.0, 0.0, 0.0),
        ("fish", ["two fish", "red"], 0.666666666667, 0.0, 0.666666666667),  # the best of both
        ("!", "word", 0.0, 0.0, 0.0),
        (None, "word", 0.0, 0.0, 0.0),
    ],
)  # fmt: skip
def test_rouge_is_that_of_rouge_score(answer: str, gold: str, rouge1: float, rouge2: float, rougel: float) -> None:
    found = [raw("rouge", answer, gold, measure=measure) for measure in ("rouge1", "rouge2", "rougeL")]

    assert found == pytest.approx([rouge1, rouge2, rougel])
    assert raw("rouge", answer, gold) == found[2]


def test_an_answer_without_end_is_worth_nothing_and_takes_no_time() -> None:
    assert raw("rouge", "word " * 100_001, "word") == 0.0
    assert raw("rouge", "word " * 100_000, "word") == pytest.approx(2 / 100_001)


@pytest.mark.parametrize(
    ("name", "gold", "reason"),
    [
        ("bleu", [], "info.gold is an empty list"),
        ("bleu", ["a", {}], "info.gold is dict, no text and no number"),
        ("rouge", {"a": 1}, "info.gold is dict, no text and no number"),
        ("rouge", "。", "info.gold has 0 words"),
    ],
)
def test_without_a_right_answer_there_is_no_reward(name: str, gold: Any, reason: str) -> None:
    with pytest.raises(ComponentError, match=reason):
        raw(name, None, gold)
