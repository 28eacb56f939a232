"""The tools that both environments have, and the execution of a tool."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from gymfleet_contracts.session import Tool

from gymfleet_envs.tau import arithmetic
from gymfleet_envs.tau.calls import tool
from gymfleet_envs.tau.database import Overlay
from gymfleet_envs.tau.task import RESPOND, TRANSFER, Call

ToolFunction: TypeAlias = Callable[..., str]
"""Takes the records as `data`, and the arguments by their names."""


def upstream(function: ToolFunction) -> ToolFunction:
    """Give a tool its upstream name, for Python's message about a call with wrong arguments."""
    words = function.__name__.split("_")
    function.__qualname__ = "".join(word.capitalize() for word in words) + ".invoke"
    return function


def execute(functions: Mapping[str, ToolFunction], data: Overlay, call: Call) -> str:
    """Return a tool's reply. As upstream, its changes up to an error stay."""
    function = functions.get(call.name)
    if function is None:
        return f"Unknown action {call.name}"
    try:
        return function(data=data, **call.values())
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the arguments, upstream shows Python's words
        return f"Error: {error}"


@upstream
def calculate(data: Overlay, expression: str) -> str:  # noqa: ARG001 - every tool takes it
    """See `arithmetic`."""
    return arithmetic.calculate(expression)


@upstream
def think(data: Overlay, thought: str) -> str:  # noqa: ARG001
    """Do nothing."""
    return ""


@upstream
def transfer_to_human_agents(data: Overlay, summary: str) -> str:  # noqa: ARG001
    """End the episode."""
    return "Transfer successful"


FUNCTIONS: Final[Mapping[str, ToolFunction]] = {
    "calculate": calculate, "think": think, TRANSFER: transfer_to_human_agents,
}  # fmt: skip
RESPOND_TOOL: Final = tool(
    RESPOND, "Say something to the customer, and hear what the customer answers.", content="What you say."
)
TOOLS: Final[tuple[Tool, ...]] = (
    tool(
        "calculate",
        "Compute an expression.",
        expression="Numbers, + - * /, parentheses and spaces, such as '2 + 2'.",
    ),
    tool("think", "Write down a thought. Nothing is looked up or changed.", thought="The thought."),
    tool(
        TRANSFER,
        "Transfer the customer to a human agent, if that is asked for, or if no tool can settle the matter.",
        summary="What it is about.",
    ),
)
