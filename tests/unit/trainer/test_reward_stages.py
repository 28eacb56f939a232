"""The stages that train reward models: what they refuse, what they count, and what they leave behind."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.stages import PlannedStage
from gymfleet_kit.chat.transcripts import Transcript
from gymfleet_trainer.errors import NothingLeft, RunDirectoryError
from gymfleet_trainer.learning.reward_data import Example, Examples, Pair
from gymfleet_trainer.learning.reward_update import LABELS
from gymfleet_trainer.run.plan import STAGES
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stage_checks import _Rehearsal, _small_model
from gymfleet_trainer.stages._reward_model import Divided, RewardModelStage
from pydantic import ValidationError

from tests.fixtures.scored import make_scored, make_turn

RUN: Any = None


def stage(kind: str, **options: Any) -> RewardModelStage[Any]:
    given = {"data": "played", **options}
    planned = PlannedStage("rm", kind, "stages.rm", given, {"played": "played"})
    found = STAGES.find(kind)
    made = found(planned, found.Options.model_validate(given))
    assert isinstance(made, RewardModelStage)
    return made


def example(sample: int, *, success: bool, nodes: tuple[str, ...] = ("", "")) -> Example:
    turns = tuple(make_turn().model_copy(update={"node": node or None}) for node in nodes)
    scored = make_scored("played.t000000", sample, turns=turns, success=success)
    return Example(scored, Transcript([1, 2, 3, 4], (1, 3)), float(success))


def test_pairs_are_what_bradley_terry_trains_on() -> None:
    good, bad = example(0, success=True), example(1, success=False)

    rows = stage("bradley_terry").rows(RUN, Divided([good, bad], [Pair(good, bad)], [], []))

    assert [row.trajectory_id for row in rows] == [good.name, bad.name]


def test_without_pairs_there_is_nothing_to_train_on() -> None:
    with pytest.raises(NothingLeft, match=r"^stages\.rm: no two episodes of a task make a pair: .* \(played has 1 ep"):
        stage("bradley_terry").rows(RUN, Divided([example(0, success=True)], [], [], []))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("outcome", [1.0, 1.0, 0.0, 0.0]), ("soft", [0.5, 1.0, 0.5, 0.0]), ("hard", [1.0, 1.0, 1.0, 0.0])],
)
def test_labels_are_what_the_option_says(labels: str, expected: list[float]) -> None:
    forked = [example(0, success=True, nodes=("a", "aa")), example(1, success=False, nodes=("a", "ab"))]

    rows = stage("process_reward", labels=labels).rows(RUN, Divided(forked, [], [], []))

    assert [float(row.fields[LABELS][end]) for row in rows for end in (1, 3)] == expected


def test_episodes_that_are_too_long_to_read_count_in_the_labels_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage("process_reward", labels="soft", held_out=0.0)
    short = example(0, success=True, nodes=("a", "aa"))
    long = [example(sample, success=False, nodes=("a", f"a{sample}")).scored for sample in (1, 2, 3)]
    found = Examples({"task": [short]}, unread=long)
    monkeypatch.setattr(made, "_transcripts", lambda _: None)
    monkeypatch.setattr(made, "_examples", lambda *_: found)
    run: Any = SimpleNamespace(state=RunState(run_id="run-1", recipe_hash=""))

    (row,) = made.rows(run, made._divided(run))

    assert [float(row.fields[LABELS][end]) for end in (1, 3)] == [0.25, 1.0]


def valued(sample: int, *values: float | None) -> Example:
    turns = tuple(make_turn().model_copy(update={"node": str(place), "node_value": value})
                  for place, value in enumerate(values))  # fmt: skip
    return Example(make_scored("played.t000000", sample, turns=turns), Transcript([1, 2, 3, 4], (1, 3)), 0.0)


def test_values_of_nodes_are_labels_where_there_are_any() -> None:
    made = stage("process_reward", labels="values", lowest_value=-1.0)

    rows = made.rows(RUN, Divided([valued(0, 0.5, None), valued(1, None, None), valued(2, -1.0, 1.0)], [], [], []))

    assert [row.trajectory_id[-1] for row in rows] == ["0", "2"]
    assert [row.loss_mask for row in rows] == [[False, True, False, False], [False, True, False, True]]
    assert [float(row.fields[LABELS][end]) for row in rows for end in (1, 3)] == [0.75, 0.0, 0.0, 1.0]


def test_labels_by_values_need_values_that_are_in_their_range() -> None:
    made = stage("process_reward", labels="values")

    with pytest.raises(
        NothingLeft, match=r'^stages\.rm: labels = "values" needs nodes that a search valued, and no turn'
    ):
        made.rows(RUN, Divided([valued(0, None, None)], [], [], []))
    with pytest.raises(
        RunDirectoryError, match=r"node 1 has the value 1\.5, outside of \[0, 1\]: give as lowest_value "
    ):
        made.rows(RUN, Divided([valued(0, 0.5, 1.5)], [], [], []))
    with pytest.raises(ValidationError, match=r"highest_value = 0 must be above lowest_value"):
        stage("process_reward", highest_value=0.0)


def test_what_is_held_out_is_measured_by_the_turns_that_have_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage("process_reward", labels="values")
    said = {"run-1/played.t000000/0": [3.0, -3.0], "run-1/played.t000000/1": [3.0, 3.0]}
    monkeypatch.setattr("gymfleet_trainer.stages.process_reward.numbers_of", lambda _, __: said)

    found = made.measured(RUN, Divided([], [], [valued(0, 1.0, None), valued(1, 0.25, 0.75)], []))
    nothing = made.measured(RUN, Divided([], [], [valued(0, None, None)], []))

    assert found["accuracy"] == pytest.approx(2 / 3)
    assert math.isnan(nothing["accuracy"])


def test_labels_by_forks_need_forks() -> None:
    made = stage("process_reward", labels="soft")
    alone = [example(0, success=True, nodes=("a", "aa")), example(1, success=False, nodes=("b", "ba"))]

    with pytest.raises(NothingLeft) as caught:
        made.rows(RUN, Divided(alone, [], [], [], earlier=alone))
    assert str(caught.value) == (
        'stages.rm: labels = "soft" needs episodes that a strategy forked, and played has no node that several '
        "episodes went through: give [rollout.strategy], or the strategy of the stage that collects them, "
        'use = "forks" with train_continuations = true'
    )
    with pytest.raises(NothingLeft, match=r"^stages\.rm: all tasks of played are held out"):
        made.rows(RUN, Divided([], [], [], []))


@pytest.mark.parametrize("kind", ["bradley_terry", "process_reward", "generative_judge"])
def test_not_all_tasks_can_be_held_out(kind: str) -> None:
    with pytest.raises(ValidationError, match=r"held_out\n.*less than 1"):
        stage(kind, held_out=1.0)


@pytest.mark.parametrize("kind", ["bradley_terry", "process_reward"])
def test_it_tells_what_it_learned_and_leaves_the_model(tmp_path: Path, kind: str) -> None:
    _small_model(tmp_path / "model")

    _Rehearsal(STAGES.find(kind), kind, tmp_path / "model", tmp_path).play("run")

    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told, *epochs = (line for line in lines if line["kind"].startswith("reward_"))
    assert told["kind"] == "reward_data"
    assert told["num_episodes"] + told["num_held_out_episodes"] == 16
    assert told["num_held_out_episodes"] == 4, "a task of four"
    assert told["held_out_accuracy_by_length"] == told["held_out_accuracy_by_last_line"] == 0.5, "all say the same"
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert epochs[0]["num_tokens"] > 0
    assert 0 <= epochs[-1]["held_out_calibration_error"] <= 1
    if kind == "bradley_terry":
        assert {line["held_out_accuracy"] for line in epochs} == {0.5}
    else:
        assert {epochs[-1][f"held_out_accuracy_by_{name}"] for name in ("product", "min", "last")} == {0.5}
    left = {path.name for path in (tmp_path / "run/models/tried").iterdir()}
    assert left >= {"config.json", "model.safetensors", "tokenizer.json", "transcripts.json"}
    state = json.loads((tmp_path / "run/checkpoints/checkpoint-000002/state.json").read_text())
    assert state["counts"]["tasks_without_pairs.tried"] == 0
    assert state["done"] == 3
