"""The reply formats that come with gymfleet, on hand-made replies."""

from typing import Any

import pytest
from gymfleet_contracts.formats.agentbench_kg import AgentbenchKg
from gymfleet_contracts.formats.agentbench_os import AgentbenchOs
from gymfleet_contracts.formats.dbbench import Dbbench
from gymfleet_contracts.formats.plain import Plain
from gymfleet_contracts.formats.react import React
from gymfleet_contracts.formats.sqlgym import Sqlgym
from gymfleet_contracts.formats.tags import Tags, TagsOptions
from gymfleet_contracts.formats.think_act import ThinkAct
from gymfleet_contracts.reply_format import FormatOptions, ReplyFormat
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

REACT, DBBENCH = React(FormatOptions()), Dbbench(FormatOptions())
SQLGYM, AGENTBENCH_OS = Sqlgym(FormatOptions()), AgentbenchOs(FormatOptions())
AGENTBENCH_KG = AgentbenchKg(FormatOptions())
TAGS = Tags(TagsOptions())
THINK_ACT, PLAIN = ThinkAct(FormatOptions()), Plain(FormatOptions())
FORMATS = (REACT, DBBENCH, SQLGYM, AGENTBENCH_OS, AGENTBENCH_KG, TAGS)


def name_of(reply_format: ReplyFormat[Any]) -> str:
    return type(reply_format).__name__


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


@pytest.mark.parametrize(
    ("text", "thought", "action", "well_formed"),
    [
        pytest.param("Think: go left\nAct: move left", "go left", "move left", True, id="two lines"),
        pytest.param("Think: a\n\nAct: b\nand more", "a", "b", False, id="talks on"),
        pytest.param("Think: a Act: b Act: c", "a Act: b", "c", False, id="the last one counts"),
        pytest.param("Thought: a\nAction: b", "Thought: a\nAction: b", None, False, id="react"),
    ],
)
def test_think_act(text: str, thought: str, action: str | None, well_formed: bool) -> None:
    parsed = THINK_ACT.parse(text)

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, well_formed)
    assert THINK_ACT.render("a", "b") == "Think: a\nAct: b"


@pytest.mark.parametrize(
    ("text", "action", "well_formed"),
    [
        pytest.param("go left", "go left", True, id="a line"),
        pytest.param(" go left \n", "go left", True, id="blanks around it"),
        pytest.param("go\nleft", "go\nleft", False, id="two lines"),
        pytest.param("  \n", None, False, id="nothing"),
        pytest.param("Thought: a Action: b", "Thought: a Action: b", True, id="whatever stands there"),
    ],
)
def test_plain(text: str, action: str | None, well_formed: bool) -> None:
    parsed = PLAIN.parse(text)

    assert (parsed.thought, parsed.action, parsed.well_formed) == ("", action, well_formed)
    assert parsed.if_cut().action is None, "whatever was cut off may be half an action"
    assert PLAIN.render("a thought", "go left") == "go left"


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


CALL = "Thought: I look.\nAction: get_neighbors(A (b), c.d_e)"
DONE = "Thought: #1 is it.\nFinal Answer: #1"


@pytest.mark.parametrize(
    ("text", "thought", "action", "well_formed"),
    [
        pytest.param(CALL, "I look.", "get_neighbors(A (b), c.d_e)", True, id="a call"),
        pytest.param(DONE, "#1 is it.", "Final Answer: #1", True, id="an answer"),
        pytest.param(f"{CALL}\nAction: count(#0)", "I look.", "get_neighbors(A (b), c.d_e)", False, id="the first"),
        pytest.param(f"{CALL}\nFinal Answer: #1", "I look.\nAction: get_neighbors(A (b), c.d_e)", "Final Answer: #1",
                     False, id="an answer counts wherever it stands"),
        pytest.param(f"{CALL}\nObservation: #0\nFinal Answer: #0", "I look.", "get_neighbors(A (b), c.d_e)", False,
                     id="what it invents counts nothing"),
        pytest.param("I have it. Find Answer: #2 for sure", "I have it.", "Final Answer: #2", False, id="sloppy"),
        pytest.param("Action 1: count(\\_a)", "", "count(_a)", False, id="a number, and Markdown"),
        pytest.param("Thought: a\nAction:\ncount(#0)", "a", None, False, id="nothing in the line"),
        pytest.param("Final Answer: #x", "Final Answer: #x", None, False, id="no number"),
        pytest.param("", "", None, False, id="nothing"),
    ],
)  # fmt: skip
def test_agentbench_kg(text: str, thought: str, action: str | None, well_formed: bool) -> None:
    parsed = AGENTBENCH_KG.parse(text)

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


@pytest.mark.parametrize("reply_format", [DBBENCH, SQLGYM, AGENTBENCH_KG, TAGS], ids=name_of)
@given(thought=WORDS, action=WORDS)
def test_other_formats_read_what_they_render(reply_format: ReplyFormat[Any], thought: str, action: str) -> None:
    parsed = reply_format.parse(reply_format.render(thought, action))

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, True)


@pytest.mark.parametrize("reply_format", FORMATS, ids=name_of)
@given(st.text(alphabet="`sql\nAction: FinalAnswerOperation", max_size=200) | st.text())
def test_every_format_takes_any_text(reply_format: ReplyFormat[Any], text: str) -> None:
    parsed = reply_format.parse(text)

    assert parsed.action is None or parsed.action.strip() == parsed.action != ""
    assert not parsed.well_formed or parsed.action is not None


@pytest.mark.parametrize("reply_format", FORMATS, ids=name_of)
def test_no_format_takes_long(reply_format: ReplyFormat[Any]) -> None:
    for text in ("```sql " * 50_000, "Action: " * 50_000, "Action: Operation\n```sql" + "\n" * 100_000):
        reply_format.parse(text)


TAGGED = "<think>I look.</think><action>go left</action>"


@pytest.mark.parametrize(
    ("text", "thought", "action", "well_formed"),
    [
        pytest.param(TAGGED, "I look.", "go left", True, id="as rendered"),
        pytest.param(f" {TAGGED[:22]}\n\n{TAGGED[22:]}\n", "I look.", "go left", True, id="blanks outside of the tags"),
        pytest.param("<think>a\nb</think><action>c\n d</action>", "a\nb", "c\n d", True, id="several lines"),
        pytest.param("<think></think><action>x</action>", "", "x", True, id="an empty thought"),
        pytest.param("<think>a</think><action>1 < 2 & 3</action>", "a", "1 < 2 & 3", True, id="nothing is escaped"),
        pytest.param(f"{TAGGED}<action>b</action>", "I look.", "b", False, id="the last action counts"),
        pytest.param("<action>b</action>", "", "b", False, id="no thought"),
        pytest.param("I look. <action>b</action>", "I look.", "b", False, id="a thought without tags"),
        pytest.param("I look.</think><action>b</action>", "I look.", "b", False, id="the prompt opened the thought"),
        pytest.param("<action>b</action><think>a</think>", "", "b", False, id="in the wrong order"),
        pytest.param(f"{TAGGED} So", "I look.", "go left", False, id="talks on"),
        pytest.param(f"So {TAGGED}", "I look.", "go left", False, id="talks before"),
        pytest.param("<think>a</think> so <action>b</action>", "a", "b", False, id="talks between"),
        pytest.param("<think>a<action>b</action>", "a", "b", False, id="an open thought"),
        pytest.param("<think>a</think><action>b", "a", "b", False, id="an open action"),
        pytest.param("<think>a</think><action> </action>", "a", None, False, id="a blank action"),
        pytest.param("<think>a</think>", "a", None, False, id="no action"),
        pytest.param("<Action>b</Action>", "<Action>b</Action>", None, False, id="case"),
        pytest.param("", "", None, False, id="nothing"),
    ],
)
def test_tags(text: str, thought: str, action: str | None, well_formed: bool) -> None:
    parsed = TAGS.parse(text)

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, well_formed)


def test_tags_have_the_names_that_are_given() -> None:
    openmanus = Tags(TagsOptions(action_tag="act"))
    reasoning = Tags(TagsOptions(thought_tag="reasoning"))

    assert openmanus.render("a", "b") == "<think>a</think><act>b</act>"
    assert openmanus.parse("<think>a</think><act>b</act>").well_formed
    assert openmanus.parse(TAGGED).action is None
    assert "<act>your action</act>" in openmanus.instructions
    assert "<act>your action</act>" in openmanus.complaint
    assert reasoning.parse("<reasoning>a</reasoning><action>b</action>").well_formed
    assert not reasoning.parse(TAGGED).well_formed


@pytest.mark.parametrize("given", [{"action_tag": "think"}, {"action_tag": "a b"}, {"thought_tag": ""}, {"tag": "x"}])
def test_tags_that_cannot_be_told_apart_or_written_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TagsOptions.model_validate(given)


BASH = "Think: I look.\n\nAct: bash\n\n```bash\nls /tmp/scratch\n```"


@pytest.mark.parametrize(
    ("reply_format", "text", "complete"),
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
        pytest.param(AGENTBENCH_KG, CALL, False, id="kg: the call's line is open"),
        pytest.param(AGENTBENCH_KG, CALL + "\n", True, id="kg: the call's line is ended"),
        pytest.param(AGENTBENCH_KG, DONE, False, id="kg: #1 may become #12"),
        pytest.param(AGENTBENCH_KG, DONE + ".", True, id="kg: the number is ended"),
        pytest.param(TAGS, TAGGED, True, id="tags: a closed tag"),
        pytest.param(TAGS, TAGGED[:-1], False, id="tags: half of the closing tag"),
        pytest.param(TAGS, TAGGED + "So", True, id="tags: talks on behind the tag"),
        pytest.param(TAGS, TAGGED + "<action>go", False, id="tags: another action is open"),
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
def test_only_what_the_format_itself_ends_survives_a_cut(
    reply_format: ReplyFormat[Any], text: str, complete: bool
) -> None:
    parsed = reply_format.parse(text)

    assert parsed.complete is complete
    if complete:
        assert parsed.if_cut() == parsed
        assert parsed.action is not None
    else:
        assert (parsed.if_cut().action, parsed.if_cut().well_formed) == (None, False)
        assert parsed.if_cut().thought == parsed.thought


@pytest.mark.parametrize("reply_format", FORMATS, ids=name_of)
@given(st.text(alphabet="`sql\nAct: FinalAnswerOperationbash()", max_size=200), st.text(alphabet="abc )", max_size=9))
def test_more_of_the_same_line_changes_no_complete_action(reply_format: ReplyFormat[Any], text: str, more: str) -> None:
    parsed = reply_format.parse(text)

    if parsed.complete:
        assert reply_format.parse(text + more).action == parsed.action
