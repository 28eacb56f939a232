"""A program for the peers' Python: the official MCP client of the 1.x line plays through the gateway.

`python mcp_legacy_client.py URL OTHER_URL ENV`: URLs of two gateways of one fleet.
Prints what it saw as one JSON object; the test that started it judges.
"""

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from mcp import ClientSession
from mcp.client import streamable_http

# Looked up at run time: the 2.x line, with which this file is type-checked, has no such name.
streamablehttp_client: Any = vars(streamable_http)["streamablehttp_client"]


async def call(session: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await session.call_tool(tool, arguments)
    return {
        "error": result.isError,
        "structured": result.structuredContent,
        "text": json.loads(result.content[0].text),
    }


async def play(url: str, other_url: str, env: str) -> dict[str, Any]:
    seen: dict[str, Any] = {"version": version("mcp")}
    async with (
        streamablehttp_client(f"{url}/mcp/{env}") as (read, write, session_id),
        ClientSession(read, write) as first,
        streamablehttp_client(f"{other_url}/mcp/{env}") as (other_read, other_write, _),
        ClientSession(other_read, other_write) as second,
    ):
        welcome: Any = await first.initialize()
        await second.initialize()
        seen["protocol"] = welcome.protocolVersion
        seen["instructions"] = welcome.instructions
        seen["transport_session"] = session_id()
        seen["tools"] = sorted(tool.name for tool in (await first.list_tools()).tools)
        opened = [await call(first, "reset", split="train", task_index=index) for index in (0, 1)]
        seen["opened"] = opened
        one, two = (answer["structured"]["session_id"] for answer in opened)
        seen["step"] = await call(first, "step", session_id=one, index=0, action="nonsense")
        seen["step_repeated_elsewhere"] = await call(second, "step", session_id=one, index=0, action="nonsense")
        seen["gap"] = await call(first, "step", session_id=one, index=7, action="nonsense")
        seen["other_lease"] = await call(second, "state", session_id=two)
        seen["closed"] = [await call(first, "close", session_id=lease) for lease in (one, two)]
        seen["after_close"] = await call(first, "state", session_id=one)
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(play(*sys.argv[1:]))))
