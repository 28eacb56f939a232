"""What AgentGym's five tool environments share."""

import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_envs.agentgym_tools.answers import same
from gymfleet_envs.agentgym_tools.base import Faulty, Refused, spelled, taken
from gymfleet_envs.agentgym_tools.calls import NoCall, read_call
from gymfleet_envs.agentgym_tools.literals import MAX_CHARS, Unreadable, read_literal
from gymfleet_envs.agentgym_tools.published import PublishedTasks, listed, read_published
from gymfleet_envs.agentgym_tools.responses import Response, Responses, read_responses
from gymfleet_envs.agentgym_tools.toolbox import read_toolbox
from gymfleet_envs.tasks import TaskDataError, UnknownTask


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        pytest.param('get_x with Action Input: {"a": 1}', "get_x", {"a": 1}, id="an action alone"),
        pytest.param('Thought: t\n\nAction: get_x with Action Input: {"a": 1}', "get_x", {"a": 1}, id="a whole reply"),
        pytest.param("Action: get_x with Action Input: {}\n", "get_x", {}, id="one line break ends the text"),
        pytest.param("Thought: t Action: get_x with Action Input: {}", "get_x", {}, id="all in one line"),
        pytest.param("Action:  get_x  with\n Action Input:\n {}", "get_x", {}, id="line breaks around the words"),
        pytest.param("Action: a with Action Input: {}\nAction: b with Action Input: {}", "b", {}, id="the last line"),
        pytest.param(
            'Action: a with Action Input: {"q": "b with Action Input: c"}', "a", {"q": "b with Action Input: c"},
            id="the first in that line",
        ),
        pytest.param("Action: a with Action Input: {'a': 'b'}", "a", {"a": "b"}, id="Python's quotes"),
    ],
)  # fmt: skip
def test_calls_are_read_as_agentgyms_pattern_reads_them(text: str, name: str, arguments: Any) -> None:
    call = read_call(text)

    assert (call.name, call.arguments) == (name, arguments)


@pytest.mark.parametrize(
    "text",
    ["", "Action: get_x", "Action: get_x with Action Input {}", "Action: x with Action Input: {}\n\n",
     "Action: x with Action Input: {}\nI wait."],
)  # fmt: skip
def test_a_text_that_does_not_end_with_a_call_has_none(text: str) -> None:
    with pytest.raises(NoCall):
        read_call(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
        ("{'a': [1, -2.5, None, True, (1, 2)]}", {"a": [1, -2.5, None, True, (1, 2)]}),
        ("[[25.00 + 5], [2 * 3 - 8 / 4]]", [[30.0], [4.0]]),
        (r"{'q': re.compile('^8\d$')}", {"q": r"^8\d$"}),
        ("{'a': true, 'b': null}", {"a": True, "b": None}),
        ('{"a": "' + "-" * 50 + "[(" * 50 + r'\""}', {"a": "-" * 50 + "[(" * 50 + '"'}),
    ],
)
def test_literals(text: str, value: Any) -> None:
    assert read_literal(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "{", "a", "__import__('os')", "open('x')", "(lambda: 1)()", "2 ** 99", "1 / 0", "1e308 * 10", "'a' * 9",
     "{1: 2}", "{**{}}", "f'{x}'", "b'x'", "1j", "NaN", "[x for x in y]", "re.compile(x)", "os.compile('x')",
     "-" * 5000 + "1", "(" * 5000, "[" * 41 + "]" * 41, '{"a":' * 3000, "1" * 5000, "1" * (MAX_CHARS + 1),
     "0x" + "f" * 5000, "\x00", "not " * 999 + "1"],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(Unreadable):
        read_literal(text)


@pytest.mark.parametrize(
    ("gold", "given", "equal"),
    [
        pytest.param(18.5, 18.5, True, id="numbers"),
        pytest.param(0.0, 0, True, id="of any type"),
        pytest.param(18.5, "18.5", False, id="a number is no text"),
        pytest.param(18.5, 18.500001, False, id="no tolerance"),
        pytest.param(1, True, False, id="nor a truth value"),
        pytest.param(["b", "a"], ["a", "b"], True, id="lists in any order"),
        pytest.param(["a"], ["a", "b"], False, id="no more than asked for"),
        pytest.param(["a", "a"], ["a"], False, id="as often"),
        pytest.param("Yes", "yes", False, id="letters count"),
        pytest.param(None, None, True, id="nothing"),
        pytest.param([1, "a"], ["a", 1], False, id="what cannot be sorted is as it stands"),
    ],
)
def test_answers_are_compared_as_python_does(gold: Any, given: Any, equal: bool) -> None:
    assert same(gold, given) is equal


def test_a_call_is_one_line_whatever_it_says() -> None:
    text = spelled("get_x", {"a": "x\u2028y\nz", "b": "é"})

    assert text.splitlines() == [text]
    assert read_call(text).arguments == {"a": "x\u2028y\nz", "b": "é"}
    assert spelled("get_x", {"b": "é"}) == 'get_x with Action Input: {"b": "é"}'


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"b": 1}, "KeyError('a')"),
        ([1], "TypeError(list indices must be integers or slices, not str)"),
        ((1,), "TypeError(tuple indices must be integers or slices, not str)"),
        (3, "TypeError('int' object is no object)"),
    ],
)
def test_missing_arguments_are_told_in_pythons_words(arguments: Any, fault: str) -> None:
    with pytest.raises(Faulty) as told:
        taken(arguments, "a")

    assert str(told.value) == fault


def test_tools_are_read_out_of_what_the_model_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tools.txt"
    path.write_text(
        "Name: look(place, colour, limit)\nDescription: Look around.\nParameters:\n- place (Type: string): Where.\n"
        "- colour (Type: string, Enum: [red, blue])\n- limit (Type: integer): How many.\nReturns:\n"
        "- place (Type: string): Not a parameter.\n\nName: end(answer)\nDescription: End.\nParameters:\n"
        "- answer (Type: ['string', 'number', 'array']): It.\n\nDo it well.\n"
    )

    box = read_toolbox(path, optional=("limit",))

    assert [tool.name for tool in box.tools] == ["look", "end"]
    assert box.tools[0].description == "Look around."
    assert box.tools[0].parameters == {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "Where."},
            "colour": {"type": "string", "enum": ["red", "blue"]},
            "limit": {"type": "integer", "description": "How many."},
        },
        "additionalProperties": False,
        "required": ["place", "colour"],
    }
    assert box.tools[1].parameters["properties"] == {
        "answer": {"type": ["string", "number", "array"], "description": "It."}
    }
    assert "Name: look(place, colour, limit)\n" in box.instructions
    assert "Do it well.\n" in box.instructions


def row(**changes: Any) -> dict[str, Any]:
    extra = {"answer": "a", "tool": "movie", "init_config": None} | changes.pop("extra", {})
    return {"id": 7, "goal": "What?", "subgoals": ["a"], "additional_info": extra} | changes


def written(tmp_path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
    (tmp_path / "movie.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_published_tasks_have_agentgyms_numbers_and_splits(tmp_path: Path) -> None:
    read = read_published("movie", written(tmp_path, row(), row(id=3, goal="Line\u2028break?")))

    tasks: PublishedTasks[str] = listed("movie", [(one, one.goal) for one in read], tested={3})

    assert tasks.by_id("3").data == "Line\u2028break?"
    assert tasks.by_id("movie_7") == tasks.by_id("7") == tasks.by_index("train", "agentgym", 0)
    assert tasks.by_id("3").split == "test"
    with pytest.raises(UnknownTask):
        tasks.by_id("todo_7")
    with pytest.raises(TaskDataError, match="twice"):
        listed("movie", [(one, "x") for one in [read[0], read[0]]], tested=None)


@pytest.mark.parametrize(
    ("damaged", "fault"),
    [
        ("{", "movie.jsonl:2: it is no JSON"),
        ("[]", "a task is an object with id, goal"),
        (row(id="7"), "id is '7'; a number from 0 on is right"),
        (row(id=True), "id is True"),
        (row(goal=" "), "goal is no text"),
        (row(extra={"tool": "todo"}), "it is a task of 'todo'"),
        (row(extra={"init_config": ["2015-06-01"]}), "init_config is no object"),
        ({"id": 1, "goal": "g", "additional_info": {"answer": 1}}, "additional_info.answer"),
    ],
    ids=str,
)
def test_damaged_lines_are_refused_by_name(tmp_path: Path, damaged: Any, fault: str) -> None:
    with pytest.raises(TaskDataError, match=r"^movie: .*movie\.jsonl:2: ") as told:
        read_published("movie", written(tmp_path, row(), damaged))

    assert fault in str(told.value)


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=r"has no movie\.jsonl"):
        read_published("movie", tmp_path)
    with pytest.raises(TaskDataError, match="it has no task"):
        read_published("movie", written(tmp_path, ""))
    with pytest.raises(TaskDataError, match="no current_date or no current_location"):
        read_published("movie", written(tmp_path, row()), configured=True)


def test_responses_are_found_by_tool_and_arguments_however_ids_are_written() -> None:
    world = Responses(iter([Response("get_x", {"b": "2", "a": 1}, ["found"])]))

    assert world.use("get_x", {"a": "1", "b": 2}) == ["found"]
    for call in (("get_y", {"a": 1, "b": 2}), ("get_x", {"a": 1}), ("get_x", ["a"])):
        with pytest.raises(Refused, match="No response to this call was imported"):
            world.use(*call)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "JSONDecodeError"), ('{"tool": "x", "arguments": {}}', "KeyError"), ("[1]", "TypeError"),
        ('{"tool": 1, "arguments": {}, "result": 1}', "tool is no text"),
        ('{"tool": "x", "arguments": [], "result": 1}', "or arguments no object"),
    ],
)  # fmt: skip
def test_damaged_responses_are_refused_by_line(tmp_path: Path, line: str, fault: str) -> None:
    (tmp_path / "responses").mkdir()
    (tmp_path / "responses" / "movie.jsonl").write_text(f"\n{line}\n")

    with pytest.raises(TaskDataError, match=r"movie\.jsonl:2: ") as told:
        list(read_responses("movie", tmp_path))

    assert fault in str(told.value)
