"""Formats that say more than a thought and an action in a line: AgentGym's, OpenManus', predictions, calls."""

import json
import re
from typing import Any

import pytest
from gymfleet_contracts.formats.agentgym import Agentgym
from gymfleet_contracts.formats.openmanus import Openmanus
from gymfleet_contracts.formats.outcome import Outcome
from gymfleet_contracts.formats.tool_call import ToolCall, ToolCallOptions
from gymfleet_contracts.reply_format import FormatOptions, ReplyFormat
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

AGENTGYM = Agentgym(FormatOptions())
OPENMANUS, STRICT = Openmanus(Openmanus.Options()), Openmanus(Openmanus.Options(demands_notes=True))
OUTCOME = Outcome(Outcome.Options())


def calls(**options: Any) -> ToolCall:
    return ToolCall(ToolCallOptions.model_validate(options))


HERMES, JSON = calls(), calls(style="agentgym")
ALFWORLD = calls(
    functions=[
        {"name": "goto", "action": "go to {place}"},
        {"name": "put", "action": "put {object} in/on {place}", "description": "Put down."},
        {"name": "look", "action": "look"},
    ]
)


def read(reply_format: ReplyFormat[Any], text: str) -> tuple[str, str | None, bool, bool]:
    parsed = reply_format.parse(text)
    return parsed.thought, parsed.action, parsed.well_formed, parsed.complete


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Thought:\nI see.\n\nAction:\nlook", ("I see.", "look", True, False), id="as published"),
        pytest.param("Thought:\na\nb\n\nAction:\nc\nd\n", ("a\nb", "c\nd", True, False), id="several lines"),
        pytest.param("Thought: a\n\nAction: b", ("a", "b", False, False), id="behind the markers"),
        pytest.param("Thought:\na\nAction:\nb", ("a", "b", False, False), id="no line between"),
        pytest.param("Thought:\na\n\nAction:\nb\n\nAction:\nc", ("a\n\nAction:\nb", "c", False, False), id="the last"),
        pytest.param("Thought:\na\n\nAction:\n  ", ("a", None, False, False), id="a blank action"),
        pytest.param("I think", ("I think", None, False, False), id="no action"),
    ],
)
def test_agentgym(text: str, expected: object) -> None:
    assert read(AGENTGYM, text) == expected


NOTED = "<think>a</think>\n<memory>m</memory>\n<plan>p</plan>\n<act>go</act>"


@pytest.mark.parametrize(
    ("text", "notes", "well_formed", "strictly"),
    [
        pytest.param(NOTED, {"memory": "m", "plan": "p"}, True, True, id="as published"),
        pytest.param(
            "<think>a</think><plan>p</plan><memory>m</memory><act>go</act>", {"memory": "m", "plan": "p"}, True, True,
            id="plan first",
        ),
        pytest.param("<think>a</think><plan>p</plan><act>go</act>", {"plan": "p"}, True, False, id="no memory"),
        pytest.param("<think>a</think><act>go</act>", {}, True, False, id="neither"),
        pytest.param(
            "<think>a</think><plan></plan><memory>m</memory><act>go</act>", {"memory": "m"}, True, True, id="empty plan"
        ),
        pytest.param("<plan>p</plan><think>a</think><act>go</act>", {"plan": "p"}, False, False, id="plans first"),
        pytest.param("<think>a</think><act>go</act><plan>p</plan>", {}, False, False, id="plans too late"),
        pytest.param("<think>a<plan>p</plan></think><act>go</act>", {"plan": "p"}, False, False, id="nested"),
        pytest.param(f"{NOTED} So", {"memory": "m", "plan": "p"}, False, False, id="talks on"),
    ],
)  # fmt: skip
def test_openmanus(text: str, notes: dict[str, str], well_formed: bool, strictly: bool) -> None:
    parsed, strict = OPENMANUS.parse(text), STRICT.parse(text)

    assert (parsed.action, parsed.notes, parsed.well_formed) == ("go", notes, well_formed)
    assert (strict.action, strict.notes, strict.well_formed) == ("go", notes, strictly)


def test_openmanus_is_written_with_its_notes() -> None:
    assert OPENMANUS.render_notes("a", "go", {"plan": "p", "memory": "m"}) == NOTED
    assert OPENMANUS.render("a", "go") == "<think>a</think>\n<act>go</act>"
    assert STRICT.render("a", "go") == "<think>a</think>\n<memory></memory>\n<plan></plan>\n<act>go</act>"


def test_a_prediction_is_kept() -> None:
    text = OUTCOME.render_notes("a", "go", {"prediction": "A door."})

    parsed = OUTCOME.parse(text)

    assert text == "<think>a</think>\n<prediction>A door.</prediction>\n<action>go</action>"
    assert (parsed.thought, parsed.action, parsed.notes) == ("a", "go", {"prediction": "A door."})
    assert parsed.well_formed
    assert OUTCOME.parse(OUTCOME.render("my prediction", "go")).notes == {}
    assert OUTCOME.parse(OUTCOME.render("my prediction", "go")).well_formed
    assert not Outcome(Outcome.Options(demands_notes=True)).parse(OUTCOME.render("a", "go")).well_formed


def hermes(call: str, before: str = "I go.\n", after: str = "") -> str:
    return f"{before}<tool_call>\n{call}\n</tool_call>{after}"


GO = '{"name": "goto", "arguments": {"place": "shelf 1"}}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(hermes(GO), ("I go.", "go to shelf 1", True, True), id="a call"),
        pytest.param(hermes(GO, ""), ("", "go to shelf 1", True, True), id="without a thought"),
        pytest.param(hermes('{"name": "look", "arguments": {}}'), ("I go.", "look", True, True), id="no arguments"),
        pytest.param(hermes('{"name": "look"}'), ("I go.", "look", True, True), id="none named"),
        pytest.param(hermes(GO)[:-1], ("I go.", None, False, False), id="half a closing tag"),
        pytest.param(hermes(GO, after=" So"), ("I go.", "go to shelf 1", False, True), id="talks on"),
        pytest.param(hermes('{"name": "fly", "arguments": {}}'), ("I go.", None, False, False), id="no such function"),
        pytest.param(hermes('{"name": "goto", "arguments": {}}'), ("I go.", None, False, False), id="one missing"),
        pytest.param(
            hermes('{"name": "look", "arguments": {"at": "x"}}'), ("I go.", None, False, False), id="one too many"
        ),
        pytest.param(
            hermes('{"name": "goto", "arguments": {"place": 1}}'), ("I go.", None, False, False), id="no text"
        ),
        pytest.param(
            hermes('{"name": "goto", "arguments": {"place": " "}}'), ("I go.", None, False, False), id="a blank"
        ),
        pytest.param(hermes('{"name": "goto", "arguments": "x"}'), ("I go.", None, False, False), id="no object"),
        pytest.param(hermes('{"name": ["goto"]}'), ("I go.", None, False, False), id="no name"),
        pytest.param(hermes('{"name": "look", "x": 1}'), ("I go.", None, False, False), id="an unknown key"),
        pytest.param(hermes('{"name": "look", "name": "look"}'), ("I go.", None, False, False), id="a key twice"),
        pytest.param(hermes('{"name": "look", "arguments": NaN}'), ("I go.", None, False, False), id="NaN"),
        pytest.param(hermes('"look"'), ("I go.", None, False, False), id="a text"),
        pytest.param(hermes('{"name": "look"'), ("I go.", None, False, False), id="broken"),
        pytest.param(
            hermes('{"name": "goto", "arguments": {"place": "\\ud800"}}'), ("I go.", None, False, False), id="surrogate"
        ),
        pytest.param(hermes(hermes(GO, ""), "a "), ("a <tool_call>", "go to shelf 1", False, True), id="nested"),
        pytest.param("go to shelf 1", ("go to shelf 1", None, False, False), id="no call"),
    ],
)  # fmt: skip
def test_a_call(text: str, expected: tuple[str, str | None, bool, bool]) -> None:
    assert read(ALFWORLD, text) == expected


@pytest.mark.parametrize(
    "nasty",
    [
        pytest.param("[" * 60_000, id="deep lists"),
        pytest.param('{"a":' * 10_000, id="deep objects"),
        pytest.param('{"name": "act", "arguments": {"action": ' + "[" * 20 + "]" * 20 + "}}", id="too deep"),
        pytest.param('{"name": "act", "arguments": {"action": "' + "a" * 70_000 + '"}}', id="too long"),
        pytest.param('{"name": "act", "arguments": {"action": ' + "9" * 5_000 + "}}", id="a long number"),
        pytest.param('{"name": "act", "arguments": {"action": "a", "action": "b"}}', id="two actions"),
    ],
)
def test_nasty_json_is_no_action(nasty: str) -> None:
    assert HERMES.parse(hermes(nasty)).action is None
    assert JSON.parse(nasty.replace('"name"', '"function_name"')).action is None


def test_agentgym_style() -> None:
    text = '{"thought": "I go.", "function_name": "act", "arguments": {"action": "look"}}'

    assert JSON.render("I go.", "look") == text
    assert read(JSON, text) == ("I go.", "look", True, True)
    assert read(JSON, f"So: {text}") == ("I go.", "look", False, True)
    assert read(JSON, text[:-1])[1:] == (None, False, False)
    assert JSON.parse("} {").action is None


@given(st.text(min_size=1).filter(str.strip), st.text())
def test_any_action_is_called_and_read_back(action: str, thought: str) -> None:
    for reply_format in (HERMES, JSON):
        parsed = reply_format.parse(reply_format.render(thought.replace("<", ""), action))
        assert parsed.action == action.strip()


@pytest.mark.parametrize(
    ("action", "call"),
    [
        ("go to shelf 1", {"name": "goto", "arguments": {"place": "shelf 1"}}),
        ("put apple 2 in/on fridge 1", {"name": "put", "arguments": {"object": "apple 2", "place": "fridge 1"}}),
        ("look", {"name": "look", "arguments": {}}),
    ],
)
def test_an_action_finds_its_function(action: str, call: dict[str, Any]) -> None:
    written = ALFWORLD.render("", action)

    assert json.loads(written.removeprefix("<tool_call>").removesuffix("</tool_call>")) == call
    assert ALFWORLD.parse(written).action == action


def test_an_action_of_no_function_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="none of the functions goto, put, look spells the action 'open door'"):
        ALFWORLD.render("", "open door")


def test_the_functions_are_declared_with_schemas() -> None:
    declared = [json.loads(line) for line in ALFWORLD.instructions.splitlines() if line.startswith('{"name": "')][:3]

    assert [tool["name"] for tool in declared] == ["goto", "put", "look"]
    assert [tool["description"] for tool in declared] == ["Do: go to {place}", "Put down.", "Do: look"]
    for tool in declared:
        Draft202012Validator.check_schema(tool["parameters"])
    put = Draft202012Validator(declared[1]["parameters"])
    assert put.is_valid({"object": "a", "place": "b"})
    assert not put.is_valid({"object": "a"})
    assert not put.is_valid({"object": "a", "place": "b", "x": "c"})


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        ([{"name": "a", "action": "{x}{y}"}], "two arguments with nothing between them"),
        ([{"name": "a", "action": "{x} {x}"}], "names an argument twice"),
        ([{"name": "a", "action": "go {X}"}], "has a brace that belongs to no argument"),
        ([{"name": "a", "action": "go"}, {"name": "a", "action": "stop"}], "two functions are called a"),
        ([{"name": "a b", "action": "go"}], "match pattern"),
        ([], "at least 1 item"),
    ],
)
def test_functions_that_cannot_be_told_apart_are_refused(functions: list[dict[str, str]], reason: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(reason)):
        calls(functions=functions)
