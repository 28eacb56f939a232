"""The strategy of the guide in a real rollout service: maze, gateway and an embedded vLLM are all real."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gymfleet_contracts.recipe_sections import RolloutSection
from gymfleet_contracts.rollout import Budget, GroupRequest, StrategySpec, SubmitJob
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.streams import ROLLOUT_REQUESTS
from gymfleet_contracts.trajectory import FinishReason, Status
from gymfleet_kit.streams import StreamProducer, connect, disconnect

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet
from tests.integration.test_rollout_service import finished, group, played, scored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs/adding-a-strategy.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RECIPE = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[rollout.strategy]" in block)

VARIES = """
from gymfleet_rollout.strategy import Strategy, StrategyOptions


class Varies(Strategy[StrategyOptions]):
    async def play(self, ctx):
        for _ in range(2 if ctx.group.group_id.startswith("reinforce.s000001-g01") else 4):
            node = await ctx.open()
            while not node.over:
                if node.depth == 1:
                    ctx.restart(node, f"You have made a move. {node.observation}")
                (reply,) = await ctx.propose(node)
                node = await ctx.act(node, reply)
            ctx.export(node)
"""


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "branch.py"
    path.write_text(SOURCE)
    path.with_name("varies.py").write_text(VARIES)
    return path


@pytest.fixture(scope="module")
def http(maze_fleet: Fleet, branch: Path) -> Iterator[httpx.Client]:
    """A rollout service that was given the guide's file; the fleet's own rests meanwhile."""
    with maze_fleet.other_rollout(PLUGINS=json.dumps([str(branch), str(branch.with_name("varies.py"))])) as client:
        yield client


def test_the_guides_strategy_is_short() -> None:
    assert len(SOURCE.splitlines()) < 60
    section = RolloutSection.model_validate(tomllib.loads(RECIPE)["rollout"])
    assert section.strategy.spec == StrategySpec(use="./branch.py", options={"shared_turns": 2})
    assert section.budget == Budget(env_steps=200)


def request(group_id: str, branch: Path, budget: Budget | None = None, **options: int) -> GroupRequest:
    spec = StrategySpec(use=str(branch), options=dict(options))
    return group("branch", group_id, strategy=spec, budget=budget or Budget())


def test_episodes_share_their_first_turns(http: httpx.Client, branch: Path) -> None:
    trajectories = played(http, request("g0", branch, shared_turns=2))

    assert [t.trajectory_id for t in trajectories] == [f"branch/g0/{sample}" for sample in range(4)]
    assert {t.status for t in trajectories} <= {Status.COMPLETED, Status.TRUNCATED}
    stem = trajectories[0].turns[:2]
    assert all(t.turns[:2] == stem for t in trajectories), "sampled once, token by token"
    assert [turn.node for turn in stem] == ["1", "2"]
    ends = [turn for t in trajectories for turn in t.turns[2:]]
    assert len({turn.node for turn in ends}) == len(ends)
    assert all(turn.parent == "2" for turn in ends)
    assert len({turn.response_token_ids for turn in ends}) > 1, "the branches are drawn apart"


def test_the_search_is_in_the_answer_of_a_job(http: httpx.Client, branch: Path) -> None:
    job = finished(http, request("g0", branch, keep=1))

    (line,) = http.get(f"/v1/jobs/{job.job_id}/trees").content.split(b"\n")[:-1]
    tree = SearchTree.model_validate_json(line)
    assert (tree.group_id, tree.strategy) == ("g0", str(branch))
    (chosen,) = (node for node in tree.nodes if node.samples)
    assert (chosen.samples, chosen.selected) == ((0,), True)
    rejected = [node for node in tree.nodes if node.ended is not None and not node.samples]
    assert len(rejected) == 3, "three of four branches were not handed in"
    assert tree.spent.env_steps <= tree.spent.model_calls


def test_a_budget_that_is_spent_leaves_what_was_played(http: httpx.Client, branch: Path) -> None:
    trajectories = played(http, request("g1", branch, Budget(model_calls=3)))

    assert {t.finish_reason for t in trajectories} <= {FinishReason.BUDGET, FinishReason.TERMINATED}
    replies = {turn.node for t in trajectories for turn in t.turns}
    assert len(replies) <= 3


async def test_a_group_on_the_stream_is_as_large_as_its_strategy_makes_it(
    http: httpx.Client, branch: Path, maze_fleet: Fleet
) -> None:
    del http
    redis = connect(maze_fleet.redis.url)
    try:
        await StreamProducer(redis, ROLLOUT_REQUESTS).publish(request("g2", branch, keep=2))
        found = await scored(redis, "branch", 2)
    finally:
        await disconnect(redis)

    assert sorted(item.trajectory.sample for item in found) == [0, 1]
    assert all(item.trajectory.group_size == 2 and item.trajectory.selected for item in found)
    assert all(item.reward is not None for item in found)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            StrategySpec(use="nothing"),
            "there is no strategy 'nothing'; known: beam, best_of_n, dfsdt, expert, ",
        ),
        (StrategySpec(use="./other.py"), "this service was not given the strategy './other.py'"),
        (StrategySpec(options={"width": 1}), "rollout.strategy.width: Extra inputs are not permitted"),
    ],
)
def test_one_that_cannot_be_used_is_refused(http: httpx.Client, spec: StrategySpec, reason: str) -> None:
    body = SubmitJob(groups=(group("wrong", strategy=spec),))

    answer = http.post("/v1/jobs", json=body.model_dump(mode="json"))

    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unknown-strategy")
    assert answer.json()["detail"].startswith(reason)


def test_groups_of_any_size_are_trained_on(
    http: httpx.Client, branch: Path, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    table = f'[rollout.strategy]\nuse = "{branch.with_name("varies.py")}"'
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=1, sft="", more=table, settings={"ROLLOUT_URL": str(http.base_url)}
    )

    run.finish()

    (step,) = run.metrics("rl_step")
    assert step["episodes"] == 4 + 2, "and three were asked for of each"
    assert step["num_sequences"] > step["episodes"], "their context was replaced after the first turn"
    lines = (run.run_dir / "trees" / "reinforce.jsonl").read_bytes().split(b"\n")[:-1]
    handed_in = {
        tree.group_id: sum(len(node.samples) for node in tree.nodes)
        for tree in map(SearchTree.model_validate_json, lines)
    }
    assert (len(lines), handed_in) == (2, {"reinforce.s000001-g00": 4, "reinforce.s000001-g01": 2})


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_turns_that_episodes_share_are_computed_once(
    http: httpx.Client, branch: Path, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, algorithm: str
) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=2, sft="", algorithm=algorithm,
        more=f'[rollout.strategy]\nuse = "{branch}"\nshared_turns = 2', settings={"ROLLOUT_URL": str(http.base_url)},
    )  # fmt: skip

    run.finish()

    steps = [line for line in run.metrics("rl_step") if line["num_updates"]]
    assert steps, "at least one group in two steps has episodes of different worth"
    for step in steps:
        assert 0 < step["num_shared_tokens"] / step["num_tokens"] < 2 / 3, "of three episodes, in their first turns"
        assert step["num_nonfinite"] == 0
    state = run.state()
    assert state is not None
    assert state.dropped == {}, "and no record contradicts another"
