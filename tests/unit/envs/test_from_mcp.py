"""What an agent sees of an MCP server: all pages of its tools, the text of files, and a mark where a text is cut."""

from collections.abc import Sequence
from typing import Any

import pytest
from gymfleet_envs.adapters.mcp import Finished, Goal, from_mcp
from mcp.server.lowlevel import Server
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ListToolsResult,
    TextContent,
    TextResourceContents,
    Tool,
)

GOAL = Goal("look", "Look.")
FILE = EmbeddedResource(resource=TextResourceContents(uri="file:///a.txt", text="in the file"))
PICTURE = EmbeddedResource(resource=BlobResourceContents(uri="file:///a.png", blob="AAAA"))


async def length(done: Finished) -> float:
    return len(await done.call("tool0", {})) / 30_000


def served(
    monkeypatch: pytest.MonkeyPatch, content: Sequence[ContentBlock], num_pages: int = 1, about: str = ""
) -> Any:
    """A world of a server in this process, whose tools all return the same."""

    async def tools(_: Any, asked: Any) -> ListToolsResult:
        page = int(asked.cursor or 0) if asked is not None else 0
        tool = Tool(name=f"tool{page}", description=about, input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], next_cursor=str(page + 1) if page + 1 < num_pages else None)

    async def call(_: Any, asked: Any) -> CallToolResult:
        return CallToolResult(content=list(content))

    kind = from_mcp("http://127.0.0.1", "pages", [GOAL], length)
    monkeypatch.setattr(kind, "server", Server("pages", on_list_tools=tools, on_call_tool=call))
    return kind()


async def test_tools_of_all_pages_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    world = served(monkeypatch, [], num_pages=3)

    shown = await world.reset(GOAL, 0)

    assert [line.partition(":")[0] for line in shown.splitlines()[1:4]] == ["tool0", "tool1", "tool2"]
    await world.close()


async def test_tools_without_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    world = served(monkeypatch, [], num_pages=10**9, about="x" * 1_000)

    shown = await world.reset(GOAL, 0)

    assert "more characters]\n\nGoal: Look." in shown
    assert len(shown) < 20_100
    await world.close()


async def test_the_text_of_a_file_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    world = served(monkeypatch, [TextContent(text="Here:"), FILE, PICTURE])
    await world.reset(GOAL, 0)

    assert (await world.step("tool0")).observation == "Here:\nin the file\n[resource]"
    await world.close()


async def test_a_long_result_is_cut_for_the_agent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = served(monkeypatch, [TextContent(text="x" * 30_000)])
    await world.reset(GOAL, 0)

    assert (await world.step("tool0")).observation == "x" * 20_000 + "\n[cut: 10000 more characters]"
    assert (await world.step("finish")).score == 1.0, "the checker sees all of it"
    await world.close()
