"""The learner spread over several workers: the run's part of it, and the workers' part."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import ray
import ray.train.torch
import structlog
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.logs import configure_logs

from gymfleet_trainer.distributed.call_broker import Answer, Call
from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.row_files import WriteFailed
from gymfleet_trainer.errors import Stalled, WorkersFailed, is_disk_full, system_error
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.protocol import Training
from gymfleet_trainer.model.batching import TrainSequence, sequences_from_trajectory
from gymfleet_trainer.publish.probe import Parity
from gymfleet_trainer.run.groups import Group

CREATE = "create"
"""The first call of a group: it has the arguments of `LocalLearner` and returns the vocabulary size."""

log = structlog.get_logger()


class RemoteLearner:
    """Have all workers make every call at once, each with its own part of the model.

    Raises:
        WorkersLost: raised by any call when the workers died. A new learner starts from a checkpoint.
        WorkersFailed: the workers died, and there will be no others.
    """

    def __init__(self, broker: Any, group: int, recipe: Recipe, source: str, references: Path) -> None:
        """Create the learner on the workers of `group`; blocks until its weights are loaded."""
        self._broker = broker
        self._group = group
        self._vocab_size: int = self._call(CREATE, recipe, source, references)

    @property
    def vocab_size(self) -> int:
        """See `Learner`."""
        return self._vocab_size

    def start_from(self, model: Path | None) -> None:
        """See `Learner`. The directory must be visible to the workers too."""
        self._call("start_from", model)

    def begin(self, stage: str, training: Training, previous: Path | None = None) -> None:
        """See `Learner`. The directory must be visible to the workers too."""
        self._call("begin", stage, training, previous)

    def end(self) -> None:
        """See `Learner`."""
        self._call("end")

    def release_memory(self) -> None:
        """See `Learner`."""
        self._call("release_memory")

    def sequences(
        self, trajectories: Sequence[ScoredTrajectory], roles: Sequence[str] | None = None
    ) -> list[TrainSequence]:
        """See `Learner`."""
        return [row for scored in trajectories for row in sequences_from_trajectory(scored, roles=roles)]

    def sft_epoch(self, sequences: list[TrainSequence], epoch: int) -> dict[str, Any]:
        """See `Learner`."""
        metrics: dict[str, Any] = self._call("sft_epoch", sequences, epoch)
        return metrics

    def update(self, groups: Sequence[Group], staleness: Callable[[int], int | None]) -> dict[str, Any]:
        """See `Learner`."""
        versions = {scored.trajectory.policy.version_min for group in groups for scored in group.trajectories}
        metrics: dict[str, Any] = self._call("update", groups, {v: staleness(v) for v in versions}.get)
        return metrics

    def miss_update(self) -> None:
        """See `Learner`."""
        self._call("miss_update")

    def reward_epoch(self, rows: list[TrainSequence], epoch: int) -> dict[str, Any]:
        """See `Learner`."""
        metrics: dict[str, Any] = self._call("reward_epoch", rows, epoch)
        return metrics

    def reward_numbers(self, rows: list[TrainSequence]) -> list[list[float]]:
        """See `Learner`."""
        numbers: list[list[float]] = self._call("reward_numbers", rows)
        return numbers

    def save_reward_model(self, directory: Path) -> None:
        """See `Learner`. The directory must be visible to the workers too."""
        self._call("save_reward_model", directory)

    def update_rows(self, rows: list[TrainSequence]) -> dict[str, Any]:
        """See `Learner`."""
        metrics: dict[str, Any] = self._call("update_rows", rows)
        return metrics

    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        """See `Learner`."""
        rows: list[list[float]] = self._call("sampled_logprobs", prompts, samples)
        return rows

    def batch_parity(self, trajectories: Sequence[ScoredTrajectory], version: int) -> Parity | None:
        """See `Learner`."""
        parity: Parity | None = self._call("batch_parity", trajectories, version)
        return parity

    def save_weights(self, directory: Path) -> None:
        """See `Learner`. The directory must be visible to the workers too."""
        self._call("save_weights", directory)

    def save_model(self, directory: Path) -> None:
        """See `Learner`."""
        self._call("save_model", directory)

    def save_checkpoint(self, directory: Path) -> None:
        """See `Learner`."""
        self._call("save_checkpoint", directory)

    def begin_checkpoint(self, directory: Path) -> None:
        """See `Learner`."""
        self._call("begin_checkpoint", directory)

    def finish_checkpoint(self) -> float:
        """See `Learner`. The seconds are those of the first rank."""
        seconds: float = self._call("finish_checkpoint")
        return seconds

    @property
    def finishes_apart(self) -> bool:
        """See `Learner`. The ranks make each call together, one after the other."""
        return False

    @property
    def waited_s(self) -> float:
        """See `Learner`. What is begun before an update has been finished before it."""
        return 0.0

    def load_checkpoint(self, directory: Path) -> None:
        """See `Learner`."""
        self._call("load_checkpoint", directory)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            answer: Answer = ray.get(self._broker.call.remote(self._group, method, [ray.put(arguments)]))
        except ray.exceptions.RayError as error:
            raise WorkersFailed(f"Ray ended: {error}; run the same command again") from None
        if answer.error is not None:
            raise answer.error
        return answer.value


def next_group(broker: Any, after: int, workers: int, timeout_s: float) -> int:
    """Wait until a group later than `after` has started, and return its number.

    Raises:
        Stalled: no group started in time.
        WorkersFailed: there will be no such group.
    """
    try:
        group: int = ray.get(broker.group.remote(after), timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise Stalled(
            f"after {timeout_s:g} s: {workers} workers (trainer.workers) have not started; give Ray as many CPUs or "
            "GPUs, or lower it, and run the same command again"
        ) from None
    except ray.exceptions.RayError as error:
        raise WorkersFailed(f"Ray ended: {error}; run the same command again") from None
    return group


class WorkerConfig(TypedDict):
    """The configuration that a worker gets at its start."""

    broker: Any
    threads: int
    log_level: str
    log_json: bool


def serve(config: dict[str, Any]) -> None:
    """Run the loop of one worker under Ray Train: make the calls, the same on all ranks, until there are no more.

    `config` is a `WorkerConfig`, which Ray passes as a plain dict.
    """
    configure_logs("trainer", level=config["log_level"], json=config["log_json"])
    torch.set_num_threads(config["threads"])
    device = ray.train.torch.get_device()
    if isinstance(device, torch.device) and device.type == "cuda":
        torch.cuda.set_device(device)
    ranks, broker = Ranks(), config["broker"]
    group = ranks.agree(ray.get(broker.join.remote(ranks.width)) if ranks.first else 0)
    log.info("worker.started", rank=ranks.rank, workers=ranks.width, group=group, device=str(device), pid=os.getpid())
    learner: LocalLearner | None = None
    number = 0
    while (call := ray.get(broker.take.remote(group, number))) is not None:
        number = call.number + 1
        if call.method == CREATE:
            recipe, source, references = ray.get(call.arguments[0])
            learner = LocalLearner(recipe, source, references, ranks)
            answer = Answer(learner.vocab_size)
        else:
            answer = _made(learner, call, ranks)
        ray.get(broker.answer.remote(call.number, answer if ranks.first else None))


def _made(learner: LocalLearner | None, call: Call, ranks: Ranks) -> Answer:
    """Make a call. Any error but a failed write, on all ranks or the first, ends this worker and with it the group."""
    try:
        return Answer(getattr(learner, call.method)(*ray.get(call.arguments[0])))
    except Exception as error:
        written = system_error(error)
        if isinstance(error, WriteFailed) or (ranks.first and (written is not None or is_disk_full(error))):
            return Answer(error=written or OSError(str(error)))
        raise
