"""Episodes beside a greedy one: what is played how, what is handed in, and what the budget cuts."""

from typing import Any

from gymfleet_contracts.rollout import Budget, EpisodeLimits, Sampling, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import FinishReason, Trajectory
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from tests.fixtures.searches import BY_SCORE
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, Door, ScriptedPolicy, Specs, group
from tests.unit.rollout.test_forks import Scores, values


class GreedyFails(ScriptedPolicy):
    """Goes left where it is asked for the likeliest reply, and opens where it draws one."""

    async def generate(self, *args: Any, **given: Any) -> Any:
        sampling: Sampling = given["sampling"]
        self.calls.append((args[0], given["max_tokens"], sampling))
        return await ScriptedPolicy(LEFT if sampling.temperature == 0 else OPEN).generate(*args, **given)


async def play(policy: ScriptedPolicy, **changes: Any) -> tuple[list[Trajectory], list[SearchTree], Door]:
    door, trajectories, trees = Door(), [], []
    player = Player(policy, CHAT, door, Specs(), Formats(), max_episodes=8, evaluator=Scores())  # type: ignore[arg-type]
    wanted = group(
        **{
            "strategy": StrategySpec(use="greedy_baseline"), "num_samples": 2,
            "limits": EpisodeLimits(max_turns=3, max_attempts=1), "evaluator": BY_SCORE,
            "sampling": Sampling(seed=1, temperature=0.8), **changes,
        }
    )  # fmt: skip

    async def deliver(played: list[Trajectory]) -> None:
        trajectories.extend(played)

    async def deliver_tree(tree: SearchTree) -> None:
        trees.append(tree)

    await player.play(wanted, wanted.wanted, deliver, deliver_tree)
    return trajectories, trees, door


async def test_the_first_state_is_worth_what_a_greedy_episode_gains() -> None:
    policy = GreedyFails(OPEN)

    trajectories, (tree,), door = await play(policy)

    assert [(one.score, values(one)) for one in trajectories] == [(1.0, [(0.0, 1)])] * 2, "greedy, it does not get far"
    assert sorted(sampling.temperature for _, _, sampling in policy.calls) == [0.0] * 3 + [0.8] * 2
    assert tree.spent.env_steps == 5, "those of the greedy episode count"
    assert len(door.opened) == len(door.closed) == 3


async def test_a_greedy_episode_that_the_budget_cuts_is_no_baseline() -> None:
    trajectories, _, _ = await play(GreedyFails(OPEN), budget=Budget(env_steps=4))

    assert [values(one) for one in trajectories] == [[None]] * 2
    assert [one.finish_reason for one in trajectories] == [FinishReason.TERMINATED] * 2
