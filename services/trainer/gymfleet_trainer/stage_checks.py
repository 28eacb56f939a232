"""Checks of a stage's promises on a small model with scripted episodes, for `gymfleet check FILE` and our tests."""

import asyncio
import hashlib
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import torch
from gymfleet_contracts.conversation import Record
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import (
    EXPERT,
    FinishReason,
    PolicyRef,
    Reward,
    ScoredTrajectory,
    Status,
    Trajectory,
    Turn,
    sampled_by,
    trajectory_id,
)
from gymfleet_kit.plugins import PluginError, checked_options
from safetensors.torch import load_file
from transformers import Starcoder2Config, Starcoder2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.model.scratch import build_tokenizer
from gymfleet_trainer.publish.probe import Parity
from gymfleet_trainer.publish.publisher import Publication
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.plan import STAGES
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stage import Stage

_VOCAB: Final = 24
"""Number of tokens that scripted episodes use; the model's tokenizer also has all bytes."""
_TOKENIZER: Final = 320
_LABEL: Final = re.compile(r"[a-z0-9_-]{0,32}")
_WEIGHTS: Final = "model.safetensors"
_TRIED: Final = "tried"
"""Name of the stage under test."""
_GIVEN: Final = "given"
"""Name of the stage whose episodes are given to a stage that reads data."""
_RECIPE: Final = Recipe.model_validate(
    {
        "name": "rehearsal",
        "environments": [{"name": "rehearsal"}],
        "model": {"path": "unused"},
        "trainer_device": "cpu",
        "stages": [{"kind": "measure"}],
    }
)


class _Broken(Exception):
    """A promise does not hold; the message says which, and what to do."""


class _Killed(Exception):
    """The process ended here."""


@dataclass
class _Fleet:
    """The services, as a stage sees them: every requested group comes back at once.

    The tokens and the reward of an episode depend on its id alone, as if sampling had a fixed seed.
    """

    learner: LocalLearner
    state: RunState
    asked: list[GroupRequest] = field(default_factory=list)
    ready: dict[str, Group] = field(default_factory=dict)
    num_held: int = 0

    @property
    def num_open(self) -> int:
        return len(self.ready)

    async def ask(self, requests: Iterable[GroupRequest]) -> None:
        for request in requests:
            if request.group_id not in self.ready:
                self.asked.append(request)
                self.ready[request.group_id] = self.played(request)

    async def more(self) -> None:
        raise _Broken("it waits for a group that it has not asked for")

    async def next_group(self, wanted: Callable[[str], bool]) -> Group:
        found = next(filter(wanted, self.ready), None)
        if found is None:
            await self.more()
        return self.ready.pop(found or "")

    def env_steps(self, group_id: str) -> int:
        group = self.ready.get(group_id)
        return 0 if group is None else group.env_steps

    def settle(self, group_id: str) -> None:
        self.ready.pop(group_id, None)

    def settled(self) -> frozenset[str]:
        return frozenset()

    async def acknowledge(self, _: frozenset[str]) -> int:
        return 0

    async def keep_search_trees(self, _: RunDirectory) -> None:
        pass

    def played(self, request: GroupRequest) -> Group:
        group = Group(request)
        for sample in request.wanted:
            group.samples[sample] = self._episode(request, sample)
        return group

    def _episode(self, request: GroupRequest, sample: int) -> ScoredTrajectory:
        shown = _draw(f"{request.task.split}/{request.task.task_index}")  # a task begins alike in all its episodes
        draw = _draw(f"{request.group_id}/{sample}")
        prompt = [shown.randrange(1, _VOCAB) for _ in range(3)]
        reply = [draw.randrange(1, _VOCAB) for _ in range(4)]
        (logprobs,) = self.learner.sampled_logprobs([prompt], [reply])
        success = draw.random() < 0.5
        by_expert, version = request.strategy.use == "expert", self.state.version
        turn = Turn(
            observation="a word",
            prompt_token_ids=tuple(prompt),
            response_token_ids=tuple(reply),
            response_logprobs=None if by_expert else tuple(logprobs),
            text="a reply",
            thought="",
            format_valid=True,
            action="act",
            action_valid=True,
            policy_versions=() if by_expert else sampled_by(version, len(reply)),
        )
        trajectory = Trajectory(
            trajectory_id=trajectory_id(request.run_id, request.group_id, sample),
            run_id=request.run_id,
            group_id=request.group_id,
            sample=sample,
            purpose=request.purpose,
            task=TaskRef(
                env=request.task.env,
                split=request.task.split,
                level="only",
                task_id=f"{request.task.split}.{request.task.task_index}",
            ),
            policy=PolicyRef(model=EXPERT if by_expert else "small", version_min=version, version_max=version),
            strategy=request.strategy.use,
            format="react",
            format_version=1,
            turns=(turn,),
            status=Status.COMPLETED,
            finish_reason=FinishReason.TERMINATED,
            success=success or by_expert,
            score=float(success),
        )
        rewards = ((0.0,) * (len(reply) - 1) + (float(success),),)
        reward = Reward(total=float(success), components={}, allocation="last_token", token_rewards=rewards, scorers={})
        return ScoredTrajectory(trajectory=trajectory, reward=reward)


def _draw(name: str) -> random.Random:
    return random.Random(hashlib.sha256(name.encode()).digest())


@dataclass
class _Publisher:
    """Publishing without an engine."""

    async def publish(self, state: RunState) -> Publication:
        state.version += 1
        state.ages[state.version] = state.age
        return Publication(state.version, Parity(0.0, 0.0, 1), 1, 1, 0.0, 0.0, 0.0, 0.0, 0.0)

    def adopt_probe(self, state: RunState, trajectories: Iterable[ScoredTrajectory]) -> None:
        """Without an engine there is no probe."""


class _Thread(TorchThread):
    """End the process when training is called for the `kill_at`-th time."""

    def __init__(self, kill_at: int = 0) -> None:
        super().__init__(1)
        self._left = kill_at

    async def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(function, "__name__", "") in ("update", "update_rows", "sft_epoch", "reward_epoch"):
            self._left -= 1
            if self._left == 0:
                raise _Killed
        return await super().run(function, *args, **kwargs)


@dataclass(frozen=True)
class _Rehearsal:
    """A stage under test, and the directory in which it runs."""

    kind: type[Stage[Any]]
    reference: str
    model: Path
    directory: Path

    def stage(self) -> Stage[Any]:
        options: Mapping[str, Any] = {**({"data": _GIVEN} if self.kind.facts.reads else {}), **self.kind.small}
        planned = PlannedStage(_TRIED, self.reference, "stages.tried", options, {_GIVEN: _GIVEN})
        stage = self.kind(
            planned, checked_options(self.kind.Options, options, table="stages.tried", owner=self.reference)
        )
        stage.check(_RECIPE, planned)
        return stage

    def play(self, name: str, *, kill_at: int = 0, again: "_Played | None" = None) -> "_Played":
        """Run the stage from its beginning, or from the last checkpoint of `again`, until it ends or is killed."""
        return asyncio.run(self._play(name, kill_at, again))

    async def _play(self, name: str, kill_at: int, again: "_Played | None") -> "_Played":
        directory = RunDirectory(self.directory / name)
        learner = LocalLearner(_RECIPE, str(self.model), directory.references)
        with directory, _Thread(kill_at) as worker:
            checkpoints = Checkpoints(directory.checkpoints, keep=1)
            if again is None:
                state = RunState(run_id="rehearsal", recipe_hash="")
                given = _given(_Fleet(learner, state))
                directory.trajectories(_GIVEN, [scored for group in given for scored in group.trajectories])
                state.offsets = directory.offsets()
                await worker.run(checkpoints.save, state, learner.save_checkpoint)
            else:
                path, state = cast("tuple[Path, RunState]", checkpoints.latest())
                await worker.run(learner.load_checkpoint, path)
                directory.truncate(state.offsets)
            fleet, stage = _Fleet(learner, state), self.stage()
            run = RunContext(
                _RECIPE, TrainerSettings(), directory, state, checkpoints, learner, worker, cast("Any", None),
                cast("Any", _Publisher()), cast("Any", fleet),
                GroupPlanner(_RECIPE, "rehearsal", {"rehearsal": {"train": 40, "test": 40}}),
                Reporter(directory, "rehearsal"), cast("Any", None), stage,
            )  # fmt: skip
            age = state.age
            died = False
            try:
                await stage.run(run)
                await worker.run(learner.save_weights, _emptied(self.directory / f"{name}-weights"))
                await run.checkpoint()
            except _Killed:
                died = True
                await run.settle_checkpoint()  # its thread would outlive this "process", and disturb the next one
            strangers = [one.group_id for one in fleet.asked if stage.request(run, one.group_id) is None]
            return _Played(fleet.asked, run.taken(), state.age - age, died, strangers)

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        """Return the final weights of the play with this name: the policy's, and a reward model's if there is one."""
        state: dict[str, torch.Tensor] = load_file(self.directory / f"{name}-weights" / _WEIGHTS)
        left = self.directory / name / "models" / _TRIED / _WEIGHTS
        return state | (
            {f"reward_model.{key}": value for key, value in load_file(left).items()} if left.exists() else {}
        )


@dataclass(frozen=True)
class _Played:
    asked: list[GroupRequest]
    left: list[Record] | None
    changes: int
    """How often the weights changed."""
    died: bool
    strangers: list[str]
    """Groups that the stage asked for, but for which its `request` returns None."""


def examine(reference: str) -> list[str]:
    """Return a line for each promise that a stage breaks; none if it is sound.

    Raises `PluginError` for a reference that names no stage.
    """
    kind = STAGES.find(reference)
    if faults := list(_faults_of_class(kind)):
        return faults
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary) / "model"
        _small_model(model)
        rehearsal = _Rehearsal(kind, reference, model, Path(temporary))
        try:
            rehearsal.stage()
        except (PluginError, RecipeError) as error:
            return [f"`small` is to hold options with which it can be tried: {error}"]
        return [fault for check in _CHECKS for fault in _tried(check, rehearsal)]


def _faults_of_class(kind: type[Stage[Any]]) -> Iterator[str]:
    if not kind.__doc__:
        yield "it has no docstring: `gymfleet plugins list` shows its first line"
    if kind.facts.reads and "data" not in getattr(kind.Options, "model_fields", {}):
        yield "facts.reads: its Options need a field `data`, which names the episodes"


def _tried(check: Callable[[_Rehearsal], None], rehearsal: _Rehearsal) -> list[str]:
    try:
        check(rehearsal)
    except _Broken as broken:
        return [str(broken)]
    except Exception as error:  # noqa: BLE001 - whatever a plug-in raises is its author's to see
        reason = " ".join(str(error).split()) or "no reason given"
        return [f"{check.__name__.strip('_').replace('_', ' ')}: raised {type(error).__name__}: {reason}"]
    return []


# --- the promises


def _what_it_plays_is_known_beforehand(rehearsal: _Rehearsal) -> None:
    one, other = rehearsal.stage().plays(), rehearsal.stage().plays()
    if one != other:
        raise _Broken("plays() answers differently each time: it may depend on the options alone")
    if wrong := [label for label in one if _LABEL.fullmatch(label) is None]:
        raise _Broken(f"plays(): {wrong[0]!r} is no label: use a-z, 0-9, _ and -")


def _it_leaves_what_it_says(rehearsal: _Rehearsal) -> None:
    played = rehearsal.play("whole")
    says = rehearsal.kind.facts.leaves
    if ("episodes" in says) != (played.left is not None):
        told = "leaves none: call run.leave" if played.left is None else "leaves some: say so in facts.leaves"
        raise _Broken(f"facts.leaves {'names' if 'episodes' in says else 'does not name'} episodes, and it {told}")
    if ("model" in says) != (played.changes > 0):
        told = "says that it trains, and the weights" if "model" in says else "trains, and does not say so, or the age"
        raise _Broken(f"facts.leaves: it {told} changed {played.changes} times")
    if played.strangers:
        raise _Broken(f"it asks for {played.strangers[0]}, and request() does not know that id: declare it in plays()")
    held_out = {one.group_id for one in played.asked if one.purpose == "eval"}
    left = [record for record in played.left or () if isinstance(record, ScoredTrajectory)]
    if any(scored.trajectory.group_id in held_out for scored in left):
        raise _Broken("it leaves held-out episodes: later stages would train on what is measured")


def _begun_again_it_asks_for_the_same(rehearsal: _Rehearsal) -> None:
    one, other = (
        [(request.group_id, request.task) for request in rehearsal.play(name).asked] for name in ("one", "other")
    )
    if one != other:
        raise _Broken("begun again, it asks for other groups: those of an interrupted run would be lost")


def _killed_in_the_middle_it_ends_as_if_nothing_had_been(rehearsal: _Rehearsal) -> None:
    if not {"model", "reward_model", "process_reward_model", "judge"} & set(rehearsal.kind.facts.leaves):
        return
    rehearsal.play("undisturbed")
    killed = rehearsal.play("killed", kill_at=2)
    if not killed.died:
        return
    rehearsal.play("killed", again=killed)
    one, other = rehearsal.weights("undisturbed"), rehearsal.weights("killed")
    if one.keys() != other.keys() or any(not torch.equal(one[name], other[name]) for name in one):
        raise _Broken(
            "killed in the middle and resumed, it ends with other weights: count what is done in run.state.done, "
            "together with what it changes"
        )


def _at_its_end_there_is_nothing_left_to_do(rehearsal: _Rehearsal) -> None:
    if "model" not in rehearsal.kind.facts.leaves:
        return
    ended = rehearsal.play("ended")
    again = rehearsal.play("ended", again=ended)
    if again.changes:
        raise _Broken("run once more at its end, it trains again: what is done is to be counted in run.state.done")


_CHECKS: Final = (
    _what_it_plays_is_known_beforehand,
    _it_leaves_what_it_says,
    _begun_again_it_asks_for_the_same,
    _killed_in_the_middle_it_ends_as_if_nothing_had_been,
    _at_its_end_there_is_nothing_left_to_do,
)


# --- the set-up of the checks


def _given(fleet: _Fleet) -> list[Group]:
    requests = [
        GroupRequest.model_validate(
            {
                "run_id": "rehearsal",
                "group_id": f"{_GIVEN}.t{number:06d}",
                "task": {"env": "rehearsal", "split": "train", "task_index": number // 2},
                "num_samples": 2,
                "purpose": "collect",
            }
        )
        for number in range(8)
    ]
    return [fleet.played(request) for request in requests]


def _emptied(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def _small_model(path: Path) -> None:
    disable_progress_bar()
    tokenizer = build_tokenizer(("a word", "a reply"), _TOKENIZER)
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    config = Starcoder2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    Starcoder2ForCausalLM(config).save_pretrained(path)
