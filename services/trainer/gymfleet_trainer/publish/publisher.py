"""Publish a policy version: write the weights, stage them, compare log-probabilities, then commit or refuse."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import Policy, StagedVersion, StageVersion
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.errors import PublishRefused
from gymfleet_trainer.metrics import REFUSED
from gymfleet_trainer.publish.parity_check import ParityCheck, ProbedModel
from gymfleet_trainer.publish.policy_endpoint import NoAnswer, VersionRefused
from gymfleet_trainer.publish.probe import Parity
from gymfleet_trainer.publish.published_weights import PublishedWeights
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.publish.tolerance import tolerance
from gymfleet_trainer.publish.transfers.base import Transfer
from gymfleet_trainer.publish.transfers.disk import Disk
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread

log = structlog.get_logger()

_ATTEMPTS: Final = 2
_DECISION_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 30.0
"""How long a replica is left alone after it stopped answering while it was given the newest version."""


class Publishable(ProbedModel, Protocol):
    """The part of the model that publishing needs."""

    def save_weights(self, directory: Path) -> None:
        """Write a Hugging Face directory that the engine can load. Blocks; it is called in the torch thread."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A version that went live."""

    version: int
    parity: Parity
    replicas: int
    attempts: int
    seconds: float
    write_s: float
    """The part of `seconds` in which the weights were written."""
    compare_s: float
    """The part of `seconds` in which the trainer computed and compared its own log-probabilities of the probe."""
    pause_s: float
    update_s: float


class Publisher:
    """Send the trainer's weights to every replica, and let no replica sample from weights that it loaded wrongly."""

    def __init__(
        self,
        fleet: RolloutReplicas,
        model: Publishable,
        worker: TorchThread,
        directory: RunDirectory,
        checkpoints: Checkpoints,
        recipe: Recipe,
        transfer: Transfer | None = None,
    ) -> None:
        self._fleet = fleet
        self._transfer = transfer or Disk(directory.weights)
        self._weights = PublishedWeights(self._transfer.root, model.save_weights, worker)
        self._check = ParityCheck(model, worker, recipe)
        self._recipe = recipe
        self._directory = directory
        self._checkpoints = checkpoints
        self._newest: StageVersion | None = None
        self._refused: set[str] = set()
        """Replicas that gave wrong answers to the newest version's probe."""
        self._not_before: dict[str, float] = {}

    async def publish(self, state: RunState) -> Publication:
        """Make the model's weights, which are `state.age` changes old, the live version.

        The version goes to the replicas that have the previous one, or to all if none has. The others get it
        separately, from `bring_up`, so that they cannot delay it. Its number is above every version ever live.

        Raises:
            PublishRefused: twice, the engine's log-probabilities differed or it failed.
            Stalled: the rollout service did not answer.
        """
        started = time.monotonic()
        present = await self._fleet.present()
        await self._take_back(present)
        replicas = _current(present, state) or list(present)
        version = await self._next_version(present, state)
        writing = time.monotonic()
        path = await self._weights.write(version)
        write_s = time.monotonic() - writing
        # Record the version before it can be sampled from: after a crash past the commit, its weights must be known.
        self._checkpoints.note_version(version, state.age)
        state.version, state.ages[version] = version, state.age
        body = StageVersion(
            version=version,
            weights_path=str(path),
            probe_prompts=tuple(tuple(prompt) for prompt in self._check.prompts(state)),
            probe_max_tokens=self._recipe.publish.probe_max_tokens,
            decision_timeout_s=_DECISION_TIMEOUT_S,
        )
        staged, parity, attempts, compare_s = await self._until_agreed(state, body, replicas)
        self._newest = body
        self._fleet.count(present, len(present) - len(replicas))
        self._refused.clear()
        seconds = time.monotonic() - started
        self._note(state, parity, seconds)
        engines = sum(len(one.engines) for one in staged)
        pause_s, update_s = max(one.pause_s for one in staged), max(one.update_s for one in staged)
        publication = Publication(version, parity, engines, attempts, seconds, write_s, compare_s, pause_s, update_s)
        self._directory.metric(
            "publish", step=state.step, age=state.age, version=version, parity_mean_abs=parity.mean_abs,
            parity_max_abs=parity.max_abs, parity_tokens=parity.num_tokens, replicas=publication.replicas,
            attempts=attempts, seconds=round(seconds, 4), write_s=round(write_s, 4), compare_s=round(compare_s, 4),
            pause_s=pause_s, update_s=update_s,
        )  # fmt: skip
        log.info("version.published", **asdict(publication))
        return publication

    def adopt_probe(self, state: RunState, trajectories: list[ScoredTrajectory]) -> None:
        """Take the probe's prompts from real episodes, once per run."""
        self._check.adopt_prompts(state, trajectories)

    def _note(self, state: RunState, parity: Parity, seconds: float) -> None:
        state.count("versions_published")
        state.parity_worst = max(state.parity_worst, parity.mean_abs)
        state.spend("publish", seconds)

    async def bring_up(self, state: RunState, present: Mapping[str, Policy]) -> bool:
        """Give the newest version to replicas that have another: those that were started, restarted or unreachable.

        They get it one at a time while the other replicas keep sampling. Returns whether any of them got it.

        Raises:
            PublishRefused: no replica that is present agrees with the trainer.
        """
        behind = {url: policy for url, policy in present.items() if policy.live_version != state.version}
        self._fleet.count(present, len(behind))
        due = {url: policy for url, policy in behind.items() if self._is_due(url)}
        if not due or self._newest is None:
            return False
        log.warning("version.lost", expected=state.version, live={url: p.live_version for url, p in due.items()})
        if any(policy.live_version > state.version for policy in due.values()):
            await self.publish(state)  # only a higher number can replace the version that is live there
            return True
        brought = [url for url, policy in due.items() if await self._bring_up(state, url, self._newest, policy)]
        self._fleet.count(present, len(behind) - len(brought))
        if not brought and self._refused >= present.keys():
            raise PublishRefused(self._refusal(self._newest, "no replica agrees with the trainer"))
        return bool(brought)

    def _is_due(self, url: str) -> bool:
        return url not in self._refused and time.monotonic() >= self._not_before.get(url, 0.0)

    async def _bring_up(self, state: RunState, url: str, body: StageVersion, policy: Policy) -> bool:
        try:
            await self._take_back({url: policy})
            await self._until_agreed(state, body, [url], alone=True)
        except PublishRefused as error:
            self._refused.add(url)
            log.error("replica.refused", replica=url, version=body.version, reason=str(error))
        except NoAnswer as error:
            self._not_before[url] = time.monotonic() + _RETRY_S
            log.warning("replica.left_out", replica=url, version=body.version, reason=str(error))
        else:
            log.info("replica.caught_up", replica=url, version=body.version)
            return True
        return False

    async def _take_back(self, present: Mapping[str, Policy]) -> None:
        """Refuse versions that a trainer left staged when it died."""
        for url, policy in present.items():
            if policy.staged_version is not None:
                await self._fleet.refuse(policy.staged_version, [url])

    async def _next_version(self, present: Mapping[str, Policy], state: RunState) -> int:
        known = [max(policy.live_version, policy.staged_version or 0) for policy in present.values()]
        version = max(*known, state.version, await self._fleet.ownership.highest()) + 1
        await self._fleet.ownership.take(version)
        return version

    async def _until_agreed(
        self, state: RunState, body: StageVersion, replicas: Iterable[str], *, alone: bool = False
    ) -> tuple[list[StagedVersion], Parity, int, float]:
        """Stage, compare and commit, with one retry after a failure. With `alone`, raise NoAnswer without waiting.

        Returns the answers, their parity, the number of tries, and the seconds that the last comparison took.
        """
        reason = ""
        replicas, allowed = list(replicas), tolerance(self._recipe, state)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                staged = await self._fleet.stage(body, replicas, alone=alone, offer=self._transfer.offer)
                comparing = time.monotonic()
                parity, replica = await self._check.compare(body, staged)
                compare_s = time.monotonic() - comparing
                if parity.within(allowed):
                    await self._fleet.commit(body.version, staged)
                    return list(staged.values()), parity, attempt, compare_s
                reason = (
                    f"mean |difference| in log-probability is {parity.mean_abs:.6g} over {parity.num_tokens} tokens "
                    f"at {replica}, publish.parity_tolerance allows {allowed:g}"
                )
            except VersionRefused as refusal:
                reason = f"the rollout service refused: {refusal}"
            await self._fleet.refuse(body.version, replicas)
            REFUSED.inc()
            log.error("version.refused", version=body.version, attempt=attempt, reason=reason)
            self._directory.metric("publish_refused", version=body.version, attempt=attempt, reason=reason)
        raise PublishRefused(self._refusal(body, reason))

    def _refusal(self, body: StageVersion, reason: str) -> str:
        return (
            f"version {body.version} was refused {_ATTEMPTS} times: {reason}. The engine does not compute what the "
            "trainer computes: compare inference.dtype with trainer_dtype, and the engine's version with the model"
        )


def _current(present: Mapping[str, Policy], state: RunState) -> list[str]:
    """Return the replicas that have the latest version; none before the first."""
    return [url for url, policy in present.items() if 0 < state.version == policy.live_version]
