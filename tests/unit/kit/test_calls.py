"""Calls of functions as published templates have them: values of every type, sloppy writing, and what is no call."""

import html
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.reply_format import ModelReply
from gymfleet_contracts.session import Tool, ToolCall
from gymfleet_kit.chat.calls import learned
from gymfleet_kit.chat.dialect import Dialect
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokens import ChatTokens

from tests.published_templates import FILES, chat_of, tokenizer_of

BOOK = Tool(
    name="book",
    description="Book it.",
    parameters={
        "type": "object",
        "properties": {
            name: {"type": kind, "description": name}
            for name, kind in (
                ("who", "string"), ("seats", "integer"), ("price", "number"), ("window", "boolean"), ("dates", "array"),
                ("more", "object"),
            )
        },
        "required": ["who"],
    },
)  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "who": ["Ann", "12", "true", "a \"b\" 'c'", "  padded ", "two\nlines", "é 漢"],
    "seats": [0, -3, 12_345], "price": [1.5], "window": [True, False],
    "dates": [["a", "b"], []], "more": [{"a": 1, "b": ["c"]}],
}  # fmt: skip


@cache
def booking(file: Path) -> ChatTokens | None:
    try:
        return ChatTokens(tokenizer_of(file), tools=(BOOK,))
    except UnusableTemplate:
        return None


def rendered(dialect: Dialect, call: ToolCall) -> str:
    """The call as the template writes it, behind thoughts that are ended."""
    assert dialect.form is not None
    text = dialect._written(dialect.form, dialect.call_end, call)
    return f"hm{dialect.thinking.end}{text}" if dialect.thinking and dialect.thinking.opened else text


TEMPLATES = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@TEMPLATES
def test_values_keep_their_types(file: Path) -> None:
    chat = booking(file)
    if chat is None:
        return
    spoiled = []
    for name, values in VALUES.items():
        for value in values:
            arguments = {"who": "Ann"} | {name: value}
            text = rendered(chat.dialect, ToolCall(name="book", arguments=arguments))
            calls = chat.dialect.read(text).calls
            if not calls or calls[0].arguments != arguments:
                spoiled.append((name, value))
    # Gemma writes objects in a notation of its own, and LFM2 and MiniCPM5 as Python does: that is no JSON.
    assert {name for name, _ in spoiled} <= {"more", "dates", "who"}, spoiled
    assert [value for name, value in spoiled if name == "who"] in ([], ["  padded "], ["two\nlines", "a \"b\" 'c'"]), (
        spoiled
    )


QWEN, LLAMA = "Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct"
SLOPPY: list[tuple[str, str]] = [
    (QWEN, '<tool_call>{"name": "act", "arguments": {"action": "go"}}</tool_call>'),
    (QWEN, 'I go.\n<tool_call>\n{"arguments":{"action":"go"},"name":"act"}\n</tool_call>\n'),
    (
        "Qwen3.5-4B",
        "<think>\nx\n</think>\n<tool_call><function=act><parameter=action>go</parameter></function></tool_call>",
    ),
    (LLAMA, '{"name": "act", "parameters": {"action": "go"}}'),
    (LLAMA, 'I go.\n{"name":"act","parameters":{"action":"go"}}'),
    (
        "moonshotai-Kimi-K2",
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.act:7<|tool_call_argument_begin|>"
            '{"action":"go"}<|tool_call_end|><|tool_calls_section_end|>'
        ),
    ),
    ("Mistral-Small-3.2-24B-Instruct-2506", '[TOOL_CALLS]act[CALL_ID]aB3dE6gH9[ARGS]{"action": "go"}'),
    (
        "openai-gpt-oss-120b",
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
            'to=functions.act <|constrain|>json<|message|>{"action": "go"}'
        ),
    ),
    (
        "GLM-4.7-Flash",
        "x</think>\n<tool_call>act\n<arg_key>action</arg_key>\n<arg_value>go</arg_value>\n</tool_call>",
    ),
]


@TEMPLATES
def test_a_call_may_have_no_arguments_and_two_calls_are_none(file: Path) -> None:
    chat = booking(file)
    if chat is None:
        return
    call = ToolCall(name="book", arguments={})
    text = rendered(chat.dialect, call)

    assert chat.dialect.read(text).calls == (call,)
    if not chat.dialect._has_channels:  # whose reader returns both
        assert chat.dialect.form is not None
        again = chat.dialect._written(chat.dialect.form, chat.dialect.call_end, call)
        twice = chat.dialect.read(f"{text}\n{again}")
        assert (twice.calls, twice.clean) == ((), False)


@pytest.mark.parametrize(("name", "text"), SLOPPY)
def test_what_models_write_in_their_own_way_is_read(name: str, text: str) -> None:
    file = next((file for file in FILES if file.stem == name), None)
    if file is None:
        pytest.skip("the published templates are not beside the project")

    reply = chat_of(file, tools=True).dialect.read(text)

    assert reply.calls == (ToolCall(name="act", arguments={"action": "go"}),)
    assert reply.clean


@TEMPLATES
def test_replies_that_are_made_to_be_slow_are_read_at_once(file: Path) -> None:
    try:
        chat = chat_of(file, tools=True)
    except UnusableTemplate:
        return
    written = chat.dialect.write(ModelReply("", calls=(ToolCall(name="act", arguments={"action": "go"}),)))
    third = len(written) // 3
    for part in (written, written[:third], written[third : 2 * third], "{", '[{"', " ", "\n"):
        text = (part * (100_000 // len(part) + 1))[:100_000]
        began = time.process_time()

        chat.dialect.read(text)
        chat.dialect.read(written[: 2 * third] + text)

        assert time.process_time() - began < 2


def test_a_call_that_cannot_be_told_from_a_text_has_no_syntax() -> None:
    assert learned(lambda call: f"I call {call.name}.") is None
    assert learned(lambda call: f"<call>{call.name}</call>") is None
    assert learned(lambda call: f"<call>{call.name}({len(call.arguments)})</call>") is None
    assert learned(lambda call: f"<call>{call.model_dump_json()}</call>") is not None


def tagged(call: ToolCall) -> str:
    """A call as many templates write it: each argument between tags of its own, with values as they are."""
    arguments = "".join(
        f"<arg={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</arg>\n"
        for key, value in call.arguments.items()
    )
    return f"<call={call.name}>\n{arguments}</call>"


def escaped(call: ToolCall) -> str:
    """The same with values as XML writes them."""
    arguments = {key: html.escape(one) if isinstance(one, str) else one for key, one in call.arguments.items()}
    return tagged(ToolCall(name=call.name, arguments=arguments))


@pytest.mark.parametrize("text", ["a &amp; b", "&lt;", "<![CDATA[x]]>"])
def test_a_value_is_unescaped_only_where_the_template_escapes(text: str) -> None:
    call = ToolCall(name="book", arguments={"who": text})

    for written in (tagged, escaped):
        syntax = learned(written)
        assert syntax is not None
        found = syntax.read(written(call), {"book": BOOK})
        assert found is not None
        assert found.call == call


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "2019", "2019"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "2019", 2019),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "20.5", "20.5"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({"type": "number"}, "1", 1),
        ({"type": "array"}, '["1"]', ["1"]),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}, "1", 1),
        ({}, "1", 1),
        (True, "1", 1),
    ],
)
def test_a_value_has_a_type_that_its_schema_allows(schema: Any, text: str, value: Any) -> None:
    tool = Tool(name="book", description="", parameters={"type": "object", "properties": {"who": schema}})
    syntax = learned(tagged)
    assert syntax is not None

    found = syntax.read(tagged(ToolCall(name="book", arguments={"who": text})), {"book": tool})

    assert found is not None
    assert found.call.arguments == {"who": value}
    assert type(found.call.arguments["who"]) is type(value)
