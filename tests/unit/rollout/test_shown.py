"""What is shown below an observation: admissible actions and hints, in prompts and in the record."""

from typing import Any

import pytest
from gymfleet_client.errors import ActionsUnavailable
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import ActionSpace, StrategySpec
from gymfleet_contracts.session import AdmissibleActions, Capabilities, EnvironmentSpec
from gymfleet_contracts.trajectory import Status, Trajectory
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from benchmarks.playing import episodes
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, SPEC, Door, ScriptedPolicy, group

KNOWS = Capabilities(deterministic=True, expert=True, admissible_actions=True)
SHOWN = ActionSpace(shown=True)


class Listing(Door):
    """Lists one action more at each step; after two steps it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int | None] = []

    async def admissible_actions(
        self, session_id: str, *, index: int | None = None, timeout_s: float = 0
    ) -> AdmissibleActions:
        self.asked.append(index)
        if index == 2:
            raise ActionsUnavailable(Problem(type="/problems/actions-unavailable", title="", status=409, detail=""))
        return AdmissibleActions(actions=["go left", "open", "wave"][: 2 + (index or 0)])


class Specs:
    def __init__(self, **changes: Any) -> None:
        self._spec = SPEC.model_copy(update={"capabilities": KNOWS, **changes})

    async def spec(self, name: str) -> EnvironmentSpec:
        return self._spec


async def played(*replies: str, specs: Specs | None = None, door: Door | None = None, **changes: Any) -> Trajectory:
    player = Player(
        ScriptedPolicy(*replies), CHAT, door or Listing(), specs or Specs(), Formats(), max_episodes=8  # type: ignore[arg-type]
    )  # fmt: skip
    (trajectory,) = await episodes(player, group(**changes), [1])
    return trajectory


def prompts(trajectory: Trajectory) -> list[str]:
    return [CHAT._tokenizer.decode(list(turn.prompt_token_ids)) for turn in trajectory.turns]


async def test_actions_are_shown_in_prompts_and_in_the_record() -> None:
    door = Listing()

    trajectory = await played(LEFT, "Hm.", LEFT, OPEN, door=door, actions=SHOWN)

    first, second = '\nPossible actions: ["go left", "open"]', '\nPossible actions: ["go left", "open", "wave"]'
    observations = [turn.observation for turn in trajectory.turns]
    assert observations[:2] == [f"A door.{first}", f"You did go left.{second}"]
    assert observations[2].endswith(second), "the world did not move, and its actions are the same"
    assert observations[3] == "You did go left.", "where the environment does not know, nothing is shown"
    assert trajectory.final_observation == "You did open."
    for prompt, observation in zip(prompts(trajectory), observations, strict=True):
        assert observation in prompt
    assert door.asked == [0, 1, 2], "not after the end"


async def test_without_the_option_nobody_asks() -> None:
    door = Listing()

    trajectory = await played(LEFT, OPEN, door=door)

    assert [turn.observation for turn in trajectory.turns] == ["A door.", "You did go left."]
    assert door.asked == []


async def test_demonstrations_have_the_same_prompts() -> None:
    sampled = await played("Thought: I know Action: go left", OPEN, actions=SHOWN)
    demonstrated = await played(actions=SHOWN, strategy=StrategySpec(use="expert"))

    assert [turn.prompt_token_ids for turn in sampled.turns] == [turn.prompt_token_ids for turn in demonstrated.turns]


@pytest.mark.parametrize(
    ("most", "listing"), [(1, '["go left"] and 1 more'), (2, '["go left", "open"]'), (3, '["go left", "open"]')]
)
async def test_a_long_list_is_cut(most: int, listing: str) -> None:
    trajectory = await played(OPEN, actions=ActionSpace(shown=True, most=most))

    assert trajectory.turns[0].observation == f"A door.\nPossible actions: {listing}"


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
async def test_hints_are_shown_to_a_share_of_the_steps(probability: float) -> None:
    trajectory = await played(*[LEFT] * 40, OPEN, hint_probability=probability, limits={"max_turns": 41})

    hinted = [turn.observation.endswith(("\nHint: open", "\nHint: go left")) for turn in trajectory.turns]
    again = await played(*[LEFT] * 40, OPEN, hint_probability=probability, limits={"max_turns": 41})
    assert len(hinted) == 41
    assert abs(sum(hinted) / 41 - probability) < 0.25
    assert [turn.observation for turn in again.turns] == [turn.observation for turn in trajectory.turns]
    assert all("Hint:" in prompt for prompt, given in zip(prompts(trajectory), hinted, strict=True) if given)


@pytest.mark.parametrize(
    ("specs", "changes", "reason"),
    [
        (Specs(capabilities=Capabilities(deterministic=True, expert=True)), {"actions": SHOWN}, "does not list its"),
        (Specs(capabilities=Capabilities(deterministic=True)), {"hint_probability": 0.5}, "has no expert that could"),
        (Specs(images="only"), {}, "shows images alone, and the policy is shown text: give the environment the option"),
        (Specs(seats=("white", "black")), {"actions": SHOWN}, "is a game: neither actions nor hints are shown"),
    ],
)
async def test_what_an_environment_cannot_tell_is_refused(specs: Specs, changes: dict[str, Any], reason: str) -> None:
    trajectory = await played(OPEN, specs=specs, **changes)

    assert (trajectory.status, trajectory.attempt) == (Status.POLICY_ERROR, 1)
    assert reason in (trajectory.error or "")
