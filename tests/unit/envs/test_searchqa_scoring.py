"""Exact match and F1, worked out by hand from SQuAD's and HotpotQA's rules."""

import pytest
from gymfleet_envs.searchqa.scoring import exact_match, f1, normal


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The  Quick-Brown Fox!", "quickbrown fox"),
        ("an apple, a day", "apple day"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("3,677 seated", "3677 seated"),
        ("«Été»", "«été»"),
        ("The The", ""),
    ],
)
def test_case_punctuation_articles_and_blanks_do_not_count(text: str, left: str) -> None:
    assert normal(text) == left


@pytest.mark.parametrize(
    ("answer", "golds", "right"),
    [
        (" beijing. ", ("Beijing",), True),
        ("Peking", ("Beijing", "Peking"), True),
        ("Beijing, China", ("Beijing",), False),
        ("Beijing Shanghai Peking", ("Beijing", "Shanghai"), False),
        ("", ("Beijing",), False),
        ("", ("The The",), False),
        ("the", ("The The",), False),
        ("the the", ("The The",), True),
        ("!", ("!!!",), False),
        ("!!!", ("!!!",), True),
        ("yes", ("no",), False),
        ("x", (), False),
    ],
)
def test_an_answer_is_right_as_a_whole(answer: str, golds: tuple[str, ...], right: bool) -> None:
    assert exact_match(answer, golds) is right


@pytest.mark.parametrize(
    ("answer", "golds", "value"),
    [
        pytest.param("Greenwich Village", ("Greenwich Village, New York City",), 2 * 1 * 0.4 / 1.4, id="2 of 5 words"),
        pytest.param("one two three four", ("one five",), 2 * 0.25 * 0.5 / 0.75, id="1 of 4, and 1 of 2"),
        pytest.param("one one", ("one",), 2 * 0.5 * 1 / 1.5, id="a word counts as often as it is there"),
        pytest.param("two", ("one", "two three"), 2 * 1 * 0.5 / 1.5, id="the best of the right answers"),
        pytest.param("the one", ("One!",), 1.0, id="an exact match"),
        pytest.param("yes it is", ("yes",), 0.0, id="no part of yes is right"),
        pytest.param("no", ("no way",), 0.0, id="nor is no a part"),
        pytest.param("four", ("one",), 0.0, id="nothing in common"),
        pytest.param("", ("one",), 0.0, id="nothing"),
    ],
)
def test_f1_is_the_harmonic_mean_over_words(answer: str, golds: tuple[str, ...], value: float) -> None:
    assert f1(answer, golds) == pytest.approx(value)
