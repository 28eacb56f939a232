"""Chat templates as they are published, where they lie beside the project, and conversations in them."""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.reply_format import ModelReply
from gymfleet_contracts.rollout import MessageRoles, TemplateOptions
from gymfleet_contracts.session import Tool, ToolCall
from gymfleet_kit.chat.template import ChatTemplate, UnusableTemplate
from gymfleet_kit.chat.tokenizer import ModelTokenizer
from gymfleet_kit.chat.tokens import ChatTokens

from tests.models import build_tokenizer

DIRECTORY: Final = Path(__file__).parents[2] / "shared" / "data" / "chat_templates"
FILES: Final = sorted(DIRECTORY.glob("*.jinja"))
ACT: Final = Tool(
    name="act",
    description="Take one action.",
    parameters={
        "type": "object",
        "properties": {"action": {"type": "string", "description": "What to do."}},
        "required": ["action"],
    },
)
_CONTROL: Final = re.compile(  # with DeepSeek's wide bars
    r"<\|[^|<>\s]{1,60}\|>|<\uff5c[^\uff5c<>\s]{1,60}\uff5c>|<\|\w+>|<\w+\|>|\[/?[A-Z_]{3,30}\]|</?[\w:]{3,40}>|\]~b\]|\[e~\["
    r"|<(?:\w+_)+of_\w+>"
)
NAMED: Final = {"bos_token": "<BOS>", "eos_token": "<EOS>"}


def turn(place: int, *, tools: bool, thinks: bool) -> tuple[ModelReply, str]:
    """A reply and what answers it."""
    reasoning = f"Step {place}: I think." if thinks else ""
    if tools:
        call = ToolCall(name="act", arguments={"action": f'go to "shelf {place}"'})
        return ModelReply("", reasoning, (call,)), f"You see {place} <b>jars</b>."
    return ModelReply(f"I take jar {place}.", reasoning), f"Then you have {place}."


def messages(turns: int, *, tools: bool, thinks: bool, none: bool = False, text: bool = False) -> list[dict[str, Any]]:
    """The same as a program of somebody else's would give it to the template."""
    found: list[dict[str, Any]] = [{"role": "user", "content": "Look around.\n\nA room."}]
    for place in range(turns):
        reply, answer = turn(place, tools=tools, thinks=thinks)
        thoughts = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), reply.reasoning) if thinks else {}
        if not tools:
            found.append({"role": "assistant", "content": reply.content, **thoughts})
            found.append({"role": "user", "content": answer})
            continue
        arguments: Any = reply.calls[0].arguments
        if text:
            arguments = '{"action": "' + str(arguments["action"]).replace('"', '\\"') + '"}'
        call = {"id": "call00001", "type": "function", "function": {"name": "act", "arguments": arguments}}
        content = None if none else ""
        found.append({"role": "assistant", "content": content, "tool_calls": [call], **thoughts})
        found.append({"role": "tool", "name": "act", "tool_call_id": "call00001", "content": answer})
    return found


@cache
def tokenizer_of(file: Path) -> ModelTokenizer:
    """A small tokenizer that has the control tokens of a template, as special ones and as markers."""
    source = file.read_text(encoding="utf-8")
    texts = [source]
    for tools in (False, True):
        for prompt in (False, True):
            for number in (0, 1):
                try:
                    texts.append(
                        ChatTemplate(source, NAMED).render(
                            messages(number, tools=tools, thinks=True),
                            prompt=prompt,
                            tools=[{"type": "function", "function": ACT.model_dump()}] if tools else [],
                        )
                    )
                except UnusableTemplate:
                    continue
    tokens = sorted({token for text in texts for token in _CONTROL.findall(text)} - set(NAMED.values()))
    built = build_tokenizer(chat_template=source, eos_token="<EOS>", extra_tokens=("<BOS>", *tokens))
    return ModelTokenizer(built.backend_tokenizer, source, NAMED)


@cache
def chat_of(file: Path, *, tools: bool, **options: Any) -> ChatTokens:
    """The template's conversations. Raises UnusableTemplate."""
    return ChatTokens(tokenizer_of(file), MessageRoles(), TemplateOptions(**options), (ACT,) if tools else ())


def only_adds(chat: ChatTokens, tools: bool, turns: int = 6) -> bool:
    """Whether a continued context is, turn by turn, what the template itself writes."""
    decode = chat._tokenizer.decode
    text = decode(list(chat.first("A room.", "Look around.")))
    said: list[tuple[tuple[int, ...], str]] = []
    for place in range(turns):
        reply, answer = turn(place, tools=tools, thinks=chat.dialect.thinks)
        said.append((chat.write(reply), answer))
        following = chat.following(answer, reply_ended=True, called="act" if tools else "")
        text += decode([*said[-1][0], *following])
        whole = chat._rendered(_given(chat, said))
        if text != whole:
            return False
    return True


def _given(chat: ChatTokens, said: list[tuple[tuple[int, ...], str]]) -> list[dict[str, Any]]:
    found = chat._opening("A room.", "Look around.")
    for ids, answer in said:
        reply = chat.read(ids).reply
        found += [chat.dialect.message(reply), chat._answer(answer, reply)]
    return found


def table() -> list[str]:
    """The rows of docs/chat-templates.md: what each published template can, and where its contexts are replaced."""
    return ["| template | texts | thinks | calls of functions |", "|---|---|---|---|", *map(_row, FILES)]


def _row(file: Path) -> str:
    cells = [_cell(file, tools=False), _thinking(file), _cell(file, tools=True)]
    return f"| {file.stem} | {' | '.join(cells)} |"


def _cell(file: Path, *, tools: bool) -> str:
    try:
        chat = _thoughtful(file, tools)
    except UnusableTemplate as error:
        reason = str(error).removeprefix("no functions can be called: ").removeprefix("the chat template ")
        return f"refused: {reason.removeprefix('refuses a conversation: ')}"
    return "as the template" if only_adds(chat, tools) else "the template replaces"


def _thoughtful(file: Path, tools: bool) -> ChatTokens:
    """With thoughts, where the template can."""
    try:
        return chat_of(file, tools=tools, thinking="on")
    except UnusableTemplate:
        return chat_of(file, tools=tools)


def _thinking(file: Path) -> str:
    can = []
    for tools in (False, True):
        for thinking in ("on", "off"):
            try:
                chat = chat_of(file, tools=tools, thinking=thinking)
            except UnusableTemplate:
                continue
            if thinking not in can and (chat.dialect.thinking is not None):
                can.append(thinking)
    return "/".join(can) or "no"


def page() -> str:
    """docs/chat-templates.md with its table as the templates have it."""
    file = Path(__file__).parents[1] / "docs" / "chat-templates.md"
    before, begin, rest = file.read_text(encoding="utf-8").partition("| template |")
    after = rest[rest.index("\n\n") :] if "\n\n" in rest else "\n"
    assert begin, "the page has no table"
    return before + "\n".join(table()) + after


if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "chat-templates.md").write_text(page(), encoding="utf-8")
