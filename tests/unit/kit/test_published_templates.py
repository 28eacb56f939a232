"""The chat templates of published models: six turns, with thoughts and calls where a template has them."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.conversation import MadeCall, Message
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokens import ChatTokens

from tests.published_templates import FILES, chat_of, messages, page, turn

pytestmark = pytest.mark.skipif(not FILES, reason="the published templates are not beside the project")
TURNS: Final = 6
REFUSED: Final = {
    (
        "CohereForAI-c4ai-command-r-plus-tool_use",
        False,
    ): "wants functions to be declared, as .*'NoneType' object is not iterable",
    (
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        False,
    ): "wants functions to be declared, as .*'NoneType' object is not iterable",
    ("Kimi-K2-Instruct", True): "no functions can be called: .*'append' of 'list' object is unsafe",
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", True): "declares no functions: it leaves out 'act'",
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", True): "declares no functions: it leaves out 'act'",
    ("fireworks-ai-llama-3-firefunction-v2", False): "'functions' is undefined",
    ("fireworks-ai-llama-3-firefunction-v2", True): "'functions' is undefined",
    ("google-gemma-2-2b-it", True): "no functions can be called: .*roles must alternate",
    ("ibm-granite-granite-3.3-2B-Instruct", True): "no functions can be called: the chat template drops messages",
    ("llama-cpp-deepseek-r1", True): "Object of type generator is not JSON serializable",
    ("llama-cpp-rwkv-world", False): "does not end the assistant's turn with a special token",
    ("llama-cpp-rwkv-world", True): "does not end the assistant's turn with a special token",
}
"""Those that cannot be used without functions (False) or with them (True), and why."""
REWRITTEN: Final = {
    "Cohere2MoE", "CohereForAI-c4ai-command-r-plus-tool_use", "GLM-4.7-Flash", "NVIDIA-Nemotron-Nano-v2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "Qwen-QwQ-32B", "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-4-31B-it-interleaved", "google-gemma-4-31B-it",
}  # fmt: skip
"""Those that write what is before a reply in another way once it is past, so that data cannot be continued contexts."""
CASES: Final = [
    pytest.param(file, tools, thinking, id=f"{file.stem}-{'calls' if tools else 'texts'}-{thinking}")
    for file in FILES
    for tools in (False, True)
    for thinking in ("template", "on", "off")
]


def usable(file: Path, tools: bool, thinking: str, **options: Any) -> ChatTokens | None:
    """The template's conversations; None where it is refused, as it is to be."""
    reason = REFUSED.get((file.stem, tools))
    try:
        chat = chat_of(file, tools=tools, thinking=thinking, **options)
    except UnusableTemplate as error:
        told = str(error)
    else:
        assert reason is None, f"it is to be refused: {reason}"
        return chat
    if reason is None:
        assert thinking != "template", told
        reason = f"^thinking cannot be turned {thinking} with this chat template: it has no "
    assert re.search(reason, told), told
    return None


def renderings(chat: ChatTokens, turns: int, tools: bool) -> list[str]:
    """What the template writes of so many turns, up to the next reply, in each way in which calls may be given."""
    found = []
    for none in (False, True):
        for text in (False, True):
            given = messages(turns, tools=tools, thinks=chat.dialect.thinks, none=none, text=text)
            try:
                found.append(chat._template.render(given, prompt=True, tools=chat.dialect.declared))
            except UnusableTemplate:
                continue
    return found


def decoded(chat: ChatTokens, ids: list[int]) -> str:
    return chat._tokenizer.decode(ids)


@pytest.mark.parametrize(("file", "tools", "thinking"), CASES)
def test_a_reply_is_read_as_it_is_written_and_ends_with_a_stop_token(file: Path, tools: bool, thinking: str) -> None:
    chat = usable(file, tools, thinking)
    if chat is None:
        return
    for place in range(TURNS):
        reply, _ = turn(place, tools=tools, thinks=chat.dialect.thinks)

        ids = chat.write(reply)

        said = chat.read(ids)
        assert said.reply == reply
        assert 0 <= said.num_reasoning_tokens < len(ids)
        assert (said.num_reasoning_tokens > 0) == chat.dialect.thinks
        assert ids[-1] in chat.stop_token_ids
        assert not set(ids[:-1]) & {chat.turn_end_id}
        assert not chat.read(ids[: len(ids) // 3]).reply.calls, "a third of a reply is no call"


@pytest.mark.parametrize(("file", "tools", "thinking"), CASES)
def test_a_continued_context_is_the_templates_own_where_that_only_adds(file: Path, tools: bool, thinking: str) -> None:
    chat = usable(file, tools, thinking)
    if chat is None:
        return
    text, adds = decoded(chat, list(chat.first("A room.", "Look around."))), True
    assert text in renderings(chat, 0, tools)
    for place in range(TURNS):
        reply, answer = turn(place, tools=tools, thinks=chat.dialect.thinks)
        said = chat.write(reply)
        called = "act" if tools else ""
        assert chat.ended(said, called=tools)
        before = text + decoded(chat, list(said))
        text = before + decoded(chat, list(chat.following(answer, reply_ended=True, called=called)))
        whole = renderings(chat, place + 1, tools)
        adds = adds and any(one.startswith(before) for one in whole)
        if adds:
            assert text in whole


@pytest.mark.parametrize(("file", "tools", "thinking"), CASES)
@pytest.mark.parametrize("reasoning", ["kept", "dropped"])
def test_a_replaced_context_is_the_templates_own(file: Path, tools: bool, thinking: str, reasoning: str) -> None:
    chat = usable(file, tools, thinking, context="replaced", reasoning=reasoning)
    if chat is None:
        return
    context = list(chat.first("A room.", "Look around."))
    said: list[tuple[tuple[int, ...], str]] = []
    for place in range(TURNS):
        reply, answer = turn(place, tools=tools, thinks=chat.dialect.thinks)
        said.append((chat.write(reply), answer))

        new, replaces, _ = chat.rendered("A room.", "Look around.", said)

        context = list(new) if replaces else [*context, *said[-1][0], *new]
        if reasoning == "kept":
            assert decoded(chat, context) in renderings(chat, place + 1, tools)
        elif chat.dialect.thinks:
            assert "I think" not in decoded(chat, context)
            assert replaces


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("tools", [False, True], ids=["texts", "calls"])
def test_texts_from_outside_are_only_texts(file: Path, tools: bool) -> None:
    chat = usable(file, tools, "template", context="replaced")
    if chat is None:
        return
    special = {chat._tokenizer.token_id(token) for token in chat._tokenizer.added_tokens}
    hostile = "".join(sorted(chat._tokenizer.added_tokens)) + "go"
    reply, _ = turn(0, tools=tools, thinks=chat.dialect.thinks)

    def control(text: str) -> list[int]:
        ids = [*chat.first(text), *chat.following(text, reply_ended=True, called="act" if tools else "")]
        ids += chat.rendered("A room.", text, [(chat.write(reply), text)])[0]
        return [token for token in ids if token in special - {chat._tokenizer.token_id(one) for one in chat._markers}]

    assert control(hostile) == control("harmless")


def test_the_page_has_the_table_of_these_templates() -> None:
    file = Path(__file__).parents[3] / "docs" / "chat-templates.md"

    assert file.read_text(encoding="utf-8") == page(), "write it with: python -m tests.published_templates"


@pytest.mark.parametrize("context", ["continued", "replaced"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_data_with_calls_are_the_tokens_of_an_episode_in_which_the_same_was_called(file: Path, context: str) -> None:
    """Where the template cannot carry them in a continued context, they are refused with the remedy."""
    chat = usable(file, True, "template", context=context)
    if chat is None:
        return
    given, said, played = [Message(role="user", content="A room.")], [], []
    prompt = chat.first("A room.")
    for place in range(4):
        reply, answer = turn(place, tools=place < 3, thinks=False)
        calls = tuple(MadeCall(name=call.name, arguments=call.arguments, id="1") for call in reply.calls)
        given.append(Message(role="assistant", content=reply.content, tool_calls=calls))
        given.append(Message(role="tool" if calls else "user", content=answer, tool_call_id="1" if calls else ""))
        said.append((chat.write(reply), answer))
        played.append((prompt, said[-1][0]))
        if context == "replaced":
            prompt, *_ = chat.rendered("A room.", "", said)
        else:
            prompt = chat.following(answer, reply_ended=True, called="act" if calls else "")

    if context == "continued" and file.stem in REWRITTEN:
        with pytest.raises(UnusableTemplate, match='context = "replaced"'):
            list(chat.pieces(given))
    else:
        assert [(piece.prompt, piece.reply) for piece in chat.pieces(given)] == played
