"""The stage `preference`: what it compares, what it refuses in one line, and the updates that it makes."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.data_records import Preference
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.stages import PlannedStage
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.plugins import PluginError, checked_options
from gymfleet_trainer.errors import NothingLeft, RunDirectoryError
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.options import PreferenceUpdates
from gymfleet_trainer.learning.pairs import PREFERRED, LeftOut
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.conversations import render_pairs
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stages.preference import LearnPreferences

from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.models import build_tiny_model, build_tokenizer, model_tokenizer

ASKED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bb"}, {"role": "user", "content": "c"}]
TRL = {
    "prompt": ASKED,
    "chosen": [{"role": "assistant", "content": "yes"}],
    "rejected": [{"role": "assistant", "content": "no"}],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a tokenizer, where a checkpoint has them."""
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    build_tokenizer().save_pretrained(path)
    return path


def stage(**options: Any) -> LearnPreferences:
    given = {"data": "collect", **options}
    planned = PlannedStage("better", "preference", "stages.better", given, {"collect": "collect"})
    made = LearnPreferences(
        planned, checked_options(LearnPreferences.Options, given, table="stages.better", owner="preference")
    )
    made.check(make_recipe(), planned)
    return made


class Thread:
    async def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


def carried_out(given: LearnPreferences, model: Path, directory: RunDirectory, done: int = 0) -> tuple[Any, RunContext]:
    """What the learner was told to begin with, and the batches that it was given; and the run."""
    directory.path.mkdir(exist_ok=True)
    begun: list[PreferenceUpdates] = []
    batches: list[list[TrainSequence]] = []

    def update_rows(rows: list[TrainSequence]) -> dict[str, float]:
        batches.append(rows)
        return {"loss": 1.0, "num_trained_tokens": sum(row.num_trained for row in rows)}

    learner: Any = SimpleNamespace(
        vocab_size=1000, begin=lambda _, told, __: begun.append(told), update_rows=update_rows, end=lambda: None
    )
    quiet: Any = SimpleNamespace(
        begin=lambda *_, **__: None, advance=lambda *_, **__: None, adopt_probe=lambda *_: None
    )
    checkpoints: Any = SimpleNamespace(latest=lambda: (model.parent, None))
    nothing: Any = None
    run = RunContext(
        make_recipe(), SimpleNamespace(sft_checkpoint_every_s=60.0), directory,  # type: ignore[arg-type]
        RunState(run_id="r", recipe_hash="", done=done), checkpoints, learner, Thread(),  # type: ignore[arg-type]
        nothing, quiet, nothing, nothing, quiet, nothing, given,
    )  # fmt: skip
    asyncio.run(given.run(run))
    return (begun, batches), run


def collected(tmp_path: Path, rewards: dict[str, list[float]]) -> RunDirectory:
    """Episodes of some tasks, each with another reply, where the stage `collect` would have left them."""
    directory = RunDirectory(tmp_path / "run")
    episodes = []
    for number, (task, totals) in enumerate(rewards.items()):
        for sample, total in enumerate(totals):
            scored = make_scored(
                f"collect.t{number:06d}", sample, total=total, turns=(make_turn(response=(20 + sample, 9)),)
            )
            ref = scored.trajectory.task.model_copy(update={"task_id": task})
            trajectory = scored.trajectory.model_copy(update={"task": ref, "purpose": "collect"})
            episodes.append(scored.model_copy(update={"trajectory": trajectory}))
    directory.trajectories("collect", episodes)
    return directory


def test_pairs_of_what_a_stage_left_are_divided_into_updates(model: Path, tmp_path: Path) -> None:
    directory = collected(tmp_path, {f"t{number}": [1.0, 0.0] for number in range(5)} | {"even": [1.0, 1.0]})

    (begun, batches), run = carried_out(stage(pairs_per_batch=2, epochs=2, beta=0.3), model, directory)

    (told,) = begun
    assert (told.steps, told.algorithm, told.options) == (6, "dpo", {"beta": 0.3})
    assert sorted(len(rows) for rows in batches) == [2, 2, 4, 4, 4, 4], "2 + 2 + 1 pairs, twice"
    for epoch in (batches[:3], batches[3:]):
        assert sorted({row.unit for rows in epoch for row in rows}) == ["0", "1", "2", "3", "4"]
    assert [row.unit for rows in batches[:3] for row in rows] != [row.unit for rows in batches[3:] for row in rows]
    assert run.state.done == run.state.age == 6
    assert run.state.counts["examples.better"] == 5
    assert run.state.counts["left_out.better.no_gap"] == 1
    assert run.state.counts["tokens_trained"] == 2 * 5 * 4


def test_resumed_it_makes_the_updates_that_are_left(model: Path, tmp_path: Path) -> None:
    directory = collected(tmp_path, {f"t{number}": [1.0, 0.0] for number in range(5)})

    (_, whole), _ = carried_out(stage(pairs_per_batch=2), model, directory)
    (_, rest), run = carried_out(stage(pairs_per_batch=2), model, directory, done=1)

    assert units(rest) == units(whole[1:])
    assert run.state.done == 3


def test_kto_takes_single_episodes(model: Path, tmp_path: Path) -> None:
    directory = collected(tmp_path, {"t0": [1.0, 0.0, 0.2]})

    (_, batches), _ = carried_out(stage(algorithm="kto"), model, directory)

    assert sorted(row.fields[PREFERRED][0].item() for row in batches[0]) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_files_of_preferences(algorithm: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "theirs.jsonl"
    path.write_text(json.dumps(TRL) + "\n")

    (_, ((chosen, rejected),)), _ = carried_out(
        stage(data=str(path), converter="trl", algorithm=algorithm), model, RunDirectory(tmp_path / "run")
    )

    chat = ChatTokens(model_tokenizer(build_tokenizer()))
    if chosen.fields[PREFERRED][0] == 0:
        chosen, rejected = rejected, chosen
    assert trained(chosen) == list(chat.reply("yes")), "the reply that the prompt holds has no loss"
    assert trained(rejected) == list(chat.reply("no"))
    assert chosen.token_ids[:-4] == rejected.token_ids[: len(chosen.token_ids[:-4])]
    assert (chosen.unit == rejected.unit) is (algorithm == "dpo")


def test_preferences_that_are_too_long_are_counted(model: Path) -> None:
    found = render_pairs([Preference.model_validate(TRL)], model, max_tokens=8)

    assert not found.pairs
    assert found.left_out == {LeftOut.TOO_LONG: 1}


def test_nothing_to_compare_is_one_line(model: Path, tmp_path: Path) -> None:
    directory = collected(tmp_path, {"t0": [1.0, 1.0], "t1": [0.0]})

    with pytest.raises(
        NothingLeft,
        match=r"^stages\.better: there is nothing to compare in 3 records of collect \(1 alone, 1 no_gap\): loosen",
    ):
        carried_out(stage(), model, directory)


def test_conversations_are_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": ASKED[:2]}) + "\n")

    with pytest.raises(RunDirectoryError, match=r"chats\.jsonl holds conversations, and stages\.better takes only"):
        carried_out(stage(data=str(path)), model, RunDirectory(tmp_path / "run"))


def test_held_out_preferences_are_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "ours.jsonl"
    path.write_text(json.dumps({**TRL, "task": {"env": "maze", "split": "test", "task_id": "7"}}) + "\n")

    with pytest.raises(RunDirectoryError, match=r"holds a held-out task .*: 7, of maze's test split"):
        carried_out(stage(data=str(path)), model, RunDirectory(tmp_path / "run"))


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"algorithm": "grpo"}, RecipeError, r"^stages\.better\.algorithm: grpo does not learn from preferences; dpo"),
        ({"algorithm": "orpo", "reference": "m"}, RecipeError, r"^stages\.better\.reference: orpo has no reference: "),
        ({"converter": "trl"}, RecipeError, r"^stages\.better\.converter: it reads files, and data = collect names"),
        ({"algorithm": "simpo", "label_smoothing": 0.1}, PluginError, r"stages\.better\.label_smoothing"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_started(
    options: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        stage(**options)


def test_a_reference_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    policy = build_tiny_model(tmp_path / "policy", tie_embeddings=True, seed=0)
    other = build_tiny_model(tmp_path / "other", tie_embeddings=True, seed=1)
    smaller(other)
    learner = LocalLearner(make_recipe(trainer_device="cpu"), str(policy), tmp_path / "references")
    rows = [make_row(0, 1.0), make_row(1, 0.0)]

    for path, told in ((other, "has 100 tokens and the policy has"), (tmp_path / "nowhere", "is no model: ")):
        learner.begin("better", PreferenceUpdates(algorithm="dpo", reference=str(path)))
        with pytest.raises(RunDirectoryError, match=rf"^stages\.better\.reference: {path} {told}"):
            learner.update_rows(rows)
    learner.begin("better", PreferenceUpdates(algorithm="dpo", reference=str(policy)))
    assert learner.update_rows(rows)["preference_margin"] == 0.0, "the policy is its own reference"


def smaller(path: Path) -> None:
    """Give a model a vocabulary of 100 tokens."""
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - heavy

    config = Qwen3Config.from_pretrained(path)
    config.vocab_size = 100
    Qwen3ForCausalLM(config).save_pretrained(path)


def make_row(sample: int, preferred: float) -> TrainSequence:
    import torch  # noqa: PLC0415 - heavy

    ids, mask, nothing = [5, 6, 7, 8 + sample], [False, False, False, True], [0.0] * 4
    fields = {PREFERRED: torch.full((4,), preferred)}
    return TrainSequence(ids, mask, nothing, nothing, 1, f"run-1/g/{sample}", unit="pair", fields=fields)


def units(batches: list[list[TrainSequence]]) -> list[list[str | None]]:
    return [[row.unit for row in rows] for rows in batches]


def trained(row: TrainSequence) -> list[int]:
    return [token for token, learned in zip(row.token_ids, row.loss_mask, strict=True) if learned]
