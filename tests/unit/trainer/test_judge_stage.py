"""The stage that trains a judge: what it trains on, what it measures, what it counts, and what it leaves behind."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.stages import PlannedStage
from gymfleet_kit.chat.transcripts import Transcript
from gymfleet_trainer.errors import NothingLeft, TrainerError
from gymfleet_trainer.learning.reward_data import Example, Pair
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.plan import STAGES
from gymfleet_trainer.stage_checks import _Rehearsal, _small_model
from gymfleet_trainer.stages._reward_model import Divided
from gymfleet_trainer.stages.generative_judge import GenerativeJudge

from tests.fixtures.scored import make_scored, make_turn
from tests.models import build_tokenizer

KIND = "generative_judge"


@dataclass
class Run:
    """What the stage uses of a run: a model that finds the last choice of every question the likeliest."""

    path: Path
    max_model_len: int = 4000
    counts: dict[str, int] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recipe = SimpleNamespace(inference=SimpleNamespace(max_model_len=self.max_model_len))
        self.state = SimpleNamespace(counts=self.counts)
        self.learner = self

    def tokenizer(self) -> Path:
        return self.path

    def reward_numbers(self, rows: Sequence[TrainSequence]) -> list[list[float]]:
        self.measured += [row.trajectory_id for row in rows]
        return [[-0.1 if row.trajectory_id.endswith("/2") else -9.0] for row in rows]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    build_tokenizer().save_pretrained(tmp_path)
    return Run(tmp_path)


def stage(**options: Any) -> GenerativeJudge:
    given = {"data": "played", **options}
    planned = PlannedStage("j", KIND, "stages.j", given, {"played": "played"})
    return GenerativeJudge(planned, GenerativeJudge.Options.model_validate(given))


def pair(task: int) -> Pair:
    sides = []
    for sample, text in enumerate(("stop", "left")):
        turn = make_turn().model_copy(update={"text": text})
        scored = make_scored(f"played.t{task:06d}", sample, turns=(turn,), total=1.0 - sample)
        sides.append(Example(scored, Transcript([1, 2, 3]), 1.0 - sample))
    return Pair(*sides)


def divided(trained: Sequence[Pair], held_out: Sequence[Pair] = ()) -> Divided:
    def of(pairs: Sequence[Pair]) -> tuple[list[Example], list[Pair]]:
        return [one for found in pairs for one in found], list(pairs)

    return Divided(*of(trained), *of(held_out))


def test_held_out_tasks_are_measured_and_not_trained_on(run: Any) -> None:
    made = stage(components=["judge", "judge_pairs"])
    given = divided([pair(0), pair(1)], [pair(2)])

    rows = made.rows(run, given)
    found = made.measured(run, given)

    assert len(rows) == 2 * (2 + 2)
    assert not any("t000002" in row.trajectory_id for row in rows)
    assert len(run.measured) == 2 * 11 + 2 * 3
    assert all("t000002" in name for name in run.measured)
    assert found["accuracy"] == 0.25, "of two scores none is 2, and of two orders in one the second is better"
    assert run.counts["trained_questions.j"] == 8
    assert run.counts["held_out_questions.j"] == 4
    assert {number for name, number in run.counts.items() if "_questions_" in name} == {0}


def test_both_orders_of_a_pair_stand_in_one_update(run: Any) -> None:
    rows = stage().rows(run, divided([pair(0), pair(1)]))

    one, same, other, too = (row.unit for row in rows)
    assert one == same != other == too


def test_without_a_question_there_is_nothing_to_train_on(run: Any) -> None:
    run.recipe.inference.max_model_len = 100

    with pytest.raises(NothingLeft, match=r"^stages\.j: there is no question to ask about 2 episodes and 1 pairs of"):
        stage().rows(run, divided([pair(0)]))
    assert run.counts["trained_questions_too_long.j"] == 1


def test_nothing_held_out_is_nothing_measured(run: Any) -> None:
    assert stage().measured(run, divided([pair(0)])) == {}


def test_a_template_without_a_system_message_is_refused_in_one_line(run: Any) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer = build_tokenizer(chat_template=template + str(build_tokenizer().chat_template))
    tokenizer.save_pretrained(run.path)

    with pytest.raises(TrainerError, match=r"^stages\.j: no judge can be made of this model: the chat template"):
        stage().rows(run, divided([pair(0)]))


def test_it_says_by_which_prompts_it_is_asked() -> None:
    one, other = (stage(components=["judge", "judge_pairs"], rubric=rubric).described() for rubric in ("a", "b"))

    assert set(one["prompts"]) == {"judge", "judge_pairs"}
    assert not set(one["prompts"].values()) & set(other["prompts"].values())


def test_it_tells_what_it_learned_and_leaves_the_model(tmp_path: Path) -> None:
    _small_model(tmp_path / "model")

    _Rehearsal(STAGES.find(KIND), KIND, tmp_path / "model", tmp_path).play("run")

    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told, *epochs = (line for line in lines if line["kind"].startswith("reward_"))
    assert told["prompts"].keys() == {"judge"}
    assert [line["epoch"] for line in epochs] == [1, 2]
    assert epochs[1]["loss"] < epochs[0]["loss"]
    assert epochs[0]["num_tokens"] > 0
    for name in ("accuracy", "read_at_least", "right_at_least"):
        assert 0 <= epochs[-1][f"held_out_{name}"] <= 1
    left = {path.name for path in (tmp_path / "run/models/tried").iterdir()}
    assert left >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert "transcripts.json" not in left, "which is for heads that score"
    state = json.loads((tmp_path / "run/checkpoints/checkpoint-000002/state.json").read_text())
    assert state["counts"]["trained_questions.tried"] == 12
    assert state["counts"]["held_out_questions.tried"] == 4
