"""Tools that are offered and called, and the rate of hallucinated ones."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_kit.data import samples
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.filtering import filter_of
from gymfleet_kit.data.tools import called_tools, offered_tools, tool_use

DATA = Path(__file__).parents[4] / "shared/data/trajectories"


def told(system: str, *replies: str) -> Conversation:
    messages = [{"role": "system", "content": system}]
    for reply in replies:
        messages += [{"role": "user", "content": "?"}, {"role": "assistant", "content": reply}]
    return Conversation.model_validate({"messages": messages})


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("You may call: weather(city), news()", {"weather", "news"}),
        ("Name: get_movie(title)\nDescription: a movie\nName: finish(answer)", {"get_movie", "finish"}),
        ("1. Tool: search\n- Function: look.up", {"search", "look.up"}),
        ('[{"type": "function", "function": {"name": "get-it", "parameters": {}}}]', {"get-it"}),
        ("You are helpful. There are no tools.", set()),
    ],
)
def test_what_is_offered(system: str, names: set[str]) -> None:
    assert offered_tools(told(system, "Hello.")) == names


def test_a_reply_offers_nothing() -> None:
    assert offered_tools(told("You may call: weather(city)", "news()", "more()")) == {"weather"}


@pytest.mark.parametrize(
    ("reply", "names"),
    [
        ("Thought: t\nAction: get_movie with Action Input: {}", ["get_movie"]),
        ("Thought: t\nAction: get_movie\nAction Input: {}", ["get_movie"]),
        ("Action:\nget_movie with Action Input: {}", ["get_movie"]),
        ("Action: a\nAction Input: {}\nAction: b\nAction Input: {}", ["a", "b"]),
        ("Think: t\nAct: answer(3)", ["answer"]),
        ("weather(Kyoto)", ["weather"]),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Kyoto"}}\n</tool_call>', ["weather"]),
        ('{"tool": "search", "args": {}}', ["search"]),
        ("Thought: I look.\nAction: go to shelf 1", []),
        ("It is dry (I think).", []),
        ('{"name": "Ada"}', []),
        ("Action: click[Buy Now]", []),
    ],
)
def test_what_is_called(reply: str, names: list[str]) -> None:
    assert called_tools(reply) == names


def test_the_rate_by_hand() -> None:
    records: list[Record] = [
        told("weather(city)", "weather(Kyoto)", "news(today)", "It is dry."),
        told("weather(city)", "weather(Oslo)", "weather(Rome)"),
        told("No tools.", "weather(Rome)"),
        *samples.episodes(),
    ]

    use = tool_use(records)

    assert (use.num_calls, use.num_unknown, use.rate) == (4, 1, 0.25)
    assert use.hallucinated == {"news": 1}
    assert use.num_replies == 3 + 2 + 1 + (3 + 5 + 1 + 30 + 0 + 3)
    assert tool_use([]).rate == 0


RECORDS: list[Record] = [
    told("f(x)", "f(1)"), told("f(x)", "f(1)", "g(1)"),
    told("f(x)", "g(1)"), told("None.", "g(1)"), told("None.", "Hi."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, [0, 3, 4]),
        ({"max_rate": 0.5}, [0, 1, 3, 4]),
        ({"unknown": "drop"}, [0, 4]),
    ],
)
def test_what_is_kept(options: dict[str, Any], places: list[int]) -> None:
    found = filter_of({"use": "hallucinated_tools", **options}, table="x").kept(RECORDS)

    assert [next(place for place, one in enumerate(RECORDS) if one is record) for record in found] == places


@pytest.mark.parametrize(
    "text", ["Action:" + "\n" * 200_000, "a." * 200_000, '"name"' + " " * 200_000, "a-" * 9 + "(" * 99_999]
)
def test_a_text_that_is_made_to_be_slow_to_read_is_read(text: str) -> None:
    assert tool_use([told(text, text)]).num_replies == 1


@pytest.mark.skipif(not DATA.is_dir(), reason="no real trajectories here")
@pytest.mark.parametrize(("env", "calls"), [("movie", 844), ("todo", 760), ("weather", 1697)])
def test_real_conversations_call_what_they_are_offered(env: str, calls: int) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(DATA / env / "train.parquet").to_pylist()
    converter = converter_of("sharegpt", table="x")
    found = [one for row in rows for one in converter.convert(row)]
    given: list[Record] = [one for one in found if isinstance(one, Conversation)]

    use = tool_use(given)

    assert (use.num_calls, use.num_unknown, use.rate) == (calls, 0, 0)
