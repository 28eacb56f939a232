"""Every policy gradient, in whole updates against an independent implementation; and what each of its options does.

As in `test_update_wiring.py`, of which these are the same batches. Some of the options begin from defaults that such
short episodes would never feel: those are in `BASES`.
"""

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from gymfleet_kit.plugins import options_of
from gymfleet_trainer.errors import RunDirectoryError
from gymfleet_trainer.learning.algorithm import AlgorithmOptions
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.plugins import ALGORITHMS
from gymfleet_trainer.learning.policy_gradient import PolicyGradientOptions
from gymfleet_trainer.stages.reinforce import Reinforce
from safetensors.torch import load_file

from tests.fixtures.trainer_plans import stage_of
from tests.unit.trainer.test_update_wiring import (
    DESCENT,
    FRESH,
    PRECISION,
    STALE,
    Batch,
    Outcome,
    as_groups,
    assert_agrees,
    batches,
    differs,
    expected,
    learned,
    model_dir,
    recipe_of,
)  # fmt: skip

__all__ = ["model_dir"]  # a fixture

CRITIC: Final[dict[str, Any]] = {"critic": {"warmup_steps": 0, "optimizer": {**DESCENT, "learning_rate": 4e4}}}
BASES: Final[dict[str, dict[str, Any]]] = {
    "dr_grpo": {"norm_tokens": 7},
    "dapo": {},
    "reinforce_pp": {},
    "reinforce_pp_baseline": {},
    "opo": {},
    "gpg": {},
    "gspo": {},
    "cispo": {"weight_low": 0.2, "weight_high": 0.2},
    "gmpo": {"clip_low": 0.1, "clip_high": 0.1},
    "sapo": {},
    "clip_cov": {"share": 0.2, "covariance_low": 0.1},
    "kl_cov": {"share": 0.1},
    "decoupled_ppo": {"correction": {"cap": 1.5}},
    "vapo": {**CRITIC, "lam_alpha": 0.5},
}
"""What each option below is a change of."""
OPTIONS: Final[dict[str, list[dict[str, Any]]]] = {
    "dr_grpo": [{"aggregation": "token_mean"}, {"norm_tokens": 9}],
    "dapo": [
        {"clip_high": 0.05},
        {"aggregation": "sequence_mean_token_mean"},
        {"overlong": {"max_tokens": 10, "buffer_tokens": 5}},
        {"overlong": {"max_tokens": 10, "buffer_tokens": 5, "factor": 0.5}},
        {"filter_truncated": True},
        {"filter_truncated": True, "overlong": {"max_tokens": 6, "buffer_tokens": 2}},
        {"negative_aggregation": "sequence_mean_token_mean"},
    ],
    "reinforce_pp": [
        {"gamma": 0.8}, {"kl": {"coefficient": 0.5}}, {"kl": {"estimator": "k2", "coefficient": 0.5}},
        {"kl": {"placement": "loss", "estimator": "k3", "coefficient": 0.5}},
    ],
    "reinforce_pp_baseline": [{"kl": {"coefficient": 0.5}}, {"kl": {"coefficient": 0.5, "estimator": "k3"}}],
    "opo": [{"clip_high": 0.05}],
    "gpg": [{"normalise_by_std": True}],
    "gspo": [{"clip_low": 0.1}, {"clip_high": 0.1}, {"dual_clip": 1.01}, {"normalise_by_std": False}],
    "cispo": [{"weight_low": 0.05}, {"weight_high": 0.05}, {"weight_high": 5.0}],
    "gmpo": [{"clip_low": 0.4}, {"clip_high": 0.4}],
    "sapo": [{"tau_positive": 3.0}, {"tau_negative": 3.0}],
    "clip_cov": [{"share": 0.05}, {"covariance_low": 0.5}, {"covariance_high": 0.5}, {"clip_low": 0.1}],
    "kl_cov": [{"share": 0.3}, {"hold": 0.2}],
    "decoupled_ppo": [{"gamma": 0.8}, {"correction": {"cap": 5.0}}, {"correction": {"mode": "mask"}}],
    "vapo": [
        {"lam_alpha": 0.2}, {"imitation": 0.0}, {"imitation": 0.5}, {"clip_high": 0.05}, {"critic": {"lam": 0.5}},
        {"critic": {"warmup_steps": 1}},
    ],
}  # fmt: skip
KL: Final[dict[str, dict[str, Any]]] = {
    "target, far": {"coefficient": 0.5, "target": 0.001, "horizon": 1.0},
    "target, near": {"coefficient": 0.5, "target": 10.0, "horizon": 2.0},
    "horizon": {"coefficient": 0.5, "target": 10.0, "horizon": 1.0},
    "target, in the reward": {"coefficient": 0.5, "target": 10.0, "horizon": 1.0, "placement": "reward"},
    "refresh_every": {"coefficient": 0.5, "refresh_every": 1},
    "refresh_every, in the reward": {"coefficient": 0.5, "refresh_every": 2, "placement": "reward"},
}
TRIED: Final = [(name, number) for name, options in OPTIONS.items() for number in range(len(options))]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def merged(base: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for name, value in options.items():
        both[name] = merged(base.get(name, {}), value) if isinstance(value, dict) else value
    return both


def given(model_dir: Path) -> list[Batch]:
    """The batches, in which every second episode succeeded."""
    return [
        [
            [
                scored.model_copy(
                    update={"trajectory": scored.trajectory.model_copy(update={"success": sample % 2 == 0})}
                )
                for sample, scored in enumerate(group)
            ]
            for group in groups
        ]
        for groups in batches(model_dir)
    ]


def options_for(algorithm: str) -> dict[str, Any]:
    return {"algorithm": algorithm, **BASES.get(algorithm, {})}


@cache
def base(model_dir: Path, algorithm: str, num_batches: int = 2) -> Outcome:
    return expected(recipe_of(options_for(algorithm)), model_dir, given(model_dir)[:num_batches])


@pytest.mark.parametrize("algorithm", BASES)
def test_an_update_is_what_the_paper_says(model_dir: Path, tmp_path: Path, algorithm: str) -> None:
    wanted = base(model_dir, algorithm)

    assert_agrees(learned(recipe_of(options_for(algorithm)), model_dir, tmp_path, given(model_dir)), wanted, model_dir)
    if algorithm not in {"gpg", "sapo"}:
        assert 0.0 < wanted.metrics[0]["clip_fraction"] < 0.95
    grpo = expected(recipe_of({}), model_dir, given(model_dir))
    assert differs(grpo, wanted, model_dir), "it is another algorithm"


@pytest.mark.parametrize(("algorithm", "number"), TRIED)
def test_an_option_changes_the_update_as_it_should(
    model_dir: Path, tmp_path: Path, algorithm: str, number: int
) -> None:
    recipe = recipe_of(merged(options_for(algorithm), OPTIONS[algorithm][number]))
    # In the first batch vapo warms up, and the policy is its reference.
    some = given(model_dir)[: 2 if algorithm == "vapo" or "kl" in OPTIONS[algorithm][number] else 1]
    wanted = expected(recipe, model_dir, some)

    assert_agrees(learned(recipe, model_dir, tmp_path, some), wanted, model_dir)
    assert differs(base(model_dir, algorithm, len(some)), wanted, model_dir)


@pytest.mark.parametrize("option", KL)
def test_the_kl_term_moves_as_it_is_told(model_dir: Path, tmp_path: Path, option: str) -> None:
    fixed = {name: value for name, value in KL[option].items() if name in {"coefficient", "placement"}}
    recipe = recipe_of({"kl": KL[option]})
    three = [*given(model_dir), given(model_dir)[0]]
    wanted = expected(recipe, model_dir, three)

    assert_agrees(learned(recipe, model_dir, tmp_path, three), wanted, model_dir)
    assert differs(expected(recipe_of({"kl": fixed}), model_dir, three), wanted, model_dir)


def test_every_option_of_ones_own_is_tried() -> None:
    known = set(PolicyGradientOptions.model_fields) | {"clip_low", "clip_high", "dual_clip", "normalise_by_std"}
    for algorithm in BASES:
        options = options_of(ALGORITHMS.find(algorithm))
        assert issubclass(options, AlgorithmOptions)
        tried = {name for option in OPTIONS[algorithm] for name in option}
        own = set(options.model_fields) - known - {"dynamic_sampling", "critic"}
        assert own <= tried, algorithm


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"kl": {"coefficient": 0.5, "refresh_every": 2}}, id="a reference that was renewed"),
        pytest.param({"kl": {"coefficient": 0.5, "refresh_every": 3}}, id="a reference that was not yet"),
        pytest.param({"kl": {"coefficient": 0.5, "target": 0.001, "horizon": 1.0}}, id="a coefficient that moved"),
        pytest.param({"algorithm": "clip_cov", **BASES["clip_cov"]}, id="a draw by the number of the batch"),
    ],
)
def test_a_run_that_is_resumed_goes_on_as_if_nothing_had_happened(
    model_dir: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    recipe = recipe_of(options)
    first, second = ([as_groups(recipe, groups) for groups in batches(model_dir)][number] for number in (0, 1))

    def begun(source: Path | None) -> LocalLearner:
        learner = LocalLearner(recipe, str(model_dir), tmp_path / "reference")
        if source is not None:
            learner.load_checkpoint(source)
        learner.begin("reinforce", stage_of(recipe, Reinforce).options)
        return learner

    def saved(learner: LocalLearner, name: str) -> Path:
        (tmp_path / name).mkdir()
        learner.save_checkpoint(tmp_path / name)
        return tmp_path / name

    staleness = {FRESH: 0, STALE: 2}.get
    straight = begun(None)
    straight.update(first, staleness)
    straight.update(second, staleness)
    # Once more saved before anything was learned from.
    resumed = begun(saved(begun(saved(straight, "once")), "twice"))
    wanted, actual = (learner.update(first, staleness) for learner in (straight, resumed))

    assert {name: value for name, value in actual.items() if name != "update_s"} == pytest.approx(
        {name: wanted[name] for name in actual if name != "update_s"}, rel=PRECISION, abs=PRECISION, nan_ok=True
    )
    ends = [load_file(saved(learner, name) / "model" / "model.safetensors") for learner, name in
            ((straight, "straight"), (resumed, "resumed"))]  # fmt: skip
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=PRECISION, atol=PRECISION)


def test_a_stage_is_not_resumed_without_the_policy_that_it_began_with(model_dir: Path, tmp_path: Path) -> None:
    """The policy of the checkpoint is not the reference: the run would go on to another end."""
    recipe = recipe_of({"kl": {"coefficient": 0.5}})
    options = stage_of(recipe, Reinforce).options
    some, staleness = as_groups(recipe, batches(model_dir)[0]), {FRESH: 0, STALE: 2}.get
    learner = LocalLearner(recipe, str(model_dir), tmp_path / "references")
    learner.begin("reinforce", options)
    learner.update(some, staleness)
    (checkpoint := tmp_path / "checkpoint").mkdir()
    learner.save_checkpoint(checkpoint)
    shutil.rmtree(tmp_path / "references")

    learner.load_checkpoint(checkpoint)
    learner.begin("reinforce", options)

    with pytest.raises(RunDirectoryError, match="references/reinforce is missing"):
        learner.update(some, staleness)
