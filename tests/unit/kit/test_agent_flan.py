"""Agent-FLAN's recipe: replies taken apart, negatives, and mixtures by weights."""

from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_kit.data import samples
from gymfleet_kit.data.converter_checks import examine
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.filtering import filter_of
from gymfleet_kit.data.tools import tool_use
from gymfleet_kit.plugins import PluginError


def record(*said: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in said], **more}


def converted(use: str, given: dict[str, Any], **options: Any) -> list[Conversation]:
    found = converter_of({"use": use, **options}, table="x").convert(given)
    return [one for one in found if isinstance(one, Conversation)]


def said(one: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in one.messages]


def apart(reply: str, **options: Any) -> list[tuple[str, str]]:
    (one,) = converted("decomposed", record(("user", "?"), ("assistant", reply)), whole_share=0, **options)
    return said(one)[1:]


ACTION, ARGUMENTS = ("user", "What do you do next? Say only the name of the action."), ("user", "With which arguments?")


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        ("Thought: I look.\nAction: weather(Kyoto)", ["I look.", ACTION, "weather", ARGUMENTS, "Kyoto"]),
        ("Thought: t\nAction: get with Action Input: {}", ["t", ACTION, "get", ARGUMENTS, "{}"]),
        ('Thought: t\nAction: get\nAction Input: {"a":\n1}', ["t", ACTION, "get", ARGUMENTS, '{"a":\n1}']),
        ("Thought: t\nAction: click[Buy Now]", ["t", ACTION, "click", ARGUMENTS, "Buy Now"]),
        ("Thought: t\nAction: go to shelf 1", ["t", ACTION, "go to shelf 1"]),
        ("Action: weather(Kyoto)", ["weather", ARGUMENTS, "Kyoto"]),
        ("Action: look", ["look"]),
        ("It is dry.", ["It is dry."]),
    ],
)
def test_a_reply_is_taken_apart(reply: str, parts: list[Any]) -> None:
    assert apart(reply) == [("assistant", part) if isinstance(part, str) else part for part in parts]


def test_each_part_is_learned_and_what_was_not_learned_stays() -> None:
    given = record(
        ("user", "rules"),
        ("assistant", "Thought: a\nAction: b"),
        ("user", "go"),
        ("assistant", "Thought: c\nAction: d"),
    )
    given["messages"][1]["weight"] = 0

    (one,) = converted("decomposed", given, whole_share=0)

    assert [message.content for message in one.messages if message.teaches] == ["c", "d"]
    assert said(one)[1] == ("assistant", "Thought: a\nAction: b")
    assert one.labels == ("decomposed",)


def test_so_many_stay_whole() -> None:
    given = [record(("user", str(number)), ("assistant", "Thought: t\nAction: look")) for number in range(100)]

    def whole(**options: Any) -> list[bool]:
        converter = converter_of({"use": "decomposed", **options}, table="x")
        (*found,) = (one for each in given for one in converter.convert(each) if isinstance(one, Conversation))
        return [not one.labels for one in found]

    assert (sum(whole(whole_share=0)), sum(whole(whole_share=1))) == (0, 100)
    assert 2 <= sum(whole()) <= 20, "one in ten: 10, and a standard deviation of 3"
    assert whole() == whole() != whole(seed=1)


def test_the_description_of_the_format_is_cut_and_the_questions_are_options() -> None:
    asked = 'Look.\nAnswer with "Thought: <your reasoning> Action: <your action>".'
    given = record(("system", "In two lines. Be brief."), ("user", asked), ("assistant", "Thought: t\nAction: f(1)"))

    (one,) = converted(
        "decomposed", given, whole_share=0, without=["In two lines."], ask_action="Action?", ask_arguments="Arguments?"
    )

    assert said(one)[:2] == [("system", "Be brief."), ("user", "Look.")]
    assert [text for role, text in said(one)[2:] if role == "user"] == ["Action?", "Arguments?"]


def test_the_format_is_an_option() -> None:
    reply = "<think>t</think><act>look</act>"

    assert apart(reply, format={"use": "tags", "action_tag": "act"}) == [
        ("assistant", "t"),
        ACTION,
        ("assistant", "look"),
    ]
    assert apart(reply) == [("assistant", reply)]
    with pytest.raises(PluginError, match="there is no format 'yaml'"):
        converter_of({"use": "decomposed", "format": "yaml"}, table="x")


def test_thoughts_and_calls_beside_the_text_are_kept() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    beside: list[dict[str, Any]] = [{"reasoning_content": "Hm."}, {"tool_calls": [call]}]
    given = [record(("user", "?"), ("assistant", "Thought: t\nAction: look")) for _ in beside]
    for one, more in zip(given, beside, strict=True):
        one["messages"][1] |= more

    thinking, calling = (converted("decomposed", one, whole_share=0)[0].messages for one in given)

    assert [message.reasoning for message in thinking] == ["", "Hm.", "", ""]
    assert [(message.content, len(message.tool_calls)) for message in calling[1:]] == [("Thought: t\nAction: look", 1)]


PLAIN = record(("user", "Thanks!"), ("assistant", "You are welcome."))


def test_negatives_offer_tools_that_are_not_needed_or_none() -> None:
    offered, nothing = converted("negatives", PLAIN, tools=["f(x)", "g(y)"], num_tools=1)

    assert said(offered)[0][1] in {f"You may call: {tool}. Call one only if it is needed." for tool in ("f(x)", "g(y)")}
    assert said(nothing)[0] == ("system", "There are no tools. Answer in your own words.")
    assert said(offered)[1:] == said(nothing)[1:] == [("user", "Thanks!"), ("assistant", "You are welcome.")]
    assert offered.labels == nothing.labels == ("negative",)
    assert tool_use([offered, nothing]).num_calls == 0


@pytest.mark.parametrize(
    ("options", "systems"),
    [
        ({"offer": "tools", "tools": ["f(x)"], "offered": "Tools: {tools}"}, ["Tools: f(x)"]),
        ({"offer": "none", "nothing": "Nothing."}, ["Nothing."]),
    ],
)
def test_each_option_of_negatives(options: dict[str, Any], systems: list[str]) -> None:
    assert [said(one)[0][1] for one in converted("negatives", PLAIN, **options)] == systems


def test_the_seed_draws_the_tools() -> None:
    def drawn(seed: int) -> list[str]:
        questions = [record(("user", str(number)), ("assistant", "Hm.")) for number in range(9)]
        return [said(converted("negatives", one, offer="tools", num_tools=2, seed=seed)[0])[0][1] for one in questions]

    assert drawn(0) == drawn(0) != drawn(1)


@pytest.mark.parametrize(
    "given",
    [
        record(("system", "Be brief."), ("user", "?"), ("assistant", "!")),
        record(("user", "?"), ("assistant", "f(1)")),
        record(("user", "?"), ("assistant", "!"), tools=[{"name": "f", "parameters": {}}]),
    ],
)
def test_nothing_is_made_of_what_is_no_plain_conversation(given: dict[str, Any]) -> None:
    assert converted("negatives", given) == []


@pytest.mark.parametrize("name", ["decomposed", "negatives"])
def test_they_keep_what_every_converter_promises(name: str) -> None:
    assert examine(name) == []


def labelled(label: str, number: int) -> list[Record]:
    """Of 10 characters each."""
    (one,) = converted("messages", record(("user", "?"), ("assistant", "0123456789")))
    return [one.model_copy(update={"labels": (label,) if label else ()}) for _ in range(number)]


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        pytest.param({"a": 1, "b": 1}, (400, 400, 0), id="equal: the scarcer is kept whole"),
        pytest.param({"a": 4, "b": 1}, (1600, 400, 0), id="in proportion: both whole"),
        pytest.param({"a": 8, "b": 1}, (1600, 200, 0), id="the other one is the scarcer"),
        pytest.param({"a": 1, "": 1}, (800, 0, 800), id="the rest has a weight, b is part of it"),
        pytest.param({"a": 2, "b": 1, "": 1}, (800, 400, 400), id="three"),
        pytest.param({"a": 1, "zz": 1}, (1600, 0, 0), id="a kind that is not there"),
    ],
)
def test_a_mixture_by_labels(weights: dict[str, float], wanted: tuple[int, int, int]) -> None:
    given = [*labelled("a", 1600), *labelled("b", 400), *labelled("", 400)]

    found = filter_of({"use": "mixture", "weights": weights}, table="x").kept(given)

    kinds = [one.labels for one in found if isinstance(one, Conversation)]
    counts = [kinds.count(("a",)), kinds.count(("b",)), kinds.count(())]
    if weights.keys() == {"a", ""}:
        counts = [counts[0], 0, counts[1] + counts[2]]
    for count, number in zip(counts, wanted, strict=True):
        assert abs(count - number) <= 60, "three standard deviations of a share of 1600"


def test_a_mixture_by_environments_and_its_seed() -> None:
    given = samples.records()

    def kept(**options: Any) -> list[int]:
        found = {id(one) for one in filter_of({"use": "mixture", **options}, table="x").kept(given)}
        return [place for place, one in enumerate(given) if id(one) in found]

    assert kept(by="env", weights={"maze": 1}) == [0, 1, 2, 3, 4, 5, 9]
    assert kept() == list(range(len(given))), "one kind is kept whole"
    drawn = [kept(by="env", weights={"maze": 1, "": 9}, seed=seed) for seed in range(8)]
    assert drawn[0] == kept(by="env", weights={"maze": 1, "": 9})
    assert len({tuple(one) for one in drawn}) > 1
