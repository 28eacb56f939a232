"""Calls of the environment's own tools: declared in the prompt, checked and spelled by the environment."""

import json
from typing import Any

import pytest
from gymfleet_client.errors import ActionTooLarge, InvalidToolCall
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import EnvironmentSpec, Tool, ToolCall
from gymfleet_contracts.trajectory import Status, Trajectory
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from benchmarks.playing import episodes
from tests.unit.rollout.test_episode import CHAT, SPEC, Door, ScriptedPolicy, group

TOOLS = (
    Tool(name="push", description="Push.", parameters={"type": "object", "properties": {"what": {"type": "string"}}}),
)
FORMAT = {"use": "tool_call", "functions": "environment"}


class Tooled(Door):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[ToolCall] = []

    async def tool_action(self, session_id: str, call: ToolCall, *, timeout_s: float = 0) -> str:
        self.calls.append(call)
        if len(str(call.arguments.get("what"))) > 20:
            raise ActionTooLarge(Problem(title="", status=413, detail="the action has 30 characters; door takes 20"))
        if call.arguments.get("what") != "door":
            problem = Problem(type="/problems/invalid-tool-call", title="", status=422, detail="push /what: no door")
            raise InvalidToolCall(problem)
        return "open"


class Specs:
    def __init__(self, *tools: Tool) -> None:
        self._spec = SPEC.model_copy(update={"tools": tools})

    async def spec(self, name: str) -> EnvironmentSpec:
        return self._spec


async def played(door: Door, *replies: str, tools: tuple[Tool, ...] = TOOLS, **changes: Any) -> Trajectory:
    player = Player(ScriptedPolicy(*replies), CHAT, door, Specs(*tools), Formats(), max_episodes=8)  # type: ignore[arg-type]
    (trajectory,) = await episodes(player, group(**{"format": FORMAT, **changes}), [1])
    return trajectory


def calls(name: str, **arguments: Any) -> str:
    return f"I try.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_the_environment_says_which_action_a_call_spells() -> None:
    door = Tooled()

    trajectory = await played(door, calls("push", what="wall"), calls("pull"), calls("push", what="door"))

    assert trajectory.status is Status.COMPLETED, trajectory.error
    assert [turn.action for turn in trajectory.turns] == [None, None, "open"]
    assert [turn.format_valid for turn in trajectory.turns] == [False, False, True]
    assert [turn.action_valid for turn in trajectory.turns] == [False, False, True]
    assert trajectory.turns[1].observation == "Invalid call: push /what: no door"
    assert trajectory.turns[2].observation.startswith("Invalid call. Functions: push.")
    assert door.calls == [ToolCall(name="push", arguments={"what": name}) for name in ("wall", "door")]
    assert [action for _, _, action in door.actions] == ["open"], "a trajectory replays without the tools"


async def test_a_call_that_spells_too_long_an_action_is_the_policys_mistake() -> None:
    trajectory = await played(Tooled(), calls("push", what="w" * 21), calls("push", what="door"))

    assert (trajectory.status, trajectory.attempt) == (Status.COMPLETED, 1), trajectory.error
    assert [turn.action for turn in trajectory.turns] == [None, "open"]
    assert trajectory.turns[1].observation == "Invalid call: the action has 30 characters; door takes 20"


@pytest.mark.parametrize("number", ["9" * 30, "-" + "9" * 30, "1e999"])
async def test_a_number_that_no_frame_can_hold_is_no_call(number: str) -> None:
    door = Tooled()
    call = calls("push", what="many").replace('"many"', number)

    trajectory = await played(door, call, calls("push", what="door"))

    assert trajectory.turns[1].observation.startswith("Invalid call. Functions: push.")
    assert [call.arguments for call in door.calls] == [{"what": "door"}]


async def test_the_tools_are_declared_in_the_prompt() -> None:
    trajectory = await played(Tooled(), calls("push", what="door"))

    prompt = CHAT._tokenizer.decode(list(trajectory.turns[0].prompt_token_ids))
    assert json.dumps(TOOLS[0].model_dump()) in prompt


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"tools": ()}, "the environment declares no tools", id="none"),
        pytest.param({"strategy": {"use": "expert"}}, "none of the functions given spells the action", id="expert"),
    ],
)
async def test_what_cannot_be_is_told_in_a_line(changes: dict[str, Any], reason: str) -> None:
    trajectory = await played(Tooled(), calls("push", what="door"), **changes)

    assert (trajectory.status, trajectory.attempt) == (Status.POLICY_ERROR, 1)
    assert reason in (trajectory.error or "")
