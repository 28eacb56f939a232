"""Credit by turn, from a recipe to the weights: whole updates against an independent implementation, in float64."""

import random
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import ScoredTrajectory, StateValue, Turn
from gymfleet_trainer.algorithms.gigpo import GigpoOptions
from gymfleet_trainer.algorithms.monte_carlo import MonteCarloOptions
from gymfleet_trainer.algorithms.tree_grpo import TreeGrpoOptions
from gymfleet_trainer.algorithms.turn_ppo import TurnPpoOptions
from gymfleet_trainer.learning.policy_gradient import ClippedOptions
from gymfleet_trainer.stages.reinforce import Reinforce

from tests.fixtures.reference_turns import TurnReference, turn_episodes
from tests.fixtures.trainer_plans import stage_of
from tests.unit.trainer.test_update_wiring import (
    PPO,
    STALE,
    Batch,
    Outcome,
    assert_agrees,
    batches,
    differs,
    learned,
    model_dir,
    one_thread,
    recipe_of,
)

__all__ = ["model_dir", "one_thread"]

_CRITIC: Final[dict[str, Any]] = PPO["critic"]
OPTIONS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "gigpo": {
        "gamma": {"gamma": 0.5},
        "step_weight": {"step_weight": 0.3},
        "mode": {"mode": "mean_std_norm", "optimizer": {"learning_rate": 1e5}},
        "roles": {"roles": ["agent"]},
        "kl": {"kl": {"coefficient": 0.5, "placement": "reward", "estimator": "k1"}},
    },
    "monte_carlo": {
        "whiten": {"whiten": True},
        "roles": {"roles": ["agent"]},
        "kl": {"kl": {"coefficient": 0.5}},
    },
    "tree_grpo": {
        "intra": {"intra": "siblings"},
        "intra_weight": {"intra_weight": 0.3},
        "inter_weight": {"inter_weight": 0.3},
        "normalise_by_std": {"normalise_by_std": False},
        "roles": {"roles": ["agent"]},
        "kl": {"kl": {"coefficient": 0.5, "placement": "reward", "estimator": "k1"}},
    },
    "turn_ppo": {
        "turn_gamma": {"turn_gamma": 0.5},
        "turn_lam": {"turn_lam": 0.5},
        "gamma": {"critic": {**_CRITIC, "gamma": 0.8}},
        "lam": {"critic": {**_CRITIC, "lam": 0.5}},
        "roles": {"roles": ["agent"]},
        "kl": {"kl": {"coefficient": 0.5, "placement": "reward", "estimator": "k1"}},
    },
}


@cache
def played(path: Path) -> list[Batch]:
    """The batches of the other tests, with states that are come to several times, some of which have a value."""
    rng = random.Random(0)
    return [[[_in_states(scored, rng) for scored in group] for group in groups] for groups in batches(path)]


def _in_states(scored: ScoredTrajectory, rng: random.Random) -> ScoredTrajectory:
    turns = tuple(_in_state(turn, rng) for turn in scored.trajectory.turns)
    return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"turns": turns})})


def _in_state(turn: Turn, rng: random.Random) -> Turn:
    where = rng.choice([{"state_key": "cellar"}, {"state_key": "attic"}, {"observation": "A door."}])
    value = StateValue(mean=rng.uniform(-1, 1), samples=2) if rng.random() < 0.6 else None
    return turn.model_copy(update={**where, "value": value})


@cache
def branched(path: Path) -> list[Batch]:
    """The batches of the other tests, in which two episodes of each group begin with the same turn."""
    return [[_as_trees(group) for group in groups] for groups in batches(path)]


def _as_trees(group: list[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """The first two episodes of one version are leaves of one tree, and the third is a tree of its own."""
    versions = [scored.trajectory.policy.version_min for scored in group]
    stem, twin = next((a, b) for a, b in ((0, 1), (0, 2), (1, 2)) if versions[a] == versions[b])
    found = [_with_nodes(scored, str(place)) for place, scored in enumerate(group)]
    one, other = found[stem], _with_nodes(group[twin], str(stem), first=f"{stem}.{twin}")
    assert one.reward is not None
    assert other.reward is not None
    turns = (one.trajectory.turns[0], *other.trajectory.turns[1:])
    rewards = (one.reward.token_rewards[0], *other.reward.token_rewards[1:])
    found[twin] = ScoredTrajectory(
        trajectory=other.trajectory.model_copy(update={"turns": turns}),
        reward=other.reward.model_copy(update={"token_rewards": rewards}),
    )
    return found


def _with_nodes(scored: ScoredTrajectory, root: str, first: str = "") -> ScoredTrajectory:
    """The path from a root, which leaves that of others after its first turn where it has a name for that."""
    names = [root, f"{root}/1", *(f"{root}/1/{first}{place}" for place in range(1, len(scored.trajectory.turns)))]
    turns = [
        turn.model_copy(update={"parent": names[place], "node": names[place + 1]})
        for place, turn in enumerate(scored.trajectory.turns)
    ]
    return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"turns": tuple(turns)})})


def given_to(algorithm: str, path: Path) -> list[Batch]:
    return branched(path) if algorithm == "tree_grpo" else played(path)


def recipe(algorithm: str, options: dict[str, Any]) -> Recipe:
    more = {"critic": _CRITIC} if algorithm == "turn_ppo" else {}
    return recipe_of({"algorithm": algorithm, **more, **options})


def expected(given: Recipe, path: Path) -> Outcome:
    reference, options = TurnReference(given, path), stage_of(given, Reinforce).options
    metrics = [
        reference.update(turn_episodes(groups, {STALE}, options.roles)) for groups in given_to(reference.kind, path)
    ]
    weights = {name: value.detach() for name, value in reference.policy.named_parameters()}
    if options.algorithm == "turn_ppo":
        weights |= {f"critic.{name}": value.detach() for name, value in reference.critic.named_parameters()}
    return Outcome(metrics, weights)


@cache
def base(path: Path, algorithm: str) -> Outcome:
    return expected(recipe(algorithm, {}), path)


def check(given: Recipe, path: Path, directory: Path) -> Outcome:
    wanted = expected(given, path)
    actual = learned(given, path, directory, given_to(stage_of(given, Reinforce).options.algorithm, path))
    for metrics in actual.metrics:
        for own in ("branched_turns", "compared_turns", "valued_turns"):
            metrics.pop(own, None)
    assert_agrees(actual, wanted, path)
    return wanted


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_credit_by_turn_is_no_credit_by_episode(
    model_dir: Path,
    tmp_path: Path,
    algorithm: str,
) -> None:
    wanted = check(recipe(algorithm, {}), model_dir, tmp_path)

    other = recipe("ppo" if algorithm == "turn_ppo" else "grpo", {"critic": _CRITIC} if algorithm == "turn_ppo" else {})
    assert differs(
        learned(other, model_dir, _made(tmp_path / "other"), given_to(algorithm, model_dir)), wanted, model_dir
    )


def _made(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize(("algorithm", "option"), [(name, key) for name, own in OPTIONS.items() for key in own])
def test_an_option_changes_the_update_as_it_should(
    model_dir: Path,
    tmp_path: Path,
    algorithm: str,
    option: str,
) -> None:
    wanted = check(recipe(algorithm, OPTIONS[algorithm][option]), model_dir, tmp_path)

    assert differs(base(model_dir, algorithm), wanted, model_dir)


def test_every_option_is_tried() -> None:
    known = {
        "gigpo": set(GigpoOptions.model_fields) - set(ClippedOptions.model_fields),
        "monte_carlo": set(MonteCarloOptions.model_fields) - set(ClippedOptions.model_fields),
        "tree_grpo": set(TreeGrpoOptions.model_fields) - set(ClippedOptions.model_fields),
        "turn_ppo": set(TurnPpoOptions.model_fields) - {*ClippedOptions.model_fields, "critic"},
    }

    assert {name: options - set(OPTIONS[name]) for name, options in known.items()} == {key: set() for key in known}
