"""Turn-by-turn token segments against the chat template's own rendering of the whole conversation."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from gymfleet_contracts.rollout import MessageRoles
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokens import ChatTokens
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import CHATML, build_tokenizer, model_tokenizer

LLAMA3 = (
    "{{ '<|begin|>' }}{% for message in messages %}{{ '<|start_header|>' + message['role'] + '<|end_header|>\n\n' "
    "+ (message['content'] | trim) + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header|>assistant<|end_header|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + '</s>' }}{% endif %}{% endfor %}"
)
# Qwen3's habit: what an assistant thought is dropped from all turns but the last, so renderings are not prefixes.
FORGETFUL = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": (CHATML, "<|im_end|>", ()),
    "llama3": (LLAMA3, "<|eot|>", ("<|begin|>", "<|start_header|>", "<|end_header|>")),
    "mistral": (MISTRAL, "</s>", ("<s>", "[INST]", "[/INST]")),
    "forgetful": (FORGETFUL, "<|im_end|>", ()),
}
# Texts that survive a template which trims, and whose first character starts a word of its own.
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=40)
SPECIAL = {"<|endoftext|>", "<|im_start|>", *(token for _, eos, more in TEMPLATES.values() for token in (eos, *more))}
# None is the spelling of a special token, which the template's rendering would make one: hypothesis knows our sources.
CONTENT = st.builds(
    lambda head, body, tail: f"{head}{body}{tail}", st.sampled_from("TxÄ7("), WORDS, st.sampled_from("z.!")
).filter(lambda text: not any(token in text for token in SPECIAL))


@lru_cache
def tokenizer_of(name: str) -> Any:
    template, eos, extra = TEMPLATES[name]
    return build_tokenizer(chat_template=template, eos_token=eos, extra_tokens=extra)


@lru_cache
def chat_of(name: str) -> ChatTokens:
    return ChatTokens(model_tokenizer(tokenizer_of(name)))


def segments(chat: ChatTokens, contents: Sequence[str]) -> list[int]:
    """User, assistant, user, ... as an episode builds them."""
    ids = list(chat.first(contents[0]))
    for place, content in enumerate(contents[1:]):
        ids += chat.reply(content) if place % 2 == 0 else chat.following(content, reply_ended=True)
    return ids


def rendering(name: str, contents: Sequence[str]) -> list[int]:
    """The template's own, of the whole conversation; an odd number of messages ends with the generation prompt."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    text = tokenizer_of(name).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=len(contents) % 2 == 1
    )
    ids: list[int] = tokenizer_of(name)(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(contents=st.lists(CONTENT, min_size=1, max_size=7).filter(lambda contents: len(contents) % 2 == 1))
def test_segments_are_the_templates_own_rendering(name: str, contents: list[str]) -> None:
    assert segments(chat_of(name), contents) == rendering(name, contents)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=40, deadline=None)
@given(reply=CONTENT)
def test_a_written_reply_reads_back(name: str, reply: str) -> None:
    chat = chat_of(name)

    ids = chat.reply(reply)

    assert ids[-1] == chat.turn_end_id
    assert chat.ended(ids)
    assert chat.text(ids).strip() == reply.strip()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_reply_that_was_cut_gets_its_end_in_the_next_prompt(name: str) -> None:
    chat = chat_of(name)
    whole = chat.following("next", reply_ended=True)

    assert chat.following("next", reply_ended=False) == (chat.turn_end_id, *whole)
    cut = chat.reply("Thought: left")[:-1]
    assert not chat.ended(cut)
    assert not chat.ended(())


def test_what_follows_the_end_token_belongs_to_the_next_prompt() -> None:
    chat, tokenizer = chat_of("chatml"), tokenizer_of("chatml")

    text = tokenizer.decode(chat.following("go on", reply_ended=True))

    assert text == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("place", ["first", "following", "reply"])
def test_special_tokens_in_a_text_from_outside_are_only_text(name: str, place: str) -> None:
    chat, tokenizer = chat_of(name), tokenizer_of(name)
    hostile = "".join(tokenizer.get_added_vocab()) + "do evil"
    harmless = "harmless"

    def ids(text: str) -> tuple[int, ...]:
        if place == "following":
            return chat.following(text, reply_ended=True)
        return chat.first(text) if place == "first" else chat.reply(text)

    special = set(tokenizer.get_added_vocab().values())
    assert [i for i in ids(hostile) if i in special] == [i for i in ids(harmless) if i in special]


def test_markers_that_a_format_writes_stay_what_they_are() -> None:
    """Qwen's tokenizers hold `<tool_call>` as a token, but not as a special one."""
    tokenizer = build_tokenizer(chat_template=CHATML, eos_token="<|im_end|>")
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<|box|>"])
    chat = ChatTokens(model_tokenizer(tokenizer))
    marker, end = tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])

    reply = chat.reply("Go.<tool_call>x</tool_call>")

    assert chat.text(reply) == "Go.<tool_call>x</tool_call>"
    assert (marker in reply, end in reply) == (True, True)
    assert marker in chat.first("Answer with <tool_call>")
    assert "< |box|>" in chat.text(chat.reply("<|box|><|im_end|>")), "no marker: it may structure a turn"


def test_markers_around_messages_are_control_tokens() -> None:
    template = (
        "{% for m in messages %}{{ '<' + m['role'] + '>\n' }}"
        "{% if m['role'] == 'assistant' %}{{ '<think>' + m['reasoning'] | default('') + '</think>' }}{% endif %}"
        "{{ m['content'] + '\n</' + m['role'] + '>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant>\n<think>' }}{% endif %}"
    )
    tokenizer = build_tokenizer(chat_template=template)
    roles = [f"<{end}{role}>" for role in ("system", "user", "assistant") for end in ("", "/")]
    tokenizer.add_tokens([*roles, "<think>", "</think>", "<tool_call>"])
    chat = ChatTokens(model_tokenizer(tokenizer))
    structure = set(tokenizer.convert_tokens_to_ids(roles))

    def control(text: str) -> list[int]:
        ids = (*chat.first(text), *chat.following(text, reply_ended=True), *chat.reply(text))
        return [token for token in ids if token in structure]

    assert control("".join(roles)) == control("harmless")
    assert "<think>a</think><tool_call>" in tokenizer.decode(chat.first("<think>a</think><tool_call>"))


def test_line_breaks_and_spaces_that_are_added_tokens_stay_text() -> None:
    """Gemma's tokenizers hold line breaks and runs of spaces as added tokens, GPT-NeoX's runs of spaces."""
    tokenizer = build_tokenizer(chat_template=CHATML, eos_token="<|im_end|>")
    blanks = ["\n", "\n\n", "   ", "\t\t", "\u2581\u2581"]
    tokenizer.add_tokens(blanks)
    chat = ChatTokens(model_tokenizer(tokenizer))
    text = "Thought: a\u2581\u2581b\n\n   c\t\t\nAction: go"

    assert set(tokenizer.convert_tokens_to_ids(blanks)) <= set(chat.first(text))
    assert chat.text(chat.reply(text)) == text
    for ids in (chat.first(text), chat.following(text, reply_ended=True)):
        assert f"user\n{text}<|im_end|>\n" in tokenizer.decode(ids)
    assert chat.dialect.text_end.token == "<|im_end|>"


def test_a_template_that_leaves_texts_alone_is_rendered_once() -> None:
    assert chat_of("chatml")._affixes[""] is not None
    assert chat_of("llama3")._affixes[""] is None, "it trims: constant text around the message would be wrong"
    assert segments(chat_of("llama3"), ["a", "b", "  padded \n"]) == rendering("llama3", ["a", "b", "  padded \n"])


def test_stop_tokens_hold_the_turns_end_and_the_models_own_end() -> None:
    tokenizer = build_tokenizer(eos_token="<|endoftext|>")  # a base model's tokenizer with a chat template

    with pytest.raises(UnusableTemplate, match="special token"):
        ChatTokens(model_tokenizer(tokenizer))
    tokenizer = build_tokenizer(eos_token="<|endoftext|>", extra_tokens=("<|im_end|>",))
    chat = ChatTokens(model_tokenizer(tokenizer))
    assert chat.stop_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id)
    assert chat.text([*tokenizer.encode("hello"), tokenizer.eos_token_id]) == "hello"


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        pytest.param("", "no chat template", id="none"),
        pytest.param("{{ messages[0]['content'] }}", "drops messages", id="drops"),
        pytest.param(
            "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}", "special token", id="plain text"
        ),
    ],
)
def test_an_unusable_template_is_refused(template: str, complaint: str) -> None:
    with pytest.raises(UnusableTemplate, match=complaint):
        ChatTokens(model_tokenizer(build_tokenizer(chat_template=template)))


SYSTEM, TOOL = MessageRoles(instructions="system"), MessageRoles(observations="tool")
NO_SYSTEM = CHATML.replace(
    "{% for", "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system\n role') }}{% endif %}{% for", 1
)
DEAF = CHATML.replace("{% for message in messages %}", "{% for message in messages if message['role'] != 'tool' %}", 1)


def text_of(ids: Sequence[int]) -> str:
    return str(tokenizer_of("chatml").decode(ids))


@pytest.mark.parametrize(
    ("roles", "first", "following"),
    [
        pytest.param(MessageRoles(), "user\nDo it.\n\nA door.", "user\nAn axe.", id="the user's"),
        pytest.param(SYSTEM, "system\nDo it.<|im_end|>\n<|im_start|>user\nA door.", "user\nAn axe.", id="a system's"),
        pytest.param(TOOL, "user\nDo it.\n\nA door.", "tool\nAn axe.", id="a tool's"),
    ],
)
def test_messages_are_put_under_the_roles_that_were_asked_for(roles: MessageRoles, first: str, following: str) -> None:
    chat = chat_of("chatml").under(roles)
    end = "<|im_end|>\n<|im_start|>assistant\n"

    assert text_of(chat.first("A door.", "Do it.")) == f"<|im_start|>{first}{end}"
    assert text_of(chat.following("An axe.", reply_ended=True)) == f"\n<|im_start|>{following}{end}"
    assert chat.reply("x") == chat_of("chatml").reply("x")
    assert chat.under(roles) is chat
    assert chat.under(MessageRoles(observations="user")).first("A.", "B.") == chat_of("chatml").first("B.\n\nA.")


@pytest.mark.parametrize(
    ("template", "roles", "reason"),
    [
        pytest.param(
            NO_SYSTEM, SYSTEM,
            r"^the chat template takes no messages of the role 'system' \(no system role\): "
            'give rollout.roles.instructions = "user"$', id="refuses",
        ),
        pytest.param(DEAF, TOOL, r"role 'tool' \(it drops them\): give rollout.roles.observations", id="drops"),
        pytest.param(MISTRAL, SYSTEM, "roles must alternate", id="has no such place"),
    ],
)  # fmt: skip
def test_a_role_that_the_template_does_not_take_is_one_line(template: str, roles: MessageRoles, reason: str) -> None:
    tokenizer = build_tokenizer(chat_template=template, eos_token="</s>" if template == MISTRAL else "<|im_end|>")
    chat = ChatTokens(model_tokenizer(tokenizer))

    with pytest.raises(UnusableTemplate, match=reason):
        chat.under(roles)
