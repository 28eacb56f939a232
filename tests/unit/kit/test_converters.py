"""Converters: what ours make of a record, which records they refuse, and those that fail."""

import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation
from gymfleet_kit.data.converter import UnusableRecord, field
from gymfleet_kit.data.converter_checks import examine
from gymfleet_kit.data.converting import CONVERTERS, ConverterFailed, converter_of, learnable
from gymfleet_kit.data.reading import DataError
from gymfleet_kit.plugins import PluginError

HEAD = '''
from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, field


def pair(text):
    return Conversation(messages=(Message(role="user", content="?"), Message(role="assistant", content=text)))


class Mine(Converter):
    """One of somebody's own."""

    examples = ({"text": "hello"},)

    def convert(self, record):
'''


def only(found: list[Any]) -> Conversation:
    (one,) = found
    assert isinstance(one, Conversation)
    return one


def made(given: Any, record: dict[str, Any]) -> list[tuple[str, str, bool]]:
    found = only(converter_of(given, table="converter").convert(record))
    return [(message.role, message.content, message.teaches) for message in found.messages]


def test_openai_messages() -> None:
    record: dict[str, Any] = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
            {"role": "assistant", "content": "c", "weight": 0},
            {"role": "tool", "content": "d", "tool_call_id": "1"},
            {"role": "assistant", "content": "e", "weight": 1, "tool_calls": None},
        ]
    }

    assert made("messages", record) == [
        ("system", "Be brief.", False), ("user", "ab", False), ("assistant", "c", False), ("tool", "d", False),
        ("assistant", "e", True),
    ]  # fmt: skip


def test_a_refusal_is_what_was_said() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I cannot."}

    assert made("messages", {"messages": [{"role": "user", "content": "a"}, refused]})[1] == (
        "assistant", "I cannot.", True,
    )  # fmt: skip


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_stand_under_any_of_their_names(key: str) -> None:
    reply = {"role": "assistant", "content": "b", key: "Hm.", "mine": None}
    record: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}, reply]}

    for given in ("messages", {"use": "messages", "reasoning": "mine"}):
        assert only(converter_of(given, table="converter").convert(record)).messages[1].reasoning == "Hm."
    none = converter_of({"use": "messages", "reasoning": ""}, table="converter")
    assert only(none.convert(record)).messages[1].reasoning == ""


def test_an_empty_thought_hides_no_other() -> None:
    record: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "", "reasoning": "Hm."},
        ]
    }

    found = converter_of("messages", table="x").convert(record)

    assert only(found).messages[1].reasoning == "Hm."


HUMAN: dict[str, Any] = {"from": "human", "value": "a"}
GPT: dict[str, Any] = {"from": "gpt", "value": "b"}
USER: dict[str, Any] = {"role": "user", "content": "a"}
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "b"}
TEXTS = [
    ("sharegpt", {}, "conversations", HUMAN, GPT),
    ("agentgym", {"item_id": "maze_1"}, "conversations", HUMAN, GPT),
    ("agent_instruct", {"id": "os_1"}, "conversations", HUMAN, GPT),
    ("agent_flan", {"id": "x"}, "conversation", USER, ASSISTANT),
    ("openmanus", {"id": "x"}, "conversations", USER, ASSISTANT),
]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize(("use", "facts", "messages", "asked", "reply"), TEXTS, ids=[row[0] for row in TEXTS])
def test_forms_of_texts_keep_thoughts(
    use: str, facts: dict[str, Any], messages: str, asked: dict[str, Any], reply: dict[str, Any], key: str
) -> None:
    converter = converter_of(use, table="x")

    one = only(converter.convert({**facts, messages: [asked | {key: None}, reply | {key: "Hm."}]}))
    written = converter.write(one)

    assert [message.reasoning for message in one.messages] == ["", "Hm."]
    back: Any = written.record[messages]
    assert (written.lost, back[1].get("reasoning_content")) == (
        (frozenset(), "Hm.") if use == "sharegpt" else (frozenset({"reasoning"}), None)
    )


def test_a_call_of_sharegpt_has_its_thoughts() -> None:
    called = {"from": "function_call", "value": '{"name": "f", "arguments": {}}', "reasoning_content": "Hm."}
    record: dict[str, Any] = {"conversations": [HUMAN, called]}
    converter = converter_of("sharegpt", table="x")

    one = only(converter.convert(record))

    assert (one.messages[1].content, one.messages[1].reasoning) == ("", "Hm.")
    assert converter.write(one).record == record


@pytest.mark.parametrize(("use", "facts", "messages", "asked", "reply"), TEXTS, ids=[row[0] for row in TEXTS])
def test_forms_of_texts_refuse_calls_beside_a_text(
    use: str, facts: dict[str, Any], messages: str, asked: dict[str, Any], reply: dict[str, Any]
) -> None:
    call = {"name": "f", "arguments": "{}"}

    for key, made_so in (("tool_calls", [{"type": "function", "function": call}]), ("function_call", call)):
        with pytest.raises(UnusableRecord, match=f"message 2: {key}: this form has no calls beside a text"):
            converter_of(use, table="x").convert({**facts, messages: [asked, reply | {key: made_so}]})


@pytest.mark.parametrize("key", ["image", "images"])
def test_files_beside_the_messages_are_refused(key: str) -> None:
    shown: dict[str, Any] = {"from": "human", "value": "<image>What is it?"}
    converter = converter_of("sharegpt", table="x")

    with pytest.raises(UnusableRecord, match=f"{key}: files beside the messages are not read"):
        converter.convert({"conversations": [shown, GPT], key: ["cat.png"]})
    kept: list[dict[str, Any]] = [
        {"conversations": [HUMAN, GPT], key: ["cat.png"]}, {"conversations": [shown, GPT], key: []},
    ]  # fmt: skip
    for record in kept:
        assert len(only(converter.convert(record)).messages) == 2


@pytest.mark.parametrize(
    ("use", "chat"),
    [
        ("messages", {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "a"}, {"from": "chatgpt", "value": "b"}]}),
    ],
)
def test_what_the_system_says_may_stand_beside_the_messages(use: str, chat: dict[str, Any]) -> None:
    (key,) = chat
    first = [("system", "Be brief.", False)]
    then = [("user", "a", False), ("assistant", "b", True)]
    inside = {"role": "system", "content": "Be brief.", "from": "system", "value": "Be brief."}

    assert made(use, chat | {"system": "Be brief."}) == first + then
    assert made(use, chat | {"system": None}) == made(use, chat | {"system": ""}) == then
    assert made(use, {key: [inside, *chat[key]], "system": "Be brief."}) == first + then
    assert made({"use": use, "system": "told"}, chat | {"told": "Be brief."}) == first + then
    assert made({"use": use, "system": ""}, chat | {"system": "Be brief."}) == then
    with pytest.raises(UnusableRecord, match="the first message is the system's too, and says another thing"):
        made(use, {key: [inside, *chat[key]], "system": "Be long."})


def test_agent_flan_is_messages_under_another_key() -> None:
    record: dict[str, Any] = {
        "conversation": [
            {"role": "user", "content": "a", "loss": False},
            {"role": "assistant", "content": "b", "loss": False},
            {"role": "user", "content": "c", "loss": False},
            {"role": "assistant", "content": "d", "loss": True},
        ]
    }

    taught = [teaches for *_, teaches in made({"use": "messages", "key": "conversation"}, record)]

    assert taught == [False, False, False, True]


def test_sharegpt_with_the_loss_flags_of_agenttraj() -> None:
    record: dict[str, Any] = {
        "item_id": "textcraft_12",
        "conversations": [
            {"from": "human", "loss": None, "value": "rules"},
            {"from": "gpt", "loss": False, "value": "OK."},
            {"from": "observation", "value": "goal"},
            {"from": "gpt", "loss": True, "value": "Action:\nget 1 coal"},
            {"from": "human", "value": "got it"},
            {"from": "gpt", "value": "Action:\nstop"},
        ],
    }

    assert made("sharegpt", record) == [
        ("user", "rules", False), ("assistant", "OK.", False), ("tool", "goal", False),
        ("assistant", "Action:\nget 1 coal", True), ("user", "got it", False), ("assistant", "Action:\nstop", True),
    ]  # fmt: skip


def test_sharegpt_with_the_weights_of_slimorca() -> None:
    weighed = [("human", "a", 0.0), ("gpt", "b", 0.0), ("human", "c", None), ("gpt", "d", 1.0), ("gpt", "e", None)]
    said = [{"from": speaker, "value": text, "weight": weight} for speaker, text, weight in weighed]

    assert [learned for _, _, learned in made("sharegpt", {"conversations": said})] == [False, False, False, True, True]
    with pytest.raises(UnusableRecord, match=r"message 2: weight: 0\.5 is neither 0 nor 1"):
        made("sharegpt", {"conversations": [said[0], said[1] | {"weight": 0.5}]})


CHAT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, (True, 1.0)),
        ({"success": "done", "reward": "score"}, (False, 0.25)),
        ({"success": "", "reward": "none"}, (None, None)),
    ],
)
def test_what_it_was_worth_stands_under_keys_of_the_options(options: dict[str, str], found: Any) -> None:
    record: dict[str, Any] = {
        "conversations": CHAT,
        "success": True,
        "reward": 1,
        "done": False,
        "score": 0.25,
        "none": None,
    }

    one = only(converter_of({"use": "sharegpt", **options}, table="converter").convert(record))

    assert (one.success, one.reward) == found


@pytest.mark.parametrize(
    ("use", "record", "told"),
    [
        ("messages", {}, "messages: a list is wanted; it is missing"),
        ("messages", {"messages": None}, "messages: a list is wanted; it is null"),
        ("messages", {"messages": []}, "messages: Tuple should have at least 2 items"),
        ("messages", {"messages": ["hi"]}, "messages: message 1 is no object"),
        ("messages", {"messages": [{"content": "x"}]}, "messages: message 1: role: text is wanted; it is missing"),
        ("messages", {"messages": [{"role": "gpt", "content": "x"}]}, "message 1: role: 'gpt' is none of system, dev"),
        (
            "messages",
            {"messages": [{"role": "user", "content": 3}]},
            "message 1: content: text is wanted; it is a number",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
            "a part that is neither text nor",
        ),
        (
            "messages",
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": 7}]}]},
            "tool_calls: a call is an object with `name` and `arguments`",
        ),
        (
            "messages",
            {"messages": [{"role": "assistant", "content": "x", "weight": 2}]},
            "weight: 2 is neither 0 nor 1",
        ),
        ("messages", {"messages": [{"role": "assistant", "content": "x", "loss": 1}]}, "loss: true or false is wanted"),
        (
            "messages",
            {"messages": [{"role": "user", "content": "\ud800"}]},
            "message 1: content: Input should be a valid",
        ),
        ("sharegpt", {"conversations": None}, "conversations: a list is wanted; it is null"),
        ("sharegpt", {"conversations": [{"from": "human"}]}, "message 1: value: text is wanted; it is missing"),
        ("sharegpt", {"conversations": CHAT[:1] * 2}, "none of its messages is learned from"),
        ("sharegpt", {"conversations": CHAT, "reward": "high"}, "reward: a number is wanted; it is text"),
        ("sharegpt", {"conversations": CHAT, "success": 1}, "success: true or false is wanted; it is a number"),
    ],
)
def test_what_is_no_record_is_told_in_a_line(use: str, record: dict[str, Any], told: str) -> None:
    with pytest.raises(UnusableRecord) as caught:
        converter_of(use, table="converter").convert(record)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_is_of_the_kind_that_is_asked_for() -> None:
    assert field({"x": 3}, "x", float) == 3.0
    with pytest.raises(UnusableRecord, match="x: a number is wanted; it is true or false"):
        field({"x": True}, "x", int)


@pytest.mark.parametrize("name", CONVERTERS.included())
def test_ours_keep_what_every_converter_promises(name: str) -> None:
    assert examine(name) == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            'return [pair(record["text"])]',
            "with nothing in it: the converter mine failed: KeyError: 'text'; raise",
            id="it does not say what is missing",
        ),
        pytest.param(
            'raise RuntimeError("not\\nyet")', "the converter mine failed: RuntimeError: not yet", id="it raises"
        ),
        pytest.param(
            'return pair(field(record, "text", str))', "returns Conversation instead of conversations", id="one"
        ),
        pytest.param("return None", "returns NoneType instead of conversations", id="nothing at all"),
        pytest.param("return [7]", "yields int instead of a Conversation", id="numbers"),
        pytest.param(
            'return (pair(t) for t in iter(lambda: "x", 1))', "makes more than 10000 conversations", id="endless"
        ),
        pytest.param("return []", "examples[0]: it makes no conversation of its own example", id="nothing of its own"),
        pytest.param('raise UnusableRecord("no")', "examples[0]: it does not take its own example: no", id="picky"),
        pytest.param(
            'record["text"] = "x"; return [pair("x")]', "it changes the record that it is given", id="it writes"
        ),
        pytest.param(
            'Mine.n = getattr(Mine, "n", 0) + 1; return [pair(str(Mine.n))]',
            "something else of the same record",
            id="it remembers",
        ),
        pytest.param(
            'if "text" not in record: raise UnusableRecord("")\n        return [pair(str(record["text"]))]',
            "with nothing in it: UnusableRecord says nothing",
            id="it says nothing",
        ),
    ],
)
def test_a_broken_promise_is_named(tmp_path: Path, body: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}        {body}\n")

    (fault,) = examine(str(path))

    assert told in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('    """One of somebody\'s own."""\n', ""), "it has no docstring"),
        (('({"text": "hello"},)', "()"), "examples: give a tuple of records"),
    ],
)
def test_what_it_is_must_be_said(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f'{HEAD.replace(*change)}        return [pair(field(record, "text", str))]\n')

    assert any(told in fault for fault in examine(str(path)))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("mesages", "there is no converter 'mesages'; known: agent_flan, agent_instruct, agentgym, "),
        (
            {"use": "messages", "kee": "x"},
            "stages.sft.converter.kee: Extra inputs are not permitted (the options of mess",
        ),
        ({"key": "x"}, 'stages.sft.converter: give the name of a converter, or a table as { use = "NAME", ... }'),
        ("./nowhere.py", "there is no file nowhere.py"),
    ],
)
def test_a_mistake_in_a_recipe_is_a_line(given: Any, told: str) -> None:
    with pytest.raises(PluginError) as caught:
        converter_of(given, table="stages.sft.converter")

    assert str(caught.value).startswith(told)


def test_one_that_cannot_be_made_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        f"{HEAD}        return []\n\n    def __init__(self, options):\n        raise OSError('no\\nfile')\n"
    )

    with pytest.raises(PluginError, match=r"^the converter mine cannot be made: OSError: no file$"):
        converter_of(str(path), table="converter")


LINES = [json.dumps({"conversations": CHAT}), json.dumps({"conversations": [*CHAT, *CHAT]})]


def test_a_file_becomes_conversations_that_know_where_they_stood(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n\n".join(LINES))

    found = [only([one]) for one in learnable(path, converter_of("sharegpt", table="converter"))]

    assert [one.source for one in found] == [f"{path}, line 1", f"{path}, line 3"]
    assert [len(one.messages) for one in found] == [2, 4]


def test_a_bad_record_in_the_middle_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join([LINES[0], '{"conversations": [{"from": "robot", "value": "x"}]}', LINES[1]]))

    with pytest.raises(DataError) as caught:
        list(learnable(path, converter_of("sharegpt", table="converter")))

    assert str(caught.value) == (
        f"{path}, line 2: no record for the converter sharegpt: conversations: message 1: from: 'robot' is none of "
        "system, human, user, gpt, assistant, observation, tool, function_call, chatgpt, bing, bard"
    )


def test_a_converter_that_fails_in_the_middle_is_named_with_the_place(tmp_path: Path) -> None:
    plugin, path = tmp_path / "mine.py", tmp_path / "chats.jsonl"
    plugin.write_text(f'{HEAD}        return [pair("x" * (1 // record["n"]))]\n')
    path.write_text('{"n": 1}\n{"n": 0}\n')

    found = learnable(path, converter_of(str(plugin), table="converter"))
    next(found)

    with pytest.raises(ConverterFailed, match=r"chats\.jsonl, line 2: the converter mine failed: ZeroDivisionError: "):
        next(found)
