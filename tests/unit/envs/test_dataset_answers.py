"""Answers to a data set's rows: which part of a reply is one, and what each scorer makes of it."""

from fractions import Fraction
from typing import Any

import pytest
from gymfleet_envs.dataset.answers import AnswerMark, answer_of, spoken
from gymfleet_envs.dataset.arithmetic import ArithmeticFault, evaluate
from gymfleet_envs.dataset.parts import UnknownPart, names_in
from gymfleet_envs.dataset.scorer import PACKAGE, BadGold, make_scorer
from gymfleet_envs.dataset.tool import ToolFault
from gymfleet_envs.dataset.tools.calculator import Calculator


def scored(use: str, reply: str, gold: Any, **options: Any) -> float | None:
    """None where the reply holds no answer."""
    scorer = make_scorer({"use": use, **options})
    answer = scorer.answer(spoken(reply))
    return None if answer is None else scorer.score(answer, scorer.checked(gold))


@pytest.mark.parametrize(
    ("reply", "mark", "answer"),
    [
        ("5", "auto", "5"),
        ("a <answer> 5 </answer> b", "auto", "5"),
        ("<answer>4</answer> no, <answer>5</answer>", "auto", "5"),
        (r"\boxed{4} or \boxed{5}", "auto", "5"),
        (r"\boxed{\frac{1}{2}}", "auto", r"\frac{1}{2}"),
        (r"\boxed{4} or \fbox{5}", "boxed", "5"),
        (r"the root is $\boxed 2$.", "boxed", "2"),
        (r"it is \boxed -3/2.", "boxed", "-3/2"),
        (r"\boxed {4}", "boxed", "4"),
        (r"<answer>5</answer>, in \boxed form", "auto", "5"),
        (r"<answer>\boxed{4}</answer>", "auto", "4"),
        (r"\boxed{4} <answer>5</answer>", "auto", "5"),
        (r"<answer>5</answer> \boxed{4}", "auto", "4"),
        (r"<answer>5</answer> \boxed{4", "auto", None),
        ("<answer>5</answer> <answer>4", "auto", None),
        ("so\n#### 72\nthat is it", "hash", "72"),
        ("#### 1\n#### 2", "hash", "2"),
        ("72", "hash", None),
        ("The answer: 71\nAnswer: $72$\n", "line", "$72$"),
        ("ANSWER : 72", "line", "72"),
        ("Answer:\n72", "line", None),
        ("It is 72", "line", None),
        ("72", "tag", None),
        ("72", "boxed", None),
        (r"<answer>\boxed{4}</answer>", "whole", r"<answer>\boxed{4}</answer>"),
        ("<answer> </answer>", "tag", None),
        ("", "auto", None),
    ],
)
def test_one_part_of_a_reply_is_its_answer(reply: str, mark: AnswerMark, answer: str | None) -> None:
    assert answer_of(reply, mark) == answer


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("<think>is it 4?</think> 5", "5"),
        ("is it 4?</think>5", "5"),  # the template opened the thought
        ("<answer>4</answer></think><answer>5</answer>", "<answer>5</answer>"),
        ("<think><answer>4</answer>", ""),
        ("5 <think>or <answer>4</answer>", "5"),
        ("<think>a</think>4<think>b</think>5", "5"),
    ],
)
def test_what_was_only_thought_is_no_answer(reply: str, said: str) -> None:
    assert spoken(reply) == said


GAMES = [
    pytest.param("numeric_match", "12", r"\boxed{11} \boxed{12} \boxed{13}", 0.0, id="one box for each guess"),
    pytest.param("numeric_match", "12", r"\boxed{11 12 13}", 0.0, id="all guesses in one box"),
    pytest.param("numeric_match", "12", "11 or 12", 0.0, id="two numbers"),
    pytest.param("numeric_match", "12", "<think>12</think> I do not know", 0.0, id="only thought"),
    pytest.param("numeric_match", "12", "<think><answer>12</answer>", None, id="thought, without an end"),
    pytest.param("numeric_match", "12", "9" * 5000, 0.0, id="a huge number"),
    pytest.param("numeric_match", "12", "1e999", 0.0, id="a huge exponent"),
    pytest.param("numeric_match", "1000000", "1000001", 0.0, id="nearly: exact unless a tolerance is set"),
    pytest.param("numeric_match", "12345678901234567890", "12345678901234567891", 0.0, id="more digits than a float"),
    pytest.param("numeric_match", "12", "١٢", 0.0, id="other digits"),
    pytest.param("numeric_match", "12", "12 ١٣", 0.0, id="a second number in other digits"),
    pytest.param("numeric_match", "5", "5²", 0.0, id="a power"),
    pytest.param("numeric_match", "5", "5½", 0.0, id="a fraction beside it"),
    pytest.param("numeric_match", "5", "答案是一共 5 个", 1.0, id="words in Chinese, some of which are numerals"),
    pytest.param("numeric_match", "12", "\N{MINUS SIGN}12", 0.0, id="a minus sign that is no hyphen"),
    pytest.param("numeric_match", "25", "25%", 1.0, id="a percentage, whose right answer has no sign in GSM8K"),
    pytest.param("numeric_match", "0.25", "25 %", 1.0, id="a percentage of a share"),
    pytest.param("numeric_match", "25%", "0.25%", 0.0, id="a hundredth of the percentage"),
    pytest.param("numeric_match", "12", '{"ground_truth": "12", "target": 13}', 0.0, id="the record's own form"),
    pytest.param("exact_match", "Paris", "Paris London Rome", 0.0, id="several cities"),
    pytest.param("exact_match", "Paris", "<answer>Paris</answer><answer>Rome</answer>", 0.0, id="the last counts"),
    pytest.param("exact_match", "Paris", "the PARIS.", 1.0, id="as SQuAD compares"),
    pytest.param("exact_match", {"target": ["The The"]}, "the the", 1.0, id="articles alone"),
    pytest.param("exact_match", "A", "(A)", 1.0, id="a choice that is an article"),
    pytest.param("exact_match", ["!!!", "Chk Chk Chk"], "<answer>the</answer>", 0.0, id="nothing is not punctuation"),
    pytest.param("exact_match", {"target": ["Paris", "City of Light"]}, "city of light", 1.0, id="Search-R1's gold"),
    pytest.param("f1", "red green blue", "red " * 300, 2 / 303, id="one right word, often"),
    pytest.param("f1", "red green blue", "red green", 0.8, id="two of three words"),
    pytest.param("set_match", ["a1", "b2"], "b2, A1", 1.0, id="in any order"),
    pytest.param("set_match", ["A", "C"], "c, a", 1.0, id="letters, of which one is an article"),
    pytest.param("set_match", ["A", "C"], "(A), (C)", 1.0, id="letters in parentheses"),
    pytest.param("set_match", ["A", "C"], "C", 0.0, id="an article is not left out"),
    pytest.param("set_match", ["a1", "b2"], "a1, b2, c3, d4", 0.0, id="everything that there is"),
    pytest.param("multiple_choice", "B", "B", 1.0, id="the letter"),
    pytest.param("multiple_choice", "B", "(b)", 1.0, id="in parentheses"),
    pytest.param("multiple_choice", "B", r"\boxed{\text{B}}", 1.0, id="set as text in a box"),
    pytest.param("multiple_choice", "B", r"\boxed{\textbf{(B) }Rome}", 1.0, id="set in bold with its text"),
    pytest.param("multiple_choice", "B", r"\boxed{\text{A}, \text{B}}", 0.0, id="two letters set as text"),
    pytest.param("multiple_choice", "(B)", "B) Rome", 1.0, id="with its text"),
    pytest.param("multiple_choice", "B", "I think that the answer is B.", 1.0, id="in a sentence"),
    pytest.param("multiple_choice", "B", "Answer: B", 1.0, id="after a colon"),
    pytest.param("multiple_choice", "B", "Answer: (b)", 1.0, id="a small letter in parentheses"),
    pytest.param("multiple_choice", "B", "Rome, so the answer is b.", 1.0, id="a small letter at the end"),
    pytest.param("multiple_choice", "A", "The answer is a city", 0.0, id="an article is no letter"),
    pytest.param("multiple_choice", "B", "Answer: (b) Answer: (c)", 0.0, id="two small letters"),
    pytest.param("multiple_choice", "B", "Rome.\n**Final answer:** B", 1.0, id="in bold"),
    pytest.param("multiple_choice", "B", "The answer is **(B)**.", 1.0, id="the letter in bold"),
    pytest.param("multiple_choice", "B", "Answer:\nB", 1.0, id="on the next line"),
    pytest.param("multiple_choice", "B", "Option A is wrong. Answer: B", 0.0, id="two options"),
    pytest.param("multiple_choice", "B", "A) Paris B) Rome", 0.0, id="the list of choices"),
    pytest.param("multiple_choice", "B", "A or B", 0.0, id="two letters"),
    pytest.param("multiple_choice", "B", "The answer is A. The answer is B.", 0.0, id="two answers"),
    pytest.param("multiple_choice", "B", "The answer is B" + " " * 5000, 1.0, id="blanks"),
    pytest.param("multiple_choice", "B", "x " * 5000 + "The answer is B", 0.0, id="too long"),
]


ALIKE = [
    (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", r"\dfrac12"), (r"-\frac{1}{2}", "-1/2"), ("1/72", r"\tfrac1{72}"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3} {2}"), ("10,000", "10000"), ("10000", "10{,}000"), (".5", "0.50"),
    ("10", r"10 \text{ square feet}"), (r"10\text{ cm}^2", "10"), ("90", r"90^{\circ}"), ("90", "90°"),
    (r"50\%", "50"), (r"\$18.00", "18"), (r"\left( 1,\, 2 \right)", "(1,2)"), ("5", "x = 5"),
    (r"\text{Evelyn}", "Evelyn"), (r"x^2\!+1", "x^2 + 1"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
]  # fmt: skip
"""A right answer, and another way to write it."""
OTHERS = [
    ("5", "6"), ("2", r"2\text{ or 3}"), ("A", r"A\text{ or B}"), ("x+1", "1+x"), ("5", "5, 6"), ("1", "1/0"),
    ("5", ""), ("5", "y=x=5"), ("(1,2)", "(2,1)"), ("12", "9" * 5000), ("12", "\\frac{" * 700), (r"\text{ cm}", ""),
    ("5", "\N{ARABIC-INDIC DIGIT FIVE}"),
]  # fmt: skip
"""A right answer, and one that is wrong."""


@pytest.mark.parametrize(("gold", "answer"), ALIKE)
def test_mathematics_is_right_however_it_is_set(gold: str, answer: str) -> None:
    assert scored("math_match", f"So it is $\\boxed{{{answer}}}$.", gold) == 1.0
    assert scored("math_match", f"So it is $\\boxed{{{gold}}}$.", answer) == 1.0


@pytest.mark.parametrize(("gold", "answer"), OTHERS)
def test_other_mathematics_is_wrong(gold: str, answer: str) -> None:
    scorer = make_scorer("math_match")

    assert scorer.score(answer, scorer.checked(gold)) == 0.0


@pytest.mark.parametrize(("use", "gold", "reply", "score"), GAMES)
def test_what_a_reply_is_worth(use: str, gold: Any, reply: str, score: float | None) -> None:
    assert scored(use, reply, gold) == (None if score is None else pytest.approx(score))


COUNTDOWN = {"target": 24, "numbers": [3, 8, 2, 2]}


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("3 * 8 * 2 / 2", 1.0),
        ("(3 + (2 - 2)) * 8", 1.0),
        ("3*8", 0.0),  # 2 and 2 are not used
        ("3 * 8 + 2 - 2 + 8 - 8", 0.0),  # 8 is used thrice
        ("24 + 3 * 8 * (2 - 2) / 1", 0.0),
        ("24", 0.0),
        ("3 * 8 * 2 / 2 = 24", 0.0),  # as TinyZero has it, an equation without the equals sign
        ("3 ** 2 + 8 * 2 - 1", 0.0),
        ("8 // 3 * 2", 0.0),
        ("__import__('os').system('true')", 0.0),
        ("٣ * 8 * 2 / 2", 0.0),
        ("3 * 8 / (2 - 2)", 0.0),
        ("(" * 900 + "3", 0.0),
        ("9" * 900 + " * " + "9" * 90, 0.0),
        ("(1 + 2) / 3", 0.0),  # the prompt's own example
        (r"<answer>1 + 1</answer> <answer>3 * 8 * 2 / 2</answer>", 1.0),
        (r"<answer>3 * 8 * 2 / 2</answer> for example <answer> (1 + 2) / 3 </answer>", 0.0),
    ],
)
def test_countdown_uses_each_number_once_and_reaches_the_target(answer: str, score: float) -> None:
    assert scored("countdown", answer, COUNTDOWN) == score


def test_countdown_is_exact_where_floats_are_not() -> None:
    # TinyZero computes with floats and takes 1.0000001 for 1.
    assert scored("countdown", "7 / 49 * 7", {"target": 1, "numbers": [7, 49, 7]}) == 1.0
    assert scored("countdown", "10000001 / 10000000", {"target": 1, "numbers": [10000001, 10000000]}) == 0.0


@pytest.mark.parametrize(
    ("use", "options", "reply", "gold", "score"),
    [
        ("numeric_match", {"tolerance": 0.1}, "12.05", "12", 1.0),
        ("numeric_match", {}, "12.05", "12", 0.0),
        ("numeric_match", {"answer": "hash"}, "12", "12", None),
        ("set_match", {"measure": "f1"}, "a1, c3", ["a1", "b2"], 0.5),
        ("set_match", {"separator": ";"}, "a1; b2", ["a1", "b2"], 1.0),
        ("exact_match", {"answer": "boxed"}, r"\boxed{Paris}", "Paris", 1.0),
    ],
)
def test_options_of_scorers(use: str, options: dict[str, Any], reply: str, gold: Any, score: float | None) -> None:
    assert scored(use, reply, gold, **options) == score


@pytest.mark.parametrize(
    ("use", "gold", "message"),
    [
        ("math_match", r"\$", "nothing is left of it"),
        ("math_match", "9" * 5000, "it is longer than 4,096 characters"),
        ("numeric_match", "many", "it is no number"),
        ("numeric_match", "1 or 2", "it is no number"),
        ("numeric_match", True, "it is bool, no text and no number"),
        ("exact_match", [], "it is an empty list"),
        ("exact_match", {"answer": "Paris"}, "it is NoneType, no text"),
        ("exact_match", " ", "it is empty"),
        ("f1", "the", "no word of it is compared"),
        ("multiple_choice", "Paris", "it is no letter"),
        ("set_match", [], "it holds nothing"),
        ("countdown", "24", "it needs a target and numbers"),
        ("countdown", {"target": 24, "numbers": []}, "numbers: List should have at least 1 item"),
        ("countdown", {"target": "24", "numbers": [1]}, "target: Input should be a valid integer"),
    ],
)
def test_a_right_answer_that_cannot_be_compared_is_refused(use: str, gold: Any, message: str) -> None:
    with pytest.raises(BadGold, match=message) as refused:
        make_scorer(use).checked(gold)

    assert "Paris" not in str(refused.value)
    assert "many" not in str(refused.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            "bleurt",
            r"unknown scorer 'bleurt'; known: countdown, exact_match, f1, math_match, multiple_choice, numeric_m",
        ),
        ("os.path:join", "is no subclass of"),
        ("nowhere:Mine", "cannot be imported"),
        ({"use": "f1", "tolerance": 1}, r"scorer f1: tolerance: .* \(it knows: answer\)"),
        ({"answer": "tag"}, "with its name as `use`"),
    ],
)
def test_an_unknown_scorer_is_refused_with_those_that_there_are(told: Any, message: str) -> None:
    with pytest.raises(UnknownPart, match=message):
        make_scorer(told)


def test_the_scorers_that_come_with_it() -> None:
    assert names_in(PACKAGE) == (
        "countdown", "exact_match", "f1", "math_match", "multiple_choice", "numeric_match", "set_match",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", Fraction(7)),
        ("(1 + 2) * 3", Fraction(9)),
        ("8 - 3 - 2", Fraction(3)),
        ("8 / 4 / 2", Fraction(1)),
        ("-2^2", Fraction(-4)),  # as in mathematics and in Python
        ("2^3^2", Fraction(512)),
        ("2 ** -1", Fraction(1, 2)),
        ("- - 3", Fraction(3)),
        (".5 + 0.25", Fraction(3, 4)),
        ("1/3 + 1/6", Fraction(1, 2)),
    ],
)
def test_arithmetic(text: str, value: Fraction) -> None:
    assert evaluate(text, powers=True).value == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it ends where a number is expected"),
        ("1 +", "it ends where a number is expected"),
        ("(1", "a parenthesis is not closed"),
        ("1)", "unexpected '\\)'"),
        ("1 2", "unexpected '2'"),
        ("x", "unexpected 'x'"),
        ("1 / (2 - 2)", "division by zero"),
        ("0 ^ -1", "division by zero"),
        ("2 ^ 0.5", "an exponent is a whole number"),
        ("9 ^ 9 ^ 9", "the value is too large"),
        ("2 ^ 2049", "the value is too large"),
        ("*".join(["9" * 150] * 6), "the value is too large"),
        ("(" * 60 + "1" + ")" * 60, "nested deeper than 50"),
        ("-" * 60 + "1", "nested deeper than 50"),
        ("1" * 1001, "longer than 1000 characters"),
        ("1\n+ 1", "unexpected"),
    ],
)
def test_what_is_no_arithmetic_or_too_large(text: str, message: str) -> None:
    with pytest.raises(ArithmeticFault, match=message):
        evaluate(text, powers=True)


def test_the_calculator_shows_whole_numbers_and_twelve_digits() -> None:
    calculator = Calculator()

    assert calculator.call("2^64") == "18446744073709551616"
    assert calculator.call("2 / 3") == "0.666666666667"
    assert calculator.call("6 / 3") == "2"
    with pytest.raises(ToolFault, match="division by zero"):
        calculator.call("1/0")
