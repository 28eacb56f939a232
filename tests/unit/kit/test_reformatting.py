"""Replies and conversations from one format to another: nothing lost, or a loss with a name."""

import json
import re
from itertools import permutations
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_kit.data.reformatting import ActionLost, reformat, reformat_conversation
from gymfleet_kit.formats import FORMATS, CheckedFormat, format_of

from tests.fixtures.paths import ROOT

TRAJECTORIES = Path(__file__).parents[4] / "shared" / "data" / "trajectories"
SQL = "SELECT a FROM t WHERE b = 'c'"
OF_ONE_LINE = ("agentbench_kg", "agentgym", "openmanus", "outcome", "react", "tags", "think_act", "tool_call")
"""Formats with a place for a thought and for any action of one line."""


def fmt(use: str, **options: Any) -> CheckedFormat:
    return format_of(FormatSection.model_validate({"use": use, **options}))


def test_every_format_stands_in_a_pair() -> None:
    assert {*OF_ONE_LINE, "plain", "free", "dbbench", "sqlgym", "agentbench_os", "searchqa"} == set(FORMATS.included())


def pairs(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("one", "other"), list(permutations(names, 2)), ids="-".join)


def assert_there_and_back(one: str, other: str, action: str) -> None:
    text = fmt(one).render("I see it.", action)

    there = reformat(text, fmt(one), fmt(other))
    back = reformat(there.text, fmt(other), fmt(one))

    assert there.text == fmt(other).render("I see it.", action)
    assert (there.losses, back.losses, back.text) == ((), (), text)


@pairs(*OF_ONE_LINE)
def test_there_and_back(one: str, other: str) -> None:
    assert_there_and_back(one, other, "go to shelf 1")


@pairs(*OF_ONE_LINE, "sqlgym", "dbbench")
def test_a_statement_there_and_back(one: str, other: str) -> None:
    assert_there_and_back(one, other, SQL)


@pairs(*OF_ONE_LINE, "agentbench_os")
def test_the_end_of_a_task_there_and_back(one: str, other: str) -> None:
    assert_there_and_back(one, other, "finish")


@pairs(*OF_ONE_LINE, "searchqa")
def test_a_search_there_and_back(one: str, other: str) -> None:
    assert_there_and_back(one, other, "<search>river Elbe</search>")


@pairs("agentgym", "openmanus", "outcome", "tags", "tool_call", "agentbench_os")
def test_an_action_of_several_lines_there_and_back(one: str, other: str) -> None:
    assert_there_and_back(one, other, "bash\n\n```bash\nls\n```")


@pytest.mark.parametrize("bare", ["plain", "free"])
@pytest.mark.parametrize("name", [*OF_ONE_LINE, "sqlgym", "dbbench"])
def test_an_action_alone_has_no_place_for_a_thought(name: str, bare: str) -> None:
    there = reformat(fmt(name).render("I see it.", SQL), fmt(name), fmt(bare))

    assert (there.text, there.losses) == (SQL, ("thought",))
    assert reformat(SQL, fmt(bare), fmt(name)).losses == ()


@pytest.mark.parametrize(
    ("source", "text", "target", "losses"),
    [
        pytest.param(
            "openmanus", "<think>a</think><memory>b</memory><plan>c</plan><act>d</act>", "react", ("memory", "plan"),
            id="notes",
        ),
        pytest.param(
            "outcome", "<think>a</think><prediction>b</prediction><action>d</action>", "tags", ("prediction",),
            id="a prediction",
        ),
        pytest.param("react", "I think. Action: go", "tags", ("wording",), id="a sloppy reply"),
        pytest.param("tags", "<think>Action: a</think><action>b</action>", "react", ("layout",), id="a marker"),
        pytest.param("react", "Thought: </think>x Action: b", "tags", ("thought", "layout"), id="a closing tag"),
    ],
)  # fmt: skip
def test_a_loss_has_a_name(source: str, text: str, target: str, losses: tuple[str, ...]) -> None:
    assert reformat(text, fmt(source), fmt(target)).losses == losses


@pytest.mark.parametrize(
    ("source", "text", "target", "reason"),
    [
        ("react", "Thought: hm", "tags", "a reply without an action"),
        ("tags", "<think>a</think><action>b\nc</action>", "react", r"'b\\nc' has no place in the other format"),
        ("react", "Thought: a Action: go", "agentbench_os", "'go' has no place in the other format, which reads None"),
    ],
)
def test_another_action_is_never_written(source: str, text: str, target: str, reason: str) -> None:
    with pytest.raises(ActionLost, match=reason):
        reformat(text, fmt(source), fmt(target))


def test_an_action_that_no_function_spells() -> None:
    target = fmt("tool_call", functions=[{"name": "go", "action": "go to {place}"}])

    assert '"arguments": {"place": "shelf 1"}' in reformat("go to shelf 1", fmt("plain"), target).text
    with pytest.raises(ActionLost, match="none of the functions go spells the action 'look'"):
        reformat("look", fmt("plain"), target)


def conversation(*contents: str) -> Conversation:
    roles = ("user", "assistant")
    return Conversation(
        messages=tuple(Message(role=roles[place % 2], content=text) for place, text in enumerate(contents))  # type: ignore[arg-type]
    )


def test_a_conversation_tells_the_new_format() -> None:
    source, target = fmt("agentgym"), fmt("think_act")
    given = conversation(f"Rules. {source.instructions}", source.render("a", "b"), "seen", source.render("c", "d"))

    found, losses = reformat_conversation(given, source, target)

    assert [message.content for message in found.messages] == [
        f"Rules. {target.instructions}", "Think: a\nAct: b", "seen", "Think: c\nAct: d",
    ]  # fmt: skip
    assert not losses


def test_instructions_in_other_words_are_a_loss() -> None:
    found, losses = reformat_conversation(conversation("Rules.", "go"), fmt("plain"), fmt("think_act"))

    assert found.messages[0].content == f"Rules.\n\n{fmt('think_act').instructions}"
    assert losses == {"instructions": 1}


def test_a_reply_that_is_not_learned_may_have_no_action() -> None:
    given = conversation("Rules.", "OK.", "Go.", "Thought: a Action: b")
    ok = given.messages[1].model_copy(update={"learned": False})
    messages = (given.messages[0], ok, *given.messages[2:])

    found, _ = reformat_conversation(given.model_copy(update={"messages": messages}), fmt("react"), fmt("tags"))

    assert found.messages[1].content == "OK."
    with pytest.raises(ActionLost, match="message 2: a reply without an action"):
        reformat_conversation(given, fmt("react"), fmt("tags"))


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding-a-format.md").read_text(encoding="utf-8")
    (example,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import reformat\n" in block
    ]

    path = tmp_path / "example.py"
    path.write_text(example, encoding="utf-8")
    assert run_path(str(path))["found"].text == "look"


@pytest.mark.parametrize("env", ["babyai", "maze", "sciworld", "textcraft", "webshop", "wordle"])
@pytest.mark.skipif(not TRAJECTORIES.is_dir(), reason="the published trajectories are not here")
def test_published_replies_re_render_to_their_own_text(env: str) -> None:
    """To the letter, but for blanks in one of ten at the most."""
    replies = [
        message["value"]
        for row in _rows(TRAJECTORIES / env / "val.parquet")
        for message in json.loads(row)
        if message["from"] == "gpt" and message["loss"]
    ]
    source, tags = fmt("agentgym"), fmt("tags")

    for text in replies:
        same = reformat(text, source, source)
        assert same.losses in ((), ("wording",))
        assert same.text.split() == text.split(), "blanks around a thought or an action, at the most"
        assert reformat(reformat(text, source, tags).text, tags, source).text == same.text
    exact = sum(reformat(text, source, source).text == text.rstrip() for text in replies)
    assert exact >= 0.9 * len(replies)


def _rows(path: Path) -> list[str]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - where the data is

    return [json.dumps(row["conversations"]) for row in pq.read_table(path).to_pylist()]
