"""The check that an engine computes the same as the trainer: the probe's prompts, with log-probabilities compared."""

from collections.abc import Mapping
from typing import Final, Protocol

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import StagedVersion, StageVersion
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.errors import PublishRefused
from gymfleet_trainer.publish.probe import Parity, Prompts, answers, compare, random_prompts, real_prompts
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread

_MAX_PROMPT_TOKENS: Final = 512


class ProbedModel(Protocol):
    """The part of the model that the comparison needs. All methods block and are called in the torch thread."""

    @property
    def vocab_size(self) -> int:
        """Return the size of the vocabulary; every token id is smaller."""

    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities, at temperature 1, of each sample's tokens after its prompt."""


class ParityCheck:
    """Compare engines' samples for the probe with the trainer's log-probabilities of them."""

    def __init__(self, model: ProbedModel, worker: TorchThread, recipe: Recipe) -> None:
        self._model = model
        self._worker = worker
        self._recipe = recipe

    def adopt_prompts(self, state: RunState, trajectories: list[ScoredTrajectory]) -> None:
        """Take the probe's prompts from real episodes, once per run."""
        if state.probe_is_real:
            return
        prompts = real_prompts(
            trajectories, self._recipe.publish.probe_prompts, self._prompt_limit(), self._recipe.seed
        )
        if prompts:
            state.probe, state.probe_is_real = prompts, True

    def prompts(self, state: RunState) -> Prompts:
        """Return the run's prompts; random ones until there are prompts from real episodes."""
        if not state.probe:
            count = self._recipe.publish.probe_prompts
            state.probe = random_prompts(self._model.vocab_size, count, self._prompt_limit(), self._recipe.seed)
        return state.probe

    def _prompt_limit(self) -> int:
        room = self._recipe.inference.max_model_len - self._recipe.publish.probe_max_tokens - 1
        return max(1, min(_MAX_PROMPT_TOKENS, room))

    async def compare(self, body: StageVersion, staged: Mapping[str, StagedVersion]) -> tuple[Parity, str]:
        """Return the worst parity of all engines, and the name of that engine."""
        prompts = [list(prompt) for prompt in body.probe_prompts]
        worst, whose = Parity(0.0, 0.0, 0), ""
        for url, answer in staged.items():
            for replica in answer.engines:
                name = f"{url} ({replica.engine})"
                found = answers(replica, len(prompts))
                if found is None:
                    raise PublishRefused(f"replica {name} did not answer every prompt of the probe")
                samples, logprobs = found
                ours = await self._worker.run(self._model.sampled_logprobs, prompts, samples)
                parity = compare(ours, logprobs)
                if not whose or parity.worse(worst) is parity:
                    worst, whose = parity, name
        return worst, whose
