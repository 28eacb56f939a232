"""What bench_search reads from its runs: who is compared with whom, and within which budget."""

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory

from benchmarks.search_page import search_section
from benchmarks.search_runs import Measured, independent, rows, searched
from benchmarks.search_settings import SETTINGS, STRATEGIES, measured_by_goal, measured_by_model, recipe_of
from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.fixtures.trajectories import make_search_tree


def episode(task: int, sample: int, num_turns: int, *, success: bool = False) -> ScoredTrajectory:
    turn = make_turn()
    silent = turn.model_copy(update={"action": None, "format_valid": False, "action_valid": False})
    turns = (*(turn,) * (num_turns - 1), silent)
    return make_scored(f"independent.t{task:06d}", sample, turns=turns, success=success)


def test_independent_episodes_count_while_they_fit(tmp_path: Path) -> None:
    """Two tasks: the first is solved by its third episode, which ends with the sixth reply; the second never."""
    played = [
        episode(0, 2, 2, success=True), episode(0, 0, 2), episode(0, 1, 2), *(episode(1, n, 4) for n in range(3)),
    ]  # fmt: skip
    (tmp_path / "trajectories").mkdir()
    lines = [one.model_dump_json() for one in played]
    (tmp_path / "trajectories" / "independent.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    recipe = make_recipe(rollout={"limits": {"max_turns": 5}})

    one, calls_1, calls_2, steps_1, steps_2 = independent(tmp_path, recipe, "maze", 0, (1, 2))

    assert (one.strategy, one.num_tasks, one.valued_by) == ("one episode", 2, ())
    assert one.num_solved == pytest.approx(1 / 3), "a third of the first task's episodes"
    assert one.replies == pytest.approx((3 * 2 + 3 * 4) / 6)
    assert (calls_1.num_solved, calls_1.replies) == (0, (4 + 4) / 2), "of five replies two episodes and one"
    assert (calls_2.num_solved, calls_2.replies) == (1, (6 + 8) / 2), "of ten"
    assert (steps_1.num_solved, steps_1.env_steps) == (1, (3 + 3) / 2), "the last reply of each has no action"
    assert (steps_2.num_solved, steps_2.env_steps) == (1, (3 + 9) / 2)
    assert calls_1.valued_by == ("goal",), "who picks the solved one knows the score"


def test_searches_say_what_they_chose_by_and_what_they_took(tmp_path: Path) -> None:
    spent = {"env_steps": 3.0, "model_calls": 4.0, "tokens": 50.0, "evaluations": 1.0, "forks": 2.0}
    common = {"num_episodes": 4, "num_successes": 1, "interval": [0.1, 0.7], "seconds": 2.5, "spent": spent}
    names = ("independent", "beam-model_calls-16", "self_consistency-env_steps-16", "allocated-model_calls-16")
    lines = [json.dumps({"kind": "eval", "name": name, **common}) for name in names]
    (tmp_path / "metrics.jsonl").write_text("\n".join(['{"kind": "publish"}', *lines]) + "\n", encoding="utf-8")
    (tmp_path / "trees").mkdir()
    tree = make_search_tree("beam-model_calls-16.t000000").model_copy(update={"valued_by": ("goal",)})
    (tmp_path / "trees" / "beam-model_calls-16.jsonl").write_text(tree.model_dump_json() + "\n", encoding="utf-8")

    beam, votes, allocated = searched(tmp_path, "maze", 1)

    assert (beam.strategy, beam.currency, beam.episodes, beam.valued_by) == ("beam", "model_calls", 16, ("goal",))
    assert (beam.num_solved, beam.num_tasks, beam.forks, beam.replies, beam.seconds) == (1, 4, 2.0, 4.0, 2.5)
    assert (votes.currency, votes.valued_by) == ("env_steps", ())
    assert allocated.valued_by == ("goal",)
    assert beam.title == "maze: beam by goal, with forks, 16 episodes' replies"


def measured(strategy: str, solved: int, seed: int = 0, currency: str = "model_calls", by: str = "") -> Measured:
    return Measured(
        env="maze", seed=seed, strategy=strategy, currency=currency, episodes=16 if currency else 1, num_tasks=10,
        num_solved=solved, interval=(0.0, 1.0), env_steps=1.0, replies=2.0, tokens=3.0, forks=0.0, seconds=None,
        valued_by=(by,) if by else (),
    )  # fmt: skip


FOUND = [
    *(measured("one episode", solved, seed, "") for seed, solved in enumerate((2, 4))),
    *(measured("independent", solved, seed, by="goal") for seed, solved in enumerate((7, 8))),
    *(measured("mcts", solved, seed, by="goal") for seed, solved in enumerate((9, 9))),
    *(measured("best_of_n", solved, seed, by="process_reward_model") for seed, solved in enumerate((5, 5))),
]


def test_who_knows_the_score_is_compared_with_who_knows_it() -> None:
    found = {row.name.removeprefix("maze: "): row for row in rows(FOUND)}

    mcts = found["mcts by goal, 16 episodes' replies: success"]
    assert (mcts.value, mcts.baseline, mcts.ratio) == (0.9, 0.75, 1.2)
    learned = found["best_of_n by process_reward_model, 16 episodes' replies: success"]
    assert (learned.value, learned.baseline) == (0.5, 0.3)
    assert found["one episode: success"].baseline is None


def test_the_page_shows_each_cell_and_marks_it(tmp_path: Path) -> None:
    assert "Nothing is published yet" in search_section(tmp_path)
    document = {"hardware": "a machine", "commit": "abc", "runs": [asdict(one) for one in FOUND]}
    (tmp_path / "search.json").write_text(json.dumps(document), encoding="utf-8")

    section = search_section(tmp_path)

    assert "| `mcts`, 16 episodes' replies | goal | 0.0 | 90.0 % |" in section
    assert "| `one episode` | nothing | 0.0 | 30.0 % |" in section
    assert "50.0 %, 50.0 % | 30.0 % |" in section, "each seed, and one episode beside it"


@pytest.mark.parametrize("env", SETTINGS)
def test_recipes_are_whole_and_give_each_strategy_the_same_budget(env: str, tmp_path: Path) -> None:
    arguments = Namespace(
        tasks=60, episodes=16, curve=[1, 4], samples=64, played=60, small=[], strategies=list(STRATEGIES)
    )
    recipe = recipe_of(env, arguments)

    measured_stages = [stage for stage in measured_by_goal(recipe, arguments).plan() if stage.kind == "measure"]
    learned = measured_by_model(recipe, arguments, tmp_path, "steps")

    budgets = [
        stage.options["budget"]
        for stage in measured_stages
        if stage.name.endswith("calls-16") and "budget" in stage.options
    ]
    assert len({budget["model_calls"] for budget in budgets}) == 1
    (shared,) = [stage.options["allocation"] for stage in measured_stages if "allocation" in stage.options]
    assert shared["model_calls"] == 60 * budgets[0]["model_calls"] == 60 * 16 * recipe.rollout.limits.max_turns
    assert len({stage.name for stage in measured_stages}) == 1 + 2 * 5 + 2 * 2 + 1
    assert learned.evaluator_spec is not None
    assert learned.evaluator_spec.used.keys() == {"process_reward_model"}
