"""Checks of an algorithm's promises on a small model, for `gymfleet check FILE` and our own tests."""

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import (
    FinishReason,
    PolicyRef,
    Reward,
    ScoredTrajectory,
    StateValue,
    Status,
    Trajectory,
    Turn,
    sampled_by,
    trajectory_id,
)
from gymfleet_kit.plugins import PluginError, options_of
from pydantic import ValidationError
from torch import Tensor
from transformers import Starcoder2Config, Starcoder2ForCausalLM

from gymfleet_trainer.learning.algorithm import Algorithm, Sample, Trained, Verdict
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import UpdateOptions
from gymfleet_trainer.learning.plugins import ALGORITHMS
from gymfleet_trainer.model.attention import PACKED_ATTENTION
from gymfleet_trainer.model.batching import TrainSequence, pack, sequences_from_trajectory
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.model.policy_model import PolicyModel, Reference
from gymfleet_trainer.model.trees import SHORTEST

_VOCAB: Final = 24
_GROUPS: Final = 4
_GROUP_SIZE: Final = 4
_WHOLE: Final = 1 << 16
_SMALL: Final = 24
"""Tokens of a micro-batch: `_WHOLE` fits all of an update, `_SMALL` about one row."""
_PRECISION: Final = 1e-9
_WARM_UP: Final = 1000
"""Number of batches to search for the first one that trains the policy."""
_PASS: Final = OptimizerOptions(learning_rate=0.01, betas=(0.9, 0.95), eps=1e-4, max_grad_norm=1e3)

Groups = list[list[ScoredTrajectory]]


class _Broken(Exception):
    """A promise does not hold; the message says which, and what to do."""


@dataclass(frozen=True)
class _Bench:
    """The set-up of the checks: the class, a policy, and batches that were sampled from it."""

    kind: type[Algorithm[Any]]
    model: PolicyModel
    batches: tuple[Groups, Groups]

    def algorithm(self) -> Algorithm[Any]:
        return self.kind(self.kind.Options())

    def engine(
        self, *, microbatch: int = _WHOLE, model: PolicyModel | None = None, reference: Reference | None = None
    ) -> UpdateEngine:
        section = UpdateOptions(
            steps=2, updates_per_step=2, epochs_per_step=2, tokens_per_microbatch=microbatch, optimizer=_PASS
        )
        policy = copy.deepcopy(self.model) if model is None else model
        given = self.model.frozen_copy() if reference is None else reference
        engine = UpdateEngine(policy, self.algorithm(), section, reference=given)
        # A check of the policy shows nothing while only a critic is trained.
        learning = (batch for batch in range(_WARM_UP) if Trained.POLICY in engine.algorithm.trains(batch))
        engine.num_batches = next(learning, 0)
        return engine


def examine(reference: str) -> list[str]:
    """Return a line for each promise that an algorithm breaks with its default options; none if it is sound.

    Raises `PluginError` for a reference that names no algorithm.
    """
    kind = ALGORITHMS.find(reference)
    if faults := list(_faults_of_class(kind)):
        return faults
    with _deterministic():
        model = _small_model()
        batches = (_sampled(model, 0), _sampled(model, 1))
        bench = _Bench(kind, model, batches)
        return [fault for check in _CHECKS for fault in _tried(check, bench)]


def _faults_of_class(kind: type[Algorithm[Any]]) -> Iterator[str]:
    if not kind.__doc__:
        yield "it has no docstring: `gymfleet plugins list` shows its first line"
    try:
        options_of(kind)()
    except PluginError as error:
        yield str(error)
    except ValidationError as error:
        missing = ", ".join(".".join(map(str, fault["loc"])) for fault in error.errors(include_url=False))
        yield f"its options have no sound defaults ({missing}): it cannot be tried without a recipe that sets them"


def _tried(check: Callable[[_Bench], None], bench: _Bench) -> list[str]:
    try:
        check(bench)
    except _Broken as broken:
        return [str(broken)]
    except Exception as error:  # noqa: BLE001 - whatever a plug-in raises is its author's to see
        reason = " ".join(str(error).split()) or "no reason given"
        return [f"{check.__name__.strip('_').replace('_', ' ')}: raised {type(error).__name__}: {reason}"]
    return []


# --- the promises


def _it_trains(bench: _Bench) -> None:
    engine = bench.engine()
    metrics = [_update(engine, batch) for batch in bench.batches]
    if any(told["num_nonfinite"] for told in metrics):
        raise _Broken("an update's gradient is not finite")
    if _distance(engine.model, bench.model) == 0:
        raise _Broken("an update changes no weight: has every row advantages of zero, or the loss no gradient?")
    if unsound := sorted({name for told in metrics for name, value in told.items() if not math.isfinite(value)}):
        raise _Broken(f"an update reports numbers that are not finite: {', '.join(unsound)}")


def _rows_are_what_was_sampled(bench: _Bench) -> None:
    algorithm, engine = bench.algorithm(), bench.engine()
    for group in bench.batches[0]:
        sampled = {scored.trajectory.trajectory_id: sequences_from_trajectory(scored) for scored in group}
        for row in algorithm.rows([Sample(scored, 0) for scored in group]):
            sequences = sampled.get(row.trajectory_id)
            if sequences is None:
                raise _Broken(f"rows: {row.trajectory_id!r} names none of the group's trajectories")
            if not any(_within(_written(row), _written(whole)) for whole in sequences):
                raise _Broken("rows: a token has a loss that the policy did not sample there")
    rows = [row for group in bench.batches[0] for row in algorithm.rows([Sample(scored, 0) for scored in group])]
    prepared = algorithm.prepare(rows, engine)
    if [row.token_ids for row in prepared] != [row.token_ids for row in rows]:
        raise _Broken("prepare: it must return the same rows in the same order")


def _verdicts_hold(bench: _Bench) -> None:
    engine = bench.engine()
    groups = [*bench.batches[0], [_with_reward(scored, 0.0) for scored in bench.batches[0][0]]]
    before = [engine.algorithm.select(group) for group in groups]
    if strange := [verdict for verdict in before if not isinstance(verdict, Verdict)]:
        raise _Broken(f"select: it must return Verdict.KEEP, Verdict.DROP or Verdict.ANOTHER, not {strange[0]!r:.100}")
    _update(engine, bench.batches[0])
    for algorithm in (engine.algorithm, bench.algorithm()):
        if [algorithm.select(group) for group in groups] != before:
            raise _Broken(
                "select: its verdict on a group changes; a run that was interrupted asks again, so that it may depend "
                "on the group and the options alone"
            )


def _packing_changes_nothing(bench: _Bench) -> None:
    found = []
    for microbatch in (_WHOLE, _SMALL):
        engine = bench.engine(microbatch=microbatch)
        _update(engine, bench.batches[0])
        found.append(engine.model)
    if _distance(*found) > _PRECISION:
        raise _Broken(
            "loss: it depends on how rows are packed into micro-batches; divide by `outputs.counts`, which is of the "
            "whole update, give rows that need each other one `unit`, and do not look at `batch.shared`: what several "
            "of them begin with is computed once in a micro-batch"
        )


def _repeats_are_equal(bench: _Bench) -> None:
    engines = [bench.engine(), bench.engine()]
    for engine in engines:
        for batch in bench.batches:
            _update(engine, batch)
    if _distance(engines[0].model, engines[1].model) != 0:
        raise _Broken("two equal runs give different weights: does it draw random numbers, or keep state in its class?")


def _a_restart_changes_nothing(bench: _Bench) -> None:
    straight = bench.engine()
    _update(straight, bench.batches[0])
    saved, weights = copy.deepcopy(straight.state_dict()), copy.deepcopy(straight.model)
    reference = copy.deepcopy(straight.reference)  # which may have been refreshed
    _update(straight, bench.batches[1])
    resumed = bench.engine(model=weights, reference=reference)
    resumed.load_state_dict(saved)
    _update(resumed, bench.batches[1])
    if _distance(straight.model, resumed.model) != 0:
        raise _Broken("a run that is resumed gives other weights: what it remembers belongs into `state_dict`")


def _equal_rewards_are_no_accident(bench: _Bench) -> None:
    for reward in (0.0, 1.0):
        engine = bench.engine()
        metrics = _update(engine, [[_with_reward(scored, reward) for scored in group] for group in bench.batches[0]])
        finite = all(bool(torch.isfinite(weight).all()) for weight in engine.model.parameters())
        if metrics["num_nonfinite"] or not finite:
            raise _Broken(f"where all rewards are {reward:g}, the gradient is not finite: divides it by their spread?")


_CHECKS: Final = (
    _it_trains,
    _rows_are_what_was_sampled,
    _verdicts_hold,
    _packing_changes_nothing,
    _repeats_are_equal,
    _a_restart_changes_nothing,
    _equal_rewards_are_no_accident,
)


# --- the set-up of the checks


@contextmanager
def _deterministic() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _small_model() -> PolicyModel:
    config = Starcoder2Config(
        vocab_size=_VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.25, tie_word_embeddings=False,
        sliding_window=None, bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation=PACKED_ATTENTION,
    )  # fmt: skip
    return PolicyModel(Starcoder2ForCausalLM(config).double(), compute_dtype=torch.float64)


def _sampled(model: PolicyModel, number: int) -> Groups:
    """Return groups of random episodes of up to four turns, with the model's own log-probabilities.

    The episodes of a group begin with the same prompt, which is long enough to be computed once. One episode of each
    group replaces its context in its last turn, and so becomes several sequences.
    """
    rng = random.Random(number)
    drafts = []
    for name in range(_GROUPS):
        prompt = tuple(rng.randrange(1, _VOCAB) for _ in range(SHORTEST))
        drafts.append([_episode(rng, f"g{number}{name}", place, prompt) for place in range(_GROUP_SIZE)])
    return [[_told(scored, _logprobs(model, scored)) for scored in group] for group in drafts]


@torch.no_grad()
def _logprobs(model: PolicyModel, scored: ScoredTrajectory) -> Tensor:
    """Return the log-probabilities of an episode's tokens, sequence after sequence."""
    alone = [pack([row], _WHOLE, dtype=model.dtype) for row in sequences_from_trajectory(scored)]
    return torch.cat([model.token_logprobs(batch).logprobs for (batch,) in alone])


def _episode(rng: random.Random, group_id: str, sample: int, prompt: tuple[int, ...]) -> ScoredTrajectory:
    turns = [_turn(rng) for _ in range(rng.randint(1, 3))]
    turns[0] = turns[0].model_copy(update={"prompt_token_ids": prompt, "value": StateValue(mean=0.125, samples=1)})
    if sample == 0:
        turns.append(_turn(rng).model_copy(update={"context": "replaced"}))
    reward = rng.uniform(-1.0, 1.0)
    rewards = [[0.0] * len(turn.response_token_ids) for turn in turns]
    rewards[-1][-1] = reward
    trajectory = Trajectory(
        trajectory_id=trajectory_id("check", group_id, sample), run_id="check", group_id=group_id, sample=sample,
        task=TaskRef(env="check", split="train", level="", task_id="0"),
        policy=PolicyRef(model="check", version_min=0, version_max=0), format="react", format_version=1,
        turns=tuple(turns), status=Status.COMPLETED, score=0.0, success=False, finish_reason=FinishReason.TERMINATED,
    )  # fmt: skip
    return ScoredTrajectory(trajectory=trajectory, reward=_reward(reward, rewards))


def _turn(rng: random.Random) -> Turn:
    prompt, response = (tuple(rng.randrange(1, _VOCAB) for _ in range(rng.randint(2, 4))) for _ in range(2))
    return Turn(
        observation="", prompt_token_ids=prompt, response_token_ids=response, response_logprobs=(-1.0,) * len(response),
        policy_versions=sampled_by(0, len(response)), text="", thought="", action="", format_valid=True,
        action_valid=True,
    )  # fmt: skip


def _reward(total: float, token_rewards: Sequence[Sequence[float]]) -> Reward:
    rows = tuple(map(tuple, token_rewards))
    return Reward(total=total, components={}, allocation="last_token", token_rewards=rows, scorers={})


def _with_reward(scored: ScoredTrajectory, total: float) -> ScoredTrajectory:
    rewards = [[0.0] * len(turn.response_token_ids) for turn in scored.trajectory.turns]
    rewards[-1][-1] = total
    return scored.model_copy(update={"reward": _reward(total, rewards)})


def _told(scored: ScoredTrajectory, logprobs: Tensor) -> ScoredTrajectory:
    turns, start = [], 0
    for turn in scored.trajectory.turns:
        start += len(turn.prompt_token_ids)
        own = tuple(logprobs[start : start + len(turn.response_token_ids)].tolist())
        turns.append(turn.model_copy(update={"response_logprobs": own}))
        start += len(own)
    return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"turns": tuple(turns)})})


def _update(engine: UpdateEngine, batch: Groups) -> dict[str, float]:
    algorithm = engine.algorithm
    samples = [[Sample(scored, 0) for scored in group] for group in batch]
    return engine.update([row for group in samples for row in algorithm.rows(group)])


def _distance(one: PolicyModel, other: PolicyModel) -> float:
    """Return the largest difference between two models' weights."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def _written(row: TrainSequence) -> list[int]:
    return [token for token, counts in zip(row.token_ids, row.loss_mask, strict=True) if counts]


def _within(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether leaving tokens out of `whole` can give `part`."""
    rest = iter(whole)
    return all(token in rest for token in part)
