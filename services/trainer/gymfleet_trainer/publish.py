"""Publishing a policy version: write the weights, stage them, compare log-probabilities, then commit or refuse."""

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import StagedVersion, StageVersion
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.checkpoint import Checkpoints
from gymfleet_trainer.errors import PublishRefused
from gymfleet_trainer.probe import Parity, Prompts, answers, compare, random_prompts, real_prompts
from gymfleet_trainer.record import RunDirectory
from gymfleet_trainer.state import RunState
from gymfleet_trainer.versions import PolicyEndpoint, VersionRefused
from gymfleet_trainer.worker import TorchWorker

log = structlog.get_logger()

_KEPT_WEIGHTS: Final = 2
_ATTEMPTS: Final = 2
_DECISION_TIMEOUT_S: Final = 60.0
_MAX_PROMPT_TOKENS: Final = 512


class Publishable(Protocol):
    """What publishing needs of the model. All blocking; called in the torch thread."""

    @property
    def vocab_size(self) -> int:
        """Tokens are below this."""

    def save_weights(self, directory: Path) -> None:
        """Write a Hugging Face directory that the engine can load."""

    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        """Log-probabilities, at temperature 1, of each sample's tokens after its prompt."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One version that went live."""

    version: int
    parity: Parity
    replicas: int
    attempts: int
    seconds: float
    pause_s: float
    update_s: float


class Publisher:
    """Brings the trainer's weights to every replica, and lets none sample from weights it has misread."""

    def __init__(
        self,
        endpoint: PolicyEndpoint,
        model: Publishable,
        worker: TorchWorker,
        directory: RunDirectory,
        checkpoints: Checkpoints,
        recipe: Recipe,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._worker = worker
        self._directory = directory
        self._checkpoints = checkpoints
        self._recipe = recipe

    async def publish(self, state: RunState) -> Publication:
        """Make the model's weights, which are `state.age` changes old, the live version.

        The number is above every version that was ever live, also after a restart.

        Raises:
            PublishRefused: the engine disagreed, or failed, twice.
            Stalled: the rollout service did not answer.
        """
        started = time.monotonic()
        policy = await self._endpoint.policy()
        if policy.staged_version is not None:  # left behind by a trainer that died
            await self._endpoint.refuse(policy.staged_version)
        version = max(policy.live_version, policy.staged_version or 0, state.version) + 1
        path = await self._worker.run(self._write, version)
        # Before it can be sampled from: a crash after the commit must not forget whose weights these are.
        self._checkpoints.note_version(version, state.age)
        state.version, state.ages[version] = version, state.age
        body = StageVersion(
            version=version,
            weights_path=str(path),
            probe_prompts=tuple(tuple(prompt) for prompt in self._prompts(state)),
            probe_max_tokens=self._recipe.publish.probe_max_tokens,
            decision_timeout_s=_DECISION_TIMEOUT_S,
        )
        staged, parity, attempts = await self._until_agreed(body)
        seconds = time.monotonic() - started
        self._note(state, parity, seconds)
        publication = Publication(
            version, parity, len(staged.replicas), attempts, seconds, staged.pause_s, staged.update_s
        )
        self._directory.metric(
            "publish", step=state.step, age=state.age, version=version, parity_mean_abs=parity.mean_abs,
            parity_max_abs=parity.max_abs, parity_tokens=parity.num_tokens, replicas=publication.replicas,
            attempts=attempts, seconds=round(seconds, 4), pause_s=staged.pause_s, update_s=staged.update_s,
        )  # fmt: skip
        log.info("version.published", **asdict(publication))
        return publication

    def adopt_probe(self, state: RunState, trajectories: list[ScoredTrajectory]) -> None:
        """Take the probe's prompts from real episodes, once per run."""
        if state.probe_is_real:
            return
        prompts = real_prompts(
            trajectories, self._recipe.publish.probe_prompts, self._prompt_limit(), self._recipe.seed
        )
        if prompts:
            state.probe, state.probe_is_real = prompts, True

    def _prompts(self, state: RunState) -> Prompts:
        if not state.probe:
            count = self._recipe.publish.probe_prompts
            state.probe = random_prompts(self._model.vocab_size, count, self._prompt_limit(), self._recipe.seed)
        return state.probe

    def _prompt_limit(self) -> int:
        room = self._recipe.inference.max_model_len - self._recipe.publish.probe_max_tokens - 1
        return max(1, min(_MAX_PROMPT_TOKENS, room))

    def _note(self, state: RunState, parity: Parity, seconds: float) -> None:
        state.count("versions_published")
        state.parity_worst = max(state.parity_worst, parity.mean_abs)
        state.spend("publish", seconds)

    async def _until_agreed(self, body: StageVersion) -> tuple[StagedVersion, Parity, int]:
        reason = ""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                staged = await self._endpoint.stage(body)
                parity = await self._compare(body, staged)
                if parity.within(self._recipe.publish.parity_tolerance):
                    await self._endpoint.commit(body.version)
                    return staged, parity, attempt
                reason = (
                    f"mean |difference| in log-probability is {parity.mean_abs:.6g} over {parity.num_tokens} tokens, "
                    f"publish.parity_tolerance allows {self._recipe.publish.parity_tolerance:g}"
                )
            except VersionRefused as refusal:
                reason = f"the rollout service refused: {refusal}"
            await self._endpoint.refuse(body.version)
            log.error("version.refused", version=body.version, attempt=attempt, reason=reason)
            self._directory.metric("publish_refused", version=body.version, attempt=attempt, reason=reason)
        raise PublishRefused(
            f"version {body.version} was refused {_ATTEMPTS} times: {reason}. The engine does not compute what the "
            "trainer computes: compare inference.dtype with trainer_dtype, and the engine's version with the model"
        )

    async def _compare(self, body: StageVersion, staged: StagedVersion) -> Parity:
        prompts = [list(prompt) for prompt in body.probe_prompts]
        worst = Parity(0.0, 0.0, 0)
        for replica in staged.replicas:
            found = answers(replica, len(prompts))
            if found is None:
                raise PublishRefused(f"replica {replica.replica} did not answer every prompt of the probe")
            samples, logprobs = found
            ours = await self._worker.run(self._model.sampled_logprobs, prompts, samples)
            worst = compare(ours, logprobs).worse(worst)
        return worst

    def _write(self, version: int) -> Path:
        """Blocking. Write `weights/vNNNNNN` and drop all but the last two."""
        root = self._directory.weights
        root.mkdir(parents=True, exist_ok=True)
        path = root / f"v{version:06d}"
        temporary = root / f".writing-{version:06d}"
        for leftover in (*root.glob(".writing-*"), path):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        self._model.save_weights(temporary)
        temporary.rename(path)
        for old in sorted(root.glob("v*"))[:-_KEPT_WEIGHTS]:
            shutil.rmtree(old, ignore_errors=True)
        return path
