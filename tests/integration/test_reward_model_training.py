"""A reward model that a stage has trained: restarted, in two processes, in a whole run, and in the reward service."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.chat.transcripts import Transcripts
from gymfleet_reward.composer import Scorer
from gymfleet_reward.models.reward_models import RewardModels
from gymfleet_reward.models.tables import UnusableModel
from gymfleet_reward.settings import RewardSettings
from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.learning.judge_data import Questions
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.options import GenerativeJudgeOptions
from gymfleet_trainer.learning.reward_data import Example, pairs_of, read_examples, turn_labels
from gymfleet_trainer.run.plan import stages_of
from gymfleet_trainer.stages._reward_model import RewardModelStage
from safetensors.torch import load_file

from tests.fixtures.rewards import make_spec
from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.fixtures.trainer_ranks import RankPool, rank_pool
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = pytest.mark.timeout(300)

KINDS = ("bradley_terry", "process_reward")
TRAINED = (*KINDS, "generative_judge")
COMPONENTS = {"bradley_terry": "reward_model", "process_reward": "process_reward_model"}
OPTIMIZER = {"learning_rate": 1e-2, "schedule": "cosine"}


def recipe_of(kind: str, **options: Any) -> Recipe:
    given: dict[str, Any] = {"kind": kind, "data": "collect", "epochs": 3, "optimizer": OPTIMIZER, **options}
    stages = [{"kind": "collect", "num_tasks": 4}, given]
    return make_recipe(stages=stages, trainer_device="cpu")


def episodes(num_tasks: int = 6) -> list[ScoredTrajectory]:
    """Two of each task: that which stops at the wall is the better one."""
    found = []
    draw = random.Random(7)
    for task in range(num_tasks):
        for sample, reply in enumerate(("Action: stop", "Action: move left")):
            turns = tuple(
                make_turn().model_copy(
                    update={"observation": f"You see wall {draw.randrange(9)}.", "text": reply if last else "Thought."}
                )
                for last in (False, True)
            )
            scored = make_scored(f"collect.t{task:06d}", sample, turns=turns, total=1.0 - sample, success=not sample)
            trajectory = scored.trajectory
            own = trajectory.task.model_copy(update={"task_id": str(task)})
            found.append(scored.model_copy(update={"trajectory": trajectory.model_copy(update={"task": own})}))
    return found


def stage_in(recipe: Recipe) -> RewardModelStage[Any]:
    (stage,) = (one for one in stages_of(recipe) if isinstance(one, RewardModelStage))
    return stage


def begun(recipe: Recipe, model: Path, references: Path = Path("unused"), ranks: Ranks | None = None) -> LocalLearner:
    learner = LocalLearner(recipe, str(model), references, ranks)
    stage = stage_in(recipe)
    learner.begin(stage.name, stage.options)
    return learner


def examples_of(recipe: Recipe, model: Path, given: Sequence[ScoredTrajectory]) -> list[list[Example]]:
    return list(read_examples(given, Transcripts(model), stage_in(recipe).options, 1000).tasks.values())


def rows_of(recipe: Recipe, model: Path) -> list[Any]:
    options = stage_in(recipe).options
    tasks = examples_of(recipe, model, episodes())
    if isinstance(options, GenerativeJudgeOptions):
        questions = Questions(options, ChatTokens.load(model), 2000)
        found, _ = questions.about([], [pair for examples in tasks[:2] for pair in pairs_of(examples, options)])
        return [one.row() for one in found]
    if options.reads == "episode":
        return [row for examples in tasks for pair in pairs_of(examples, options) for row in pair.rows()]
    return [one.row(labels=turn_labels(one.scored, "outcome", {})) for examples in tasks for one in examples]


@pytest.mark.parametrize("kind", TRAINED)
def test_it_goes_on_where_it_stood(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    recipe = recipe_of(kind)
    rows = rows_of(recipe, tiny_model)
    undisturbed = begun(recipe, tiny_model, tmp_path / "references")
    undisturbed.reward_epoch(rows, 0)
    (tmp_path / "checkpoint").mkdir()
    undisturbed.save_checkpoint(tmp_path / "checkpoint")

    restored = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    restored.load_checkpoint(tmp_path / "checkpoint")
    stage = stage_in(recipe)
    restored.begin(stage.name, stage.options)
    for learner, name in ((undisturbed, "one"), (restored, "other")):
        for epoch in (1, 2):
            learner.reward_epoch(rows, epoch)
        (tmp_path / name).mkdir()
        learner.save_reward_model(tmp_path / name)

    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def trained_on(ranks: Ranks | None, kind: str, model: Path, out: Path) -> list[list[float]]:
    recipe = recipe_of(kind, tokens_per_microbatch=100, optimizer={"learning_rate": 1e-3})
    rows = rows_of(recipe, model)
    learner = begun(recipe, model, out.with_name(f"{out.name}-references"), ranks)
    for epoch in range(2):
        learner.reward_epoch(rows, epoch)
    if ranks is None or ranks.first:
        out.mkdir()
    learner.save_reward_model(out)
    return learner.reward_numbers(rows)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with rank_pool(2, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINED)
def test_two_processes_agree_with_one(tiny_model: Path, tmp_path: Path, two: RankPool, kind: str) -> None:
    alone = trained_on(None, kind, tiny_model, tmp_path / "one")

    together = two.run(trained_on, kind, tiny_model, tmp_path / "two")

    assert together[0] == together[1]
    assert [number for row in together[0] for number in row] == pytest.approx(
        [number for row in alone for number in row], abs=1e-3
    )
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert {name: value.shape for name, value in one.items()} == {name: value.shape for name, value in other.items()}


def continued(ranks: Ranks | None, kind: str, model: Path, previous: Path) -> list[list[float]]:
    recipe = recipe_of(kind)
    learner, stage = LocalLearner(recipe, str(model), Path("unused"), ranks), stage_in(recipe)
    learner.begin(stage.name, stage.options, previous)
    return learner.reward_numbers(rows_of(recipe, model))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_go_on_with_the_round_before_as_one_does(
    tiny_model: Path, tmp_path: Path, two: RankPool, kind: str
) -> None:
    left = [number for row in trained_on(None, kind, tiny_model, tmp_path / "first") for number in row]

    alone = continued(None, kind, tiny_model, tmp_path / "first")
    together = two.run(continued, kind, tiny_model, tmp_path / "first")

    for found in (alone, *together):
        assert [number for row in found for number in row] == pytest.approx(left, abs=1e-4)


def served(path: Path, kind: str) -> RewardModels:
    scores = "episode" if kind == "bradley_terry" else "turns"
    table = {"trained": {"kind": "embedded", "path": str(path), "scores": scores, "max_tokens": 1024}}
    models = RewardModels(RewardSettings.model_validate({"models": table}).models)
    models.start()
    while models.loading():  # tests load models too, and two loads at a time leave transformers changed
        time.sleep(0.01)
    return models


@pytest.mark.parametrize("kind", KINDS)
def test_the_reward_service_says_what_the_trainer_computes(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    recipe = recipe_of(kind)
    learner = begun(recipe, tiny_model)
    rows = rows_of(recipe, tiny_model)
    for epoch in range(3):
        learner.reward_epoch(rows, epoch)
    learner.save_reward_model(tmp_path)
    given = episodes()
    examples = [one for found in examples_of(recipe, tiny_model, given) for one in found]
    expected = learner.reward_numbers([one.row() for one in examples])
    models = served(tmp_path, kind)
    scorer = Scorer(models=models)
    spec = make_spec(goal={"enabled": False}, **{COMPONENTS[kind]: {"model": "trained"}})

    scored = scorer.score([ScoreRequest(trajectory=one.scored.trajectory, reward=spec) for one in examples])

    found = []
    for one in scored:
        assert one.reward is not None, one.reward_error
        last = [row[-1] for row in one.reward.token_rewards]
        found.append([one.reward.total] if kind == "bradley_terry" else last)
    assert [pytest.approx(row, abs=1e-5) for row in expected] == found
    assert len({round(row[-1], 2) for row in expected}) > 1
    scorer.close()
    models.close()


@pytest.mark.parametrize("kind", KINDS)
def test_on_another_template_it_is_refused_with_a_line(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    learner = begun(recipe_of(kind), tiny_model)
    learner.save_reward_model(tmp_path)
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>' + message", "<|im_start|> ' + message"))

    with pytest.raises(UnusableModel) as told:
        served(tmp_path, kind)

    line = str(told.value)
    assert line.startswith(
        f"the reward model 'trained': the model in {tmp_path} was trained with another chat template"
    )
    assert line.endswith("put back what the training left")
    assert "\n" not in line


def test_with_another_tokenizer_it_is_refused_too(tiny_model: Path, tmp_path: Path) -> None:
    learner = begun(recipe_of("bradley_terry"), tiny_model)
    learner.save_reward_model(tmp_path)
    file = tmp_path / "tokenizer.json"
    document = json.loads(file.read_text())
    document["added_tokens"].append({**document["added_tokens"][-1], "id": 9999, "content": "<|more|>"})
    file.write_text(json.dumps(document))

    with pytest.raises(UnusableModel, match="was trained with another tokenizer"):
        served(tmp_path, "bradley_terry")


def test_a_note_that_cannot_be_read_is_a_line(tiny_model: Path, tmp_path: Path) -> None:
    learner = begun(recipe_of("bradley_terry"), tiny_model)
    learner.save_reward_model(tmp_path)
    (tmp_path / "transcripts.json").write_text("[]")

    with pytest.raises(UnusableModel, match=r"transcripts\.json cannot be read: TypeError"):
        served(tmp_path, "bradley_terry")


STAGES = """
[[stages]]
kind = "collect"
num_tasks = 6
samples_per_task = 3
[[stages]]
kind = "collect"
name = "demonstrations"
strategy = "expert"
num_tasks = 6
[[stages]]
kind = "bradley_terry"
data = ["collect", "demonstrations"]
epochs = 2
held_out = 0.34
[[stages]]
kind = "process_reward"
data = ["collect", "demonstrations"]
epochs = 2
held_out = 0.34
"""


@pytest.mark.slow
def test_in_a_whole_run_both_are_trained_measured_and_left(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=STAGES)

    summary = run.finish()

    left = {one["name"]: one for one in summary["stages"]}
    for kind in KINDS:
        assert left[kind]["model"] == f"models/{kind}"
        lines = [line for line in run.metrics("reward_epoch") if line["stage"] == kind]
        assert [line["epoch"] for line in lines] == [1, 2]
        assert all(0 <= line["held_out_accuracy"] <= 1 for line in lines)
        assert all(0 <= line["held_out_calibration_error"] <= 1 for line in lines)
        assert sum(one["count"] for one in lines[-1]["held_out_calibration"]) > 0
        models = served(run.run_dir / "models" / kind, kind)
        models.close()
    (told,) = (line for line in run.metrics("reward_data") if line["stage"] == "bradley_terry")
    assert told["num_pairs"] > 0
    assert told["num_held_out_pairs"] > 0
    assert 0 <= told["held_out_accuracy_by_length"] <= 1
    assert 0 <= told["held_out_accuracy_by_last_line"] <= 1


@pytest.mark.slow
def test_without_a_pair_the_run_ends_with_a_line_and_can_be_resumed(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    stages = STAGES.split("[[stages]]")
    only = "[[stages]]".join([*stages[:2], stages[3].replace('["collect", "demonstrations"]', '"collect"')])
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=only + "min_gap = 100.0\n")

    run.start()

    assert run.wait() == 9
    last = run.tail().splitlines()[-1]
    assert last.startswith(
        "error: stages.bradley_terry: no two episodes of a task make a pair: rewards that differ by 100"
    )
    run.start()
    assert run.wait() == 9
