"""A restored learner goes on bit for bit where it stood."""

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import VersionSpan
from gymfleet_trainer.distributed.row_files import RowFile
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.stages.reinforce import Reinforce
from gymfleet_trainer.stages.sft import Supervised
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, stage_of, training_plan

RL: dict[str, Any] = {
    "steps": 4, "groups_per_step": 2, "group_size": 2, "updates_per_step": 2,
    "optimizer": {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 2},
}  # fmt: skip


def make_groups(recipe: Recipe, step: int, *, best: float = 1.0) -> list[Group]:
    groups = []
    for number in (2 * step, 2 * step + 1):
        group = Group(make_planner(recipe, 10).train(training_plan(recipe), PlannedGroup(number)))
        for sample in range(2):
            turns = (make_turn((5, 6, 7 + number), (20 + sample, 30), logprob=-5.9), make_turn((8,), (9, 10 + sample)))
            group.samples[sample] = make_scored(group.group_id, sample, turns=turns, total=sample * best)
        groups.append(group)
    return groups


def begun(recipe: Recipe, model: Path, references: Path, kind: type[Reinforce | Supervised]) -> LocalLearner:
    """A learner in the recipe's stage of a kind."""
    learner = LocalLearner(recipe, str(model), references)
    stage = stage_of(recipe, kind)
    learner.begin(stage.name, stage.options)
    return learner


def fresh(_: int) -> int:
    return 0


def weights(learner: LocalLearner, path: Path) -> dict[str, torch.Tensor]:
    path.mkdir()
    learner.save_model(path)
    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(str(path)).state_dict()
    return state


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "rl",
    [
        pytest.param(RL, id="grpo"),
        pytest.param({**RL, "kl": {"coefficient": 0.1}}, id="grpo with a reference policy"),
        pytest.param({**RL, "algorithm": "ppo", "critic": {"optimizer": {"learning_rate": 1e-3}}}, id="ppo"),
    ],
)
def test_reinforcement_learning_goes_on_where_it_stood(tiny_model: Path, tmp_path: Path, rl: dict[str, Any]) -> None:
    recipe = make_recipe(rl=rl)
    undisturbed = begun(recipe, tiny_model, tmp_path / "references", Reinforce)
    undisturbed.update(make_groups(recipe, 0), fresh)
    (tmp_path / "checkpoint").mkdir()
    undisturbed.save_checkpoint(tmp_path / "checkpoint")
    undisturbed.update(make_groups(recipe, 1), fresh)

    restored = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    restored.load_checkpoint(tmp_path / "checkpoint")
    restored.begin("reinforce", stage_of(recipe, Reinforce).options)
    restored.update(make_groups(recipe, 1), fresh)

    assert_equal(weights(undisturbed, tmp_path / "one"), weights(restored, tmp_path / "other"))


@pytest.fixture
def slow_rows(monkeypatch: pytest.MonkeyPatch) -> Event:
    """No row is written before this is set: the write of a checkpoint stands where it began."""
    gate, write = Event(), RowFile.write

    def gated(file: RowFile, *, replicated: bool) -> int:
        assert gate.wait(60)
        return write(file, replicated=replicated)

    monkeypatch.setattr(RowFile, "write", gated)
    return gate


@pytest.mark.parametrize(
    "rl",
    [
        pytest.param(RL, id="grpo"),
        pytest.param({**RL, "algorithm": "ppo", "critic": {"optimizer": {"learning_rate": 1e-3}}}, id="ppo"),
    ],
)
def test_an_update_waits_for_a_checkpoint_before_it_changes_what_is_being_written(
    tiny_model: Path, tmp_path: Path, rl: dict[str, Any], slow_rows: Event
) -> None:
    recipe = make_recipe(rl=rl)
    slow_rows.set()
    undisturbed = begun(recipe, tiny_model, tmp_path / "references", Reinforce)
    undisturbed.update(make_groups(recipe, 0), fresh)
    (tmp_path / "checkpoint").mkdir()
    slow_rows.clear()
    undisturbed.begin_checkpoint(tmp_path / "checkpoint")
    with ThreadPoolExecutor(2) as executor:
        finished = executor.submit(undisturbed.finish_checkpoint)
        try:
            assert wait([finished], timeout=0.2).not_done
            update = executor.submit(undisturbed.update, make_groups(recipe, 1), fresh)
            assert wait([update], timeout=2).not_done, "it would change what is not written yet"
            assert any(one.grad is not None for one in undisturbed._model.parameters()), "it has learned meanwhile"
        finally:
            slow_rows.set()
        update.result()
        finished.result()
    assert undisturbed.waited_s > 1

    restored = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    restored.load_checkpoint(tmp_path / "checkpoint")
    restored.begin("reinforce", stage_of(recipe, Reinforce).options)
    restored.update(make_groups(recipe, 1), fresh)

    assert_equal(weights(undisturbed, tmp_path / "one"), weights(restored, tmp_path / "other"))


def test_a_reference_is_renewed_after_the_checkpoint_that_holds_it_is_written(
    tiny_model: Path, tmp_path: Path, slow_rows: Event
) -> None:
    recipe = make_recipe(rl={**RL, "kl": {"coefficient": 0.1, "refresh_every": 1, "placement": "reward"}})
    slow_rows.set()
    learner = begun(recipe, tiny_model, tmp_path / "references", Reinforce)
    learner.update(make_groups(recipe, 0), fresh)
    (tmp_path / "checkpoint").mkdir()
    slow_rows.clear()
    learner.begin_checkpoint(tmp_path / "checkpoint")
    with ThreadPoolExecutor(1) as executor:
        update = executor.submit(learner.update, make_groups(recipe, 1, best=0.0), fresh)
        assert wait([update], timeout=2).not_done
        slow_rows.set()
        assert update.result()["num_updates"] == 0, "nothing else would have waited"
    learner.finish_checkpoint()


def test_sft_waits_for_a_checkpoint_that_is_being_written(tiny_model: Path, tmp_path: Path, slow_rows: Event) -> None:
    recipe = make_recipe(sft={"epochs": 3, "tokens_per_batch": 10})
    learner = begun(recipe, tiny_model, tmp_path / "references", Supervised)
    sequences = learner.sequences([make_scored(turns=(make_turn((5, 6), (9, 3)),))])
    (tmp_path / "checkpoint").mkdir()
    learner.begin_checkpoint(tmp_path / "checkpoint")
    with ThreadPoolExecutor(1) as executor:
        epoch = executor.submit(learner.sft_epoch, sequences, 0)
        assert wait([epoch], timeout=2).not_done
        slow_rows.set()
        epoch.result()
    learner.finish_checkpoint()

    written = load_file(tmp_path / "checkpoint" / "model" / "model.safetensors")
    given = load_file(tiny_model / "model.safetensors")
    assert all(torch.equal(written[name], value) for name, value in given.items()), "from before the epoch"


def test_a_probe_of_rounded_weights_does_not_reach_a_checkpoint_that_is_being_written(
    tiny_model: Path, tmp_path: Path, slow_rows: Event
) -> None:
    recipe = make_recipe(inference={"dtype": "bfloat16"})
    learner = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    (tmp_path / "checkpoint").mkdir()
    learner.begin_checkpoint(tmp_path / "checkpoint")
    with learner._model.rounded(torch.bfloat16):
        rounded = next(learner._model.parameters()).detach().clone()
        slow_rows.set()
        learner.finish_checkpoint()

    written = load_file(tmp_path / "checkpoint" / "model" / "model.safetensors")
    given = load_file(tiny_model / "model.safetensors")
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert any(not torch.equal(value, value.bfloat16().float()) for value in given.values())
    assert all(torch.equal(written[name], value) for name, value in given.items())
    assert_equal({k: v for k, v in learner._model.hf.state_dict().items() if k in given}, given)


def test_the_warm_start_goes_on_where_it_stood(tiny_model: Path, tmp_path: Path) -> None:
    recipe = make_recipe(sft={"epochs": 3, "tokens_per_batch": 10})
    demonstrations = [make_scored(sample=i, turns=(make_turn((5, i + 6), (i + 9, 3)),)) for i in range(4)]
    undisturbed = begun(recipe, tiny_model, tmp_path / "references", Supervised)
    sequences = undisturbed.sequences(demonstrations)
    undisturbed.sft_epoch(sequences, 0)
    (tmp_path / "checkpoint").mkdir()
    undisturbed.save_checkpoint(tmp_path / "checkpoint")

    restored = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    restored.load_checkpoint(tmp_path / "checkpoint")
    restored.begin("sft", stage_of(recipe, Supervised).options)
    for learner in (undisturbed, restored):
        for epoch in (1, 2):
            learner.sft_epoch(sequences, epoch)

    assert_equal(weights(undisturbed, tmp_path / "one"), weights(restored, tmp_path / "other"))


@pytest.mark.parametrize("ended", [True, False])
def test_a_stage_has_an_optimiser_and_a_reference_of_its_own(tiny_model: Path, tmp_path: Path, ended: bool) -> None:
    """Also where the checkpoint that it begins with holds the optimiser of the stage before it."""
    recipe = make_recipe(rl={**RL, "kl": {"coefficient": 0.1}})
    options = stage_of(recipe, Reinforce).options
    first = begun(recipe, tiny_model, tmp_path / "references", Reinforce)
    start = first.update(make_groups(recipe, 0), fresh)
    if ended:
        first.end()
    (tmp_path / "checkpoint").mkdir()
    first.save_checkpoint(tmp_path / "checkpoint")
    second = LocalLearner(recipe, str(tiny_model), tmp_path / "references")
    second.load_checkpoint(tmp_path / "checkpoint")

    for learner in (first, second):
        learner.begin("again", options)
    metrics = [learner.update(make_groups(recipe, 1), fresh) for learner in (first, second)]

    assert {one["learning_rate"] for one in metrics} == {start["learning_rate"]}, "its schedule begins anew"
    assert_equal(weights(first, tmp_path / "one"), weights(second, tmp_path / "other"))
    references = [load_file(tmp_path / "references" / name / "model.safetensors") for name in ("reinforce", "again")]
    assert any(not torch.equal(references[0][name], references[1][name]) for name in references[0])


def test_a_saved_model_loads_with_transformers_alone(tiny_model: Path, tmp_path: Path) -> None:
    learner = LocalLearner(make_recipe(), str(tiny_model), tmp_path / "reference")
    learner.save_model(tmp_path)

    given, saved = (AutoTokenizer.from_pretrained(str(path)) for path in (tiny_model, tmp_path))

    assert saved.get_vocab() == given.get_vocab()
    assert saved.chat_template == given.chat_template
    assert_equal(AutoModelForCausalLM.from_pretrained(str(tiny_model)).state_dict(),
                 AutoModelForCausalLM.from_pretrained(str(tmp_path)).state_dict())  # fmt: skip


def test_log_probabilities_of_samples_are_the_models(tiny_model: Path, tmp_path: Path) -> None:
    learner = LocalLearner(make_recipe(), str(tiny_model), tmp_path / "reference")
    prompts, samples = [[5, 6, 7], [40]], [[8, 9], [10, 11, 12]]

    rows = learner.sampled_logprobs(prompts, samples)

    model = AutoModelForCausalLM.from_pretrained(str(tiny_model)).eval()
    for prompt, sample, row in zip(prompts, samples, rows, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *sample]])).logits[0]
        expected = logits.log_softmax(-1)[range(len(prompt) - 1, len(prompt) + len(sample) - 1), sample]
        assert row == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_replaced_context_is_compared_by_itself(tiny_model: Path, tmp_path: Path) -> None:
    learner = LocalLearner(make_recipe(), str(tiny_model), tmp_path / "reference")
    rows = learner.sampled_logprobs([[5, 6, 7], [40, 41]], [[8, 9], [10, 11, 12]])
    first, second = (
        make_turn(prompt, reply, version=4).model_copy(update={"response_logprobs": tuple(own)})
        for prompt, reply, own in zip(((5, 6, 7), (40, 41)), ((8, 9), (10, 11, 12)), rows, strict=True)
    )
    scored = make_scored(turns=(first, second.model_copy(update={"context": "replaced"})), version=4)

    parity = learner.batch_parity([scored], 4)

    assert parity is not None
    assert (parity.num_tokens, parity.mean_abs < 1e-5) == (5, True)
    assert [row.token_ids for row in learner.sequences([scored])] == [[5, 6, 7, 8, 9], [40, 41, 10, 11, 12]]


def test_a_batch_is_compared_with_the_weights_that_the_engine_has(tiny_model: Path, tmp_path: Path) -> None:
    learner = LocalLearner(make_recipe(inference={"dtype": "bfloat16"}), str(tiny_model), tmp_path / "reference")
    exact = LocalLearner(make_recipe(), str(tiny_model), tmp_path / "reference")
    (own,) = learner.sampled_logprobs([[5, 6, 7]], [[8, 9]])
    (masters,) = exact.sampled_logprobs([[5, 6, 7]], [[8, 9]])
    turn = make_turn((5, 6, 7), (8, 9), version=4).model_copy(update={"response_logprobs": tuple(own)})

    parity = learner.batch_parity([make_scored(turns=(turn,), version=4)], 4)

    assert parity is not None
    assert parity.max_abs < 1e-6
    assert max(abs(a - b) for a, b in zip(own, masters, strict=True)) > 1e-4, "the float32 weights say otherwise"


def test_a_batch_is_compared_once_per_version_and_only_where_that_version_wrote(
    tiny_model: Path, tmp_path: Path
) -> None:
    learner = LocalLearner(make_recipe(), str(tiny_model), tmp_path / "reference")
    prompts, samples = [[5, 6, 7]], [[8, 9]]
    (own,) = learner.sampled_logprobs(prompts, samples)
    right = make_turn((5, 6, 7), (8, 9), version=4).model_copy(update={"response_logprobs": tuple(own)})
    older = make_turn((5,), (8, 9), version=3, logprob=-123.0)
    spans = (VersionSpan(version=3, num_tokens=1), VersionSpan(version=4, num_tokens=1))
    continued = right.model_copy(update={"response_logprobs": (-123.0, own[1]), "policy_versions": spans})

    assert learner.batch_parity([make_scored(turns=(older,), version=3)], 4) is None, "nothing of version 4 in it"
    batch = [make_scored(turns=turns, version=3, version_max=4) for turns in ((right, older), (continued,))]
    parity = learner.batch_parity(batch, 4)
    again = learner.batch_parity([make_scored(turns=(right,), version=4)], 4)

    assert parity is not None
    assert parity.num_tokens == 3, "the older tokens are not compared"
    assert parity.mean_abs < 1e-5
    assert again is None
