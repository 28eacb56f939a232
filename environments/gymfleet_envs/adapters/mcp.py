"""Any MCP server as an environment: its tools are the actions, and the author's checker decides the score.

A session has its own connection, and its own process if the server is given as a command. Changes that the tools make
elsewhere (files, accounts) are up to the server: point it at something that nobody needs, and let `check` look at it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from gymfleet_contracts.session import ForkSupport, Split
from gymfleet_contracts.strict_json import read_object
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CallToolResult, ContentBlock, EmbeddedResource, TextContent, TextResourceContents
from pydantic import JsonValue

from gymfleet_envs.environment import AsyncEnvironment, EngineLost, Outcome
from gymfleet_envs.tasks import SPLITS, ListedTasks, Task, TaskDataError, TaskSource

_MAX_SHOWN: Final = 20_000
"""Characters of a tool's result, and of the list of tools, that an agent sees."""
_FINISH: Final = "finish"
_RULES: Final = (
    "You reach a goal by calling tools. An action is the name of a tool and its arguments as a JSON object, as in:\n"
    'search {"query": "weather in Oslo"}\n'
    "When you are done, give your answer, which ends the episode:\n"
    "finish YOUR ANSWER"
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A task: text for the agent, and facts for the checker alone."""

    id: str
    text: str
    split: Split = "test"
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    """Facts for the checker, such as the right answer; agents never see them."""


@dataclass(frozen=True, slots=True)
class Finished:
    """An episode whose agent said that it is done."""

    goal: Goal
    answer: str
    calls: Sequence[tuple[str, Mapping[str, JsonValue]]]
    """Tools and arguments, in the order in which the agent called them."""
    call: Callable[[str, Mapping[str, JsonValue]], Awaitable[str]]
    """Calls a tool of the same session, to look at the state that was reached."""


Check = Callable[[Finished], Awaitable[float]]
"""Returns the score in [0, 1]. If it raises, the episode fails and is never scored."""


class _FromMcp(AsyncEnvironment[Goal]):
    """One connection to the server."""

    fork: ClassVar[ForkSupport] = ForkSupport.NONE
    server: ClassVar[str | StdioServerParameters]
    goals: ClassVar[Sequence[Goal]]
    check: ClassVar[Check]
    timeout_s: ClassVar[float]

    def __init__(self) -> None:
        self._connection = _Connection(self.server, self.timeout_s)
        self._calls: list[tuple[str, Mapping[str, JsonValue]]] = []

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Goal]:
        """The given goals."""
        del data
        if unknown := sorted({goal.split for goal in cls.goals}.difference(SPLITS)):
            raise TaskDataError(f"{cls.name}: there is no split {unknown[0]!r}; there are {', '.join(SPLITS)}")
        return ListedTasks(cls.name, "mcp", [Task(goal.id, goal.split, "only", goal) for goal in cls.goals])

    async def reset(self, task: Goal, seed: int) -> str:
        """Connect, and show the goal and the tools."""
        del seed
        self._goal = task
        tools = await self._connection.tools()
        return f"Tools:\n{tools}\n\nGoal: {task.text}"

    async def step(self, action: str) -> Outcome:
        """Call a tool, once; or finish and check the episode."""
        name, _, rest = action.strip().partition(" ")
        if name == _FINISH:
            done = Finished(self._goal, rest.strip(), tuple(self._calls), self._told)
            score = float(await type(self).check(done))
            if not 0 <= score <= 1:
                raise ValueError(f"{self.name}: check returned {score}, which is no score in [0, 1]")
            return Outcome("Finished.", reward=score, score=score, terminated=True)
        if (arguments := read_object(rest or "{}")) is None:
            return Outcome("Write a tool's name and its arguments as a JSON object.", action_valid=False)
        result = await self._connection.call(name, arguments)
        if result is None:
            return Outcome(f"There is no tool {name[:100]!r}, or it does not take that.", action_valid=False)
        self._calls.append((name, arguments))
        return Outcome(_cut(f"Error: {_text(result)}" if result.is_error else _text(result)))

    async def close(self) -> None:
        """End the connection, and the process if the session has its own."""
        await self._connection.end()

    async def _told(self, name: str, arguments: Mapping[str, JsonValue]) -> str:
        result = await self._connection.call(name, arguments)
        if result is None or result.is_error:
            raise RuntimeError(
                f"{self.name}: the checker's call of {name} failed: {'' if result is None else _text(result)}"
            )
        return _text(result)


def from_mcp(
    server: str | Sequence[str],
    name: str,
    goals: Sequence[Goal],
    check: Check,
    *,
    instructions: str = _RULES,
    max_turns: int = 20,
    version: str = "1",
    deterministic: bool = False,
    timeout_s: float = 25.0,
) -> type[AsyncEnvironment[Goal]]:
    """Return an MCP server as an environment.

    Args:
        server: the server's URL, or the command that starts one per session, which speaks over its standard streams.
        name: gymfleet's name of the environment.
        goals: the tasks.
        check: scores a finished episode. An episode that runs out of turns has score 0.
        instructions: rules for the model.
        max_turns: limit on an episode's calls.
        version: raise it when episodes change.
        deterministic: whether the same calls in a new session lead to the same state; only then is a lost session
            replayed.
        timeout_s: limit on the wait for each answer of the server.
    """
    given = server if isinstance(server, str) else StdioServerParameters(command=server[0], args=list(server[1:]))
    fields = {
        "name": name, "version": version, "summary": f"The tools of an MCP server: {name}",
        "instructions": instructions, "max_turns": max_turns, "deterministic": deterministic,
        "fork": ForkSupport.REPLAY if deterministic else ForkSupport.NONE, "server": given, "goals": tuple(goals),
        "check": staticmethod(check), "timeout_s": timeout_s,
    }  # fmt: skip
    return type("FromMcp", (_FromMcp,), fields)


class _Connection:
    """A client in its own asyncio task: the task that opens a connection must also close it."""

    def __init__(self, server: str | StdioServerParameters, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._ended = asyncio.Event()
        self._client: asyncio.Future[Client] | None = None
        self._task: asyncio.Task[None] | None = None

    async def tools(self) -> str:
        """Return the tools, one per line with its description and the schema of its arguments."""
        lines: list[str] = []
        async with self._answering():
            client = await self._opened()
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                lines += [
                    f"{tool.name}: {' '.join((tool.description or '').split())} {json.dumps(tool.input_schema)}"
                    for tool in page.tools
                ]
                cursor = page.next_cursor
                if not cursor or sum(map(len, lines)) > _MAX_SHOWN:
                    break
        return _cut("\n".join(lines))

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> CallToolResult | None:
        """Call a tool, once; return None if the server refuses the call itself. Raises `EngineLost`."""
        async with self._answering():
            client = await self._opened()
            try:
                return await client.call_tool(name, dict(arguments))
            except MCPError as error:
                if error.error.code in _REFUSED:
                    return None
                raise

    async def end(self) -> None:
        """Close the connection."""
        self._ended.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._timeout_s)
            self._task.cancel()

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Lose the session on every failure of the connection; a call is never made twice."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            raise EngineLost(f"{self._where()} did not answer within {self._timeout_s:g} s") from None
        except (MCPError, OSError, RuntimeError, ExceptionGroup) as error:
            raise EngineLost(f"{self._where()}: {_root(error)}") from None
        if self._task is not None and self._task.done():
            raise EngineLost(f"{self._where()} closed the connection")

    async def _opened(self) -> Client:
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(self._client))
        return await asyncio.shield(self._client)

    async def _hold(self, opened: "asyncio.Future[Client]") -> None:
        try:
            async with Client(self._server) as client:
                opened.set_result(client)
                await self._ended.wait()
        except Exception as error:
            if not opened.done():
                opened.set_exception(OSError(_root(error)))
            elif not self._ended.is_set():
                raise

    def _where(self) -> str:
        return self._server if isinstance(self._server, str) else self._server.command


_REFUSED: Final = (-32601, -32602)
"""JSON-RPC's "method not found" and "invalid params", with which MCP answers a call of an unknown tool."""


def _text(result: CallToolResult) -> str:
    return "\n".join(map(_text_of, result.content))


def _text_of(part: ContentBlock) -> str:
    """Return a part's text, which may be that of a file; of anything else only the kind."""
    match part:
        case TextContent(text=text) | EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
    return f"[{part.type}]"


def _cut(text: str) -> str:
    """Return a text that an agent can be shown."""
    excess = len(text) - _MAX_SHOWN
    return text if excess <= 0 else f"{text[:_MAX_SHOWN]}\n[cut: {excess} more characters]"


def _root(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
