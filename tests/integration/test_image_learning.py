"""A small model that sees learns from pictures in a file, and what sees stays as it was."""

from pathlib import Path

import torch
from gymfleet_contracts.conversation import Conversation
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.model.batching import TrainSequence, pack
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.run.conversations import render
from gymfleet_trainer.stages.sft import Supervised
from safetensors.torch import load_file

from tests.fixtures.scored import make_recipe
from tests.fixtures.trainer_plans import stage_of
from tests.unit.trainer.test_image_conversations import conversation, part, picture, words, written

COLOURS = {"Red.": (255, 0, 0), "Blue.": (0, 0, 255)}


def told(colour: str, answer: str) -> Conversation:
    shown = [part(picture(56, 56, COLOURS[colour])), words("Which colour?")]
    return conversation({"messages": [{"role": "user", "content": shown}, {"role": "assistant", "content": answer}]})


def likelihood(model: Path, row: TrainSequence) -> float:
    policy = PolicyModel.from_pretrained(model, frozen=True)
    return float(policy.token_logprobs(pack([row], 1000)[0]).logprobs.sum())


def test_pictures_are_told_apart_after_sft(tmp_path: Path) -> None:
    model, trained = written(tmp_path / "model"), tmp_path / "trained"
    trained.mkdir()
    rows = render([told(colour, colour) for colour in COLOURS], model, 512).sequences
    epochs = 25
    recipe = make_recipe(sft={"epochs": epochs, "tokens_per_batch": 100, "optimizer": {"learning_rate": 3e-3}})
    learner = LocalLearner(recipe, str(model), tmp_path / "references")
    stage = stage_of(recipe, Supervised)
    learner.begin(stage.name, stage.options)

    losses = [learner.sft_epoch(rows, epoch)["loss"] for epoch in range(epochs)]
    learner.save_model(trained)

    assert losses[-1] < losses[0] / 10
    wrong = render([told("Red.", "Blue."), told("Blue.", "Red.")], model, 512).sequences
    for right, other in zip(rows, wrong, strict=True):
        assert likelihood(trained, right) > likelihood(trained, other) + 2.0
    before, after = load_file(model / "model.safetensors"), load_file(trained / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed, "it was trained"
    assert not any(".visual." in f".{name}" for name in changed), "what sees images"
    assert (trained / "preprocessor_config.json").read_bytes() == (model / "preprocessor_config.json").read_bytes()
