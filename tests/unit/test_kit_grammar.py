"""The `react` grammar on hand-made replies."""

import pytest
from gymfleet_contracts.grammar import GRAMMARS, REACT, get_grammar
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "thought", "action", "well_formed"),
    [
        pytest.param("Thought: go left. Action: move left", "go left.", "move left", True, id="one line"),
        pytest.param("Thought: go left.\nAction: move left", "go left.", "move left", True, id="two lines"),
        pytest.param("  Thought: a\n\n Action:\n  b  \n", "a", "b", True, id="spaces and an action on its own line"),
        pytest.param("Thought: a\nb\nc\nAction: d", "a\nb\nc", "d", True, id="a thought of several lines"),
        pytest.param("Thought: Action: d", "", "d", True, id="an empty thought"),
        pytest.param("", "", None, False, id="nothing"),
        pytest.param("   \n\t", "", None, False, id="blanks"),
        pytest.param("qwxz 77 ]]]", "qwxz 77 ]]]", None, False, id="garbage"),
        pytest.param("Thought: I wonder", "I wonder", None, False, id="no action"),
        pytest.param("Thought: a Action:", "a", None, False, id="an empty action"),
        pytest.param("Thought: a Action:   \n \n", "a", None, False, id="a blank action"),
        pytest.param("Action: move", "", "move", False, id="no thought: sloppy, but it can be played"),
        pytest.param("I think. Action: move", "I think.", "move", False, id="no marker before the thought"),
        pytest.param(
            "Thought: a Action: b Action: c", "a Action: b", "c", False, id="several actions: the last one counts"
        ),
        pytest.param("Thought: a Action: b\nThought: c", "a", "b", False, id="talks on after the action"),
        pytest.param("Thought: a Action: b\nObservation: won", "a", "b", False, id="invents the observation"),
        pytest.param("thought: a action: b", "thought: a action: b", None, False, id="wrong case"),
        pytest.param(
            "Thought: a Action: \x00\x1b[31m", "a", "\x00\x1b[31m", True, id="control characters pass through"
        ),
    ],
)
def test_parse(text: str, thought: str, action: str | None, well_formed: bool) -> None:
    parsed = REACT.parse(text)

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, well_formed)


WORDS = st.lists(st.from_regex(r"[a-z0-9,.']{1,12}", fullmatch=True), min_size=1, max_size=8).map(" ".join)


@given(thought=WORDS, action=WORDS)
def test_what_is_rendered_is_read_back(thought: str, action: str) -> None:
    parsed = REACT.parse(REACT.render(thought, action))

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, True)


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    parsed = REACT.parse(text)

    assert parsed.action is None or parsed.action.strip() == parsed.action != ""
    assert not parsed.well_formed or parsed.action is not None


def test_a_long_reply_does_not_take_long() -> None:
    parsed = REACT.parse("Thought: " + "Action " * 50_000 + "\n" * 50_000)

    assert parsed.action is None


def test_an_unknown_grammar_names_the_known_ones() -> None:
    assert get_grammar("react") is GRAMMARS["react"]
    with pytest.raises(KeyError, match=r"unknown action grammar 'reactt'; known: .*react"):
        get_grammar("reactt")
