"""The reply format of AgentGym's SearchQA, against the patterns that its server reads replies with."""

import re

import pytest
from gymfleet_contracts.formats.searchqa import Searchqa, read_move
from gymfleet_contracts.reply_format import FormatOptions
from hypothesis import given
from hypothesis import strategies as st

FORMAT = Searchqa(FormatOptions())
PIECES = ("<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "a", " ", "\n", "<")


@pytest.mark.parametrize(
    ("reply", "thought", "action", "well_formed"),
    [
        pytest.param("<think>a</think>\n<search> b </search>", "a", "<search>b</search>", True, id="a search"),
        pytest.param("<think>a</think><answer>b</answer>\n", "a", "<answer>b</answer>", True, id="an answer"),
        pytest.param("<search>b</search>", "", "<search>b</search>", False, id="no thought"),
        pytest.param("I see. <answer>b</answer>", "I see.", "<answer>b</answer>", False, id="a bare thought"),
        pytest.param("<think>a</think>so<answer>b</answer>", "a", "<answer>b</answer>", False, id="words between"),
        pytest.param("<think>a</think><answer>b</answer>.", "a", "<answer>b</answer>", False, id="words behind"),
        pytest.param("<think>a</think><answer> </answer>", "a", "<answer></answer>", False, id="an empty answer"),
        pytest.param("<think>a</think><answer>b", "a", None, False, id="an open tag"),
        pytest.param("<think>a <answer>b</answer></think><search>c</search>", "a", "<answer>b</answer>", False,
                     id="an answer in the thought: the first pair decides"),
        pytest.param("<think>a</think><answer>b</answer><answer>c</answer>", "a", "<answer>c</answer>", False,
                     id="two answers: the last counts"),
        pytest.param("<think>a</think><search>b</search><answer>c</answer>", "a", "<search>b</search>", False,
                     id="a search, then an answer: a search"),
        pytest.param("<think>a</think><search>b</search><search>c</search>", "a", "<search>b</search>", False,
                     id="two searches: the first counts"),
        pytest.param("<search><answer>b</answer>", "<search>", "<answer>b</answer>", False, id="an open search"),
        pytest.param("Search for b", "Search for b", None, False, id="no tags"),
    ],
)  # fmt: skip
def test_a_reply_is_read_as_agentgyms_server_reads_it(
    reply: str, thought: str, action: str | None, well_formed: bool
) -> None:
    parsed = FORMAT.parse(reply)

    assert (parsed.thought, parsed.action, parsed.well_formed) == (thought, action, well_formed)
    assert parsed.complete is (action is not None)


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_moves_are_those_of_the_published_patterns(text: str) -> None:
    move = read_move(text)

    found = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    if found is None:
        assert move is None
        return
    assert move is not None
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    content = found[2] if found[1] == "search" else answers[-1]
    assert (move.verb, move.content, move.begin) == (found[1], content.strip(), found.start())


@given(st.text(alphabet="<>/searchanwtik \n", max_size=300) | st.text())
def test_what_is_read_of_any_text_is_read_again(text: str) -> None:
    action = FORMAT.parse(text).action

    if action is not None:
        assert FORMAT.parse(action).action == action


def test_a_demonstration_is_well_formed() -> None:
    reply = FORMAT.render("I have to look it up.", "<search>Badr Hari</search>")

    assert reply == "<think>I have to look it up.</think>\n<search>Badr Hari</search>"
    assert FORMAT.parse(reply).well_formed
    assert FORMAT.parse(reply).action == "<search>Badr Hari</search>"
