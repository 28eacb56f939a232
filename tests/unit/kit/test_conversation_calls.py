"""Conversations with calls of functions: what files say of them, what is trained, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, MadeCall
from gymfleet_contracts.rollout import TemplateOptions
from gymfleet_contracts.session import Tool
from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.filter import dialogue, replies
from gymfleet_kit.data.inspecting import HALLUCINATED, OFFERED, _facts
from gymfleet_kit.data.losses import differences
from gymfleet_kit.data.tools import offered_tools, tool_use
from gymfleet_trainer.errors import TrainerError
from gymfleet_trainer.run.conversations import render

from tests.models import build_tokenizer

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Looks.", "parameters": PARAMETERS},
}
WEATHER = Tool(name="weather", description="Looks.", parameters=PARAMETERS)
MADE = MadeCall(name="weather", arguments={"city": "Kyoto"}, id="c1")
ASKED = {"role": "user", "content": "Rain?"}
ANSWER = {"role": "tool", "content": "no", "tool_call_id": "c1"}
DRY = {"role": "assistant", "content": "It is dry."}
# Qwen's form, as published templates have it: declarations in front, calls between tags, results as a message.
QWEN = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def called(arguments: Any = '{"city": "Kyoto"}', **more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **more}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [ASKED, *messages], **more}


def conversation(record: dict[str, Any], use: Any = "messages") -> Conversation:
    (one,) = converter_of(use, table="converter").convert(record)
    assert isinstance(one, Conversation)
    return one


WHOLE = chat(called(), ANSWER, DRY, tools=[TOOL])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    build_tokenizer(chat_template=QWEN).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", ['{"city": "Kyoto"}', '{ "city":"Kyoto" }', {"city": "Kyoto"}])
@pytest.mark.parametrize("tools", [[TOOL], [TOOL["function"]], json.dumps([TOOL]), json.dumps([TOOL["function"]])])
def test_arguments_and_declarations_are_objects_or_json_text(arguments: Any, tools: Any) -> None:
    one = conversation(chat(called(arguments), ANSWER, DRY, tools=tools))

    assert one.tools == (WEATHER,)
    assert one.messages[1].tool_calls == (MADE,)
    assert (one.messages[1].content, one.messages[2].tool_call_id) == ("", "c1")


def test_what_is_written_is_what_was_read() -> None:
    converter = converter_of("messages", table="x")
    record = chat(called(reasoning_content="I look."), ANSWER | {"name": "weather"}, DRY, tools=[TOOL])

    written = converter.write(conversation(record))

    record["messages"][1]["content"] = ""
    assert (written.record, written.lost) == (record, frozenset())


def test_the_function_calls_of_before_are_read() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": ""}}

    record = chat(old, {"role": "function", "name": "weather", "content": "no"}, DRY)
    one = conversation(record | {"functions": [TOOL["function"]]})

    assert one.messages[1].tool_calls == (MadeCall(name="weather"),)
    assert one.tools == conversation(chat(old, DRY, tools=[TOOL])).tools != ()
    assert (one.messages[2].role, one.messages[2].name) == ("tool", "weather")


def test_sharegpt_with_function_calls() -> None:
    chats = [
        {"from": "human", "value": "Rain?"}, {"from": "function_call", "value": '{"name": "weather", "arguments": {}}'},
        {"from": "observation", "value": "no"}, {"from": "gpt", "value": "It is dry."},
    ]  # fmt: skip
    record = {"conversations": chats, "tools": [TOOL]}

    one = conversation(record, "sharegpt")
    written = converter_of("sharegpt", table="x").write(one)

    assert one.messages[1].tool_calls == (MadeCall(name="weather"),)
    assert (written.record, written.lost) == (record, frozenset())
    assert converter_of("sharegpt", table="x").write(conversation(WHOLE)).lost == {"call_ids"}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (chat(called("{"), DRY), "message 2: tool_calls: arguments: an object is wanted, or one as JSON text"),
        (chat(called('{"a": 1, "a": 2}'), DRY), "arguments: an object is wanted"),
        (chat(called([1]), DRY), "arguments: an object is wanted"),
        (chat(called({"a": "x" * 70_000}), DRY), "of at most 65536 characters"),
        (chat(DRY, tools="{"), "tools: a text that is no JSON"),
        (chat(DRY, tools={"name": "x"}), "tools: a list is wanted"),
        (chat(DRY, tools=[{"type": "web_search"}]), "name: text is wanted; it is missing"),
        (chat(DRY, tools=[TOOL["function"] | {"returns": "x"}]), "function 1 has 'returns', which is none of name"),
        (chat(DRY, tools=[TOOL, TOOL]), "tools: two are called weather"),
    ],
)
def test_what_is_no_call_is_a_line(record: dict[str, Any], told: str) -> None:
    with pytest.raises(UnusableRecord) as caught:
        conversation(record)

    assert told in str(caught.value)


@pytest.mark.parametrize("to", ["openmanus", "prompt_reply", "agentgym", {"use": "messages", "tool_calls": "text"}])
def test_a_form_of_texts_refuses_calls(to: Any) -> None:
    one = conversation(chat(called(), tools=[TOOL])).model_copy(update={"id": "maze_1"})

    with pytest.raises(UnusableRecord, match="calls a function, and this form holds texts"):
        converter_of(to, table="x").write(one)


def test_other_calls_or_thoughts_are_another_record() -> None:
    one, other = conversation(WHOLE), conversation(chat(called({"city": "Nara"}), ANSWER, DRY, tools=[TOOL]))

    assert differences(one, other) == {"text"}
    assert differences(one, conversation(chat(called(reasoning_content="x"), ANSWER, DRY, tools=[TOOL]))) == {
        "reasoning"
    }
    assert differences(one, conversation(chat(called(), ANSWER, DRY))) == {"tools"}


def test_inspect_tells_calls_of_what_is_declared_from_others() -> None:
    other = chat(called(), tools=[TOOL["function"] | {"name": "news"}])
    use = tool_use([conversation(WHOLE), conversation(other)])

    assert offered_tools(conversation(WHOLE)) == {"weather"}
    assert (use.num_calls, dict(use.hallucinated)) == (2, {"weather": 1})
    assert f"calls:{OFFERED}" in _facts(conversation(WHOLE))
    assert f"calls:{HALLUCINATED}" in _facts(conversation(other))


def test_filters_see_thoughts_and_calls() -> None:
    one = conversation(chat(called(reasoning_content="I look."), ANSWER, DRY, tools=[TOOL]))
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Kyoto"}}\n</tool_call>'

    assert replies(one) == [f"I look.\n{call}", "It is dry."]
    assert dialogue(one)[1] == ("assistant", f"I look.\n{call}")


def test_exactly_the_assistants_tokens_are_trained(model: Path) -> None:
    tokenizer = build_tokenizer()

    (sequence,) = render([conversation(WHOLE)], model, 4096).sequences

    trained = [token for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True) if taught]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Kyoto"}}\n</tool_call><|im_end|>'
    assert tokenizer.decode(trained) == f"{call}It is dry.<|im_end|>"
    assert tokenizer.decode(sequence.token_ids) == (
        f"<|im_start|>system\n{json.dumps(TOOL)}\n<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n"
        f"{call}\n<|im_start|>tool\nno<|im_end|>\n<|im_start|>assistant\nIt is dry.<|im_end|>"
    )


def test_a_call_that_is_not_learned_from_is_context(model: Path) -> None:
    (sequence,) = render([conversation(chat(called(weight=0), ANSWER, DRY, tools=[TOOL]))], model, 4096).sequences

    trained = [token for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True) if taught]
    assert build_tokenizer().decode(trained) == "It is dry.<|im_end|>"


TWO = {"tool_calls": called()["tool_calls"] * 2}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (chat(called(), ANSWER, DRY), "message 2 calls a function, and the conversation declares none in `tools`"),
        (
            chat(called(**TWO), ANSWER, DRY, tools=[TOOL]),
            "message 2 calls 2 functions at once, and a reply",
        ),
        (
            chat(called(), ANSWER | {"tool_call_id": "c2"}, DRY, tools=[TOOL]),
            "message 3 answers the call 'c2', and the one ahead of it is 'c1'",
        ),
        (chat(called(reasoning_content="Hm."), ANSWER, DRY, tools=[TOOL]), "message 2 has thoughts, for which"),
    ],
)
def test_what_cannot_be_trained_is_a_line_with_its_place(model: Path, record: dict[str, Any], told: str) -> None:
    one = conversation(record).model_copy(update={"source": "chats.jsonl, line 7"})

    with pytest.raises(TrainerError) as caught:
        render([one], model, 4096)

    assert str(caught.value).startswith(f"chats.jsonl, line 7: {told}")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        pytest.param(
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
            "it declares functions in `tools`, and no functions can be called: ", id="no calls",
        ),
        pytest.param(
            QWEN.replace("{{ tool | tojson }}", ""),
            "it declares functions in `tools`, and the chat template declares no functions: it leaves out 'weather'",
            id="no declarations",
        ),
    ],
)  # fmt: skip
def test_a_template_without_tools_refuses_the_data(tmp_path: Path, template: str, told: str) -> None:
    build_tokenizer(chat_template=template).save_pretrained(tmp_path)

    with pytest.raises(TrainerError) as caught:
        render([conversation(WHOLE)], tmp_path, 4096)

    assert str(caught.value).startswith(f"conversation 1: {told}")


def test_thoughts_are_learned_in_the_templates_own_place(tmp_path: Path) -> None:
    thoughts = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    thinking = QWEN.replace("{{ m.content or '' }}", thoughts + "{{ m.content or '' }}")
    build_tokenizer(chat_template=thinking).save_pretrained(tmp_path)
    record = chat(called(reasoning_content="I look."), ANSWER, DRY, tools=[TOOL])

    (sequence,) = render([conversation(record)], tmp_path, 4096, TemplateOptions()).sequences

    trained = [token for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True) if taught]
    assert build_tokenizer().decode(trained).startswith("<think>\nI look.\n</think>\n\n<tool_call>\n{")
