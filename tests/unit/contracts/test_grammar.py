"""The grammars on hand-made replies."""

import pytest
from gymfleet_contracts.grammar import AGENTBENCH_OS, DBBENCH, GRAMMARS, REACT, SQLGYM, Grammar, get_grammar
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


OPERATE = "I look.\nAction: Operation\n```sql\nSELECT 1;\n```"
ANSWER = 'Found.\nAction: Answer\nFinal Answer: ["1", "2"]'


@pytest.mark.parametrize(
    ("text", "thought", "action", "well_formed"),
    [
        pytest.param(OPERATE, "I look.", "SELECT 1;", True, id="an operation"),
        pytest.param(ANSWER, "Found.", 'Final Answer: ["1", "2"]', True, id="an answer"),
        pytest.param("Thought: a\n" + ANSWER, "a\nFound.", 'Final Answer: ["1", "2"]', True, id="a marked thought"),
        pytest.param(f"{OPERATE}\n```sql\nSELECT 2\n```", "I look.", "SELECT 1;", False, id="the first block counts"),
        pytest.param(f"{OPERATE}\n{ANSWER}", "I look.", "SELECT 1;", False, id="the first action counts"),
        pytest.param("Action: Answer\nFinal Answer:", "", None, False, id="an empty answer"),
        pytest.param("Action: Operation\nSELECT 1", "", None, False, id="no block"),
        pytest.param("Action: Operation\n```sql\nSELECT 1", "", "SELECT 1", False, id="an open block"),
        pytest.param("SELECT 1", "SELECT 1", None, False, id="no action"),
        pytest.param("", "", None, False, id="nothing"),
    ],
)
def test_dbbench(text: str, thought: str, action: str | None, well_formed: bool) -> None:
    parsed = DBBENCH.parse(text)

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, well_formed)


QUERY = "Thought: I count.\n\nAction: ```sql\nSELECT COUNT(*) FROM t\n```"


@pytest.mark.parametrize(
    ("text", "thought", "action", "well_formed"),
    [
        pytest.param(QUERY, "I count.", "SELECT COUNT(*) FROM t", True, id="as recorded"),
        pytest.param(f"{QUERY}\n```sql\nSELECT 2\n```", "I count.", "SELECT 2", False, id="the last block counts"),
        pytest.param(f"{QUERY}\nThat is it.", "I count.", "SELECT COUNT(*) FROM t", False, id="talks on"),
        pytest.param("Thought: a\nAction: SELECT 1", "a", "SELECT 1", False, id="no block"),
        pytest.param("```sql\nSELECT 1", "", "SELECT 1", False, id="a block alone"),
        pytest.param("Thought: a\nAction: ```sql\n```", "a", None, False, id="an empty block"),
        pytest.param("", "", None, False, id="nothing"),
    ],
)
def test_sqlgym(text: str, thought: str, action: str | None, well_formed: bool) -> None:
    parsed = SQLGYM.parse(text)

    assert (parsed.action, parsed.well_formed) == (action, well_formed)
    assert parsed.thought.startswith(thought)


@pytest.mark.parametrize("grammar", [DBBENCH, SQLGYM], ids=lambda grammar: grammar.name)
@given(thought=WORDS, action=WORDS)
def test_sql_grammars_read_what_they_render(grammar: Grammar, thought: str, action: str) -> None:
    parsed = grammar.parse(grammar.render(thought, action))

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, True)


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=lambda grammar: grammar.name)
@given(st.text(alphabet="`sql\nAction: FinalAnswerOperation", max_size=200) | st.text())
def test_every_grammar_takes_any_text(grammar: Grammar, text: str) -> None:
    parsed = grammar.parse(text)

    assert parsed.action is None or parsed.action.strip() == parsed.action != ""
    assert not parsed.well_formed or parsed.action is not None


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=lambda grammar: grammar.name)
def test_no_grammar_takes_long(grammar: Grammar) -> None:
    for text in ("```sql " * 50_000, "Action: " * 50_000, "Action: Operation\n```sql" + "\n" * 100_000):
        grammar.parse(text)


BASH = "Think: I look.\n\nAct: bash\n\n```bash\nls /tmp/scratch\n```"


@pytest.mark.parametrize(
    ("grammar", "text", "complete"),
    [
        pytest.param(REACT, "Thought: a Action: rm -rf /tmp/scr", False, id="react: nothing ends the line"),
        pytest.param(REACT, "Thought: a Action: rm -rf /tmp/scratch\n", True, id="react: the line is ended"),
        pytest.param(REACT, "Thought: a Action: b\nThought: and", True, id="react: talks on in the next line"),
        pytest.param(REACT, "Thought: a Action:\nb", False, id="react: an open line behind the marker's own"),
        pytest.param(REACT, "Thought: a Action: b\nAction: c", False, id="react: the last action's line is open"),
        pytest.param(REACT, "Thought: a Action: \n", False, id="react: no action"),
        pytest.param(REACT, "Thought: I wonder", False, id="react: no marker"),
        pytest.param(DBBENCH, OPERATE, True, id="dbbench: a closed block"),
        pytest.param(DBBENCH, OPERATE[:-1], False, id="dbbench: two of three backticks"),
        pytest.param(DBBENCH, OPERATE + "\nI", True, id="dbbench: talks on behind the block"),
        pytest.param(DBBENCH, ANSWER, False, id="dbbench: the answer's line is open"),
        pytest.param(DBBENCH, ANSWER + "\n", True, id="dbbench: the answer's line is ended"),
        pytest.param(SQLGYM, QUERY, True, id="sqlgym: a closed block"),
        pytest.param(SQLGYM, QUERY[:-4], False, id="sqlgym: an open block"),
        pytest.param(SQLGYM, f"{QUERY}\n```sql\nDROP", False, id="sqlgym: the last block is open"),
        pytest.param(SQLGYM, "Thought: a\nAction: DROP TABLE t", False, id="sqlgym: no block, an open line"),
        pytest.param(AGENTBENCH_OS, BASH, True, id="os: a closed block"),
        pytest.param(AGENTBENCH_OS, BASH[:-1], False, id="os: two of three backticks"),
        pytest.param(AGENTBENCH_OS, f"I look. {BASH}\n```bash\nrm", False, id="os: another block is open"),
        pytest.param(AGENTBENCH_OS, f"{BASH}\n``", False, id="os: the begin of another block"),
        pytest.param(AGENTBENCH_OS, f"{BASH}\nSo", True, id="os: talks on behind the block"),
        pytest.param(AGENTBENCH_OS, "Think: a\n\nAct: finish", True, id="os: finish is a word"),
        pytest.param(AGENTBENCH_OS, "Think: a\n\nAct: fin", False, id="os: half of finish"),
        pytest.param(AGENTBENCH_OS, "Think: a\n\nAct: answer(f(1)", False, id="os: the answer's line is open"),
        pytest.param(AGENTBENCH_OS, "Think: a\n\nAct: answer(f(1))\n", True, id="os: the answer's line is ended"),
        pytest.param(AGENTBENCH_OS, "Act: answer(1) or", False, id="os: a sloppy answer in an open line"),
        pytest.param(AGENTBENCH_OS, "Act: answer(1) or\nso", True, id="os: a sloppy answer in an ended line"),
    ],
)
def test_only_what_the_format_itself_ends_survives_a_cut(grammar: Grammar, text: str, complete: bool) -> None:
    parsed = grammar.parse(text)

    assert parsed.complete is complete
    if complete:
        assert parsed.if_cut() == parsed
        assert parsed.action is not None
    else:
        assert (parsed.if_cut().action, parsed.if_cut().well_formed) == (None, False)
        assert parsed.if_cut().thought == parsed.thought


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=lambda grammar: grammar.name)
@given(st.text(alphabet="`sql\nAct: FinalAnswerOperationbash()", max_size=200), st.text(alphabet="abc )", max_size=9))
def test_more_of_the_same_line_changes_no_complete_action(grammar: Grammar, text: str, more: str) -> None:
    parsed = grammar.parse(text)

    if parsed.complete:
        assert grammar.parse(text + more).action == parsed.action
