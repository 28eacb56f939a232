"""The interface of an engine: generate, interrupt and load.

An engine knows nothing about staging, committing or refusing versions: that is
done in `gymfleet_rollout.policy`, in the same way for every backend.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gymfleet_contracts.recipe_sections import EngineSizes
from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.trajectory import VersionSpan
from gymfleet_contracts.weights import WeightsOnGpu
from gymfleet_kit.chat.image_reader import PlacedImage

FinishReason = Literal["stop", "length"]
REPLY_ENDS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}
"""The reasons with which an engine may end a reply. Any other ("abort", "error") is a failure of the engine."""

OnTokens = Callable[[int], None]
_ROUNDING: Final = 1e-3
"""The most by which rounding may lift a log-probability above 0."""


class InferenceError(Exception):
    """A source of tokens failed; the message says which one and how."""


class EngineDied(InferenceError):
    """The engine is gone for good; only a restart of the process brings it back."""


class EngineDown(InferenceError):
    """One engine does not answer, or came back with other weights; it may recover later."""


class WeightsRejected(InferenceError):
    """A directory of weights cannot be loaded; the weights in the engine may be only half replaced."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to an engine. Blocks of the prefix cache are shared only within a `cache_salt`."""

    prompt_token_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    cache_salt: str
    images: Sequence[PlacedImage] = ()
    """The images at the prompt's image tokens, in order."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The result of one engine call. `finish_reason` is None if it was interrupted; the tokens so far are kept."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason | None
    num_cached_tokens: int = 0
    """Tokens of the prompt that the engine took from its prefix cache; 0 if it does not tell."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished reply. It has several versions if new weights went live while it was sampled."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[VersionSpan, ...]
    """Which version sampled which tokens, in order."""
    num_prefilled_tokens: int = 0
    """Tokens that the engine computed before it sampled: prompts, without what was in its prefix cache."""

    def followed_by(self, rest: "Generation") -> "Generation":
        """Return this reply and the tokens sampled after it as one reply."""
        spans = list(self.versions)
        for span in rest.versions:
            if spans and spans[-1].version == span.version:
                spans[-1] = VersionSpan(version=span.version, num_tokens=spans[-1].num_tokens + span.num_tokens)
            else:
                spans.append(span)
        return Generation(
            self.token_ids + rest.token_ids, self.logprobs + rest.logprobs, rest.finish_reason, tuple(spans),
            self.num_prefilled_tokens + rest.num_prefilled_tokens,
        )  # fmt: skip


class EngineConfig(EngineSizes):
    """Everything that an engine may need to know. Sizes have vLLM's own meaning."""

    model: Path
    """The directory with the weights of version 0, and the model's `config.json`."""
    block_size: int = 32
    seed: int = 0
    threads: int = 1
    max_lora_rank: int = 0
    """The highest rank of the adapters that are loaded; with 0 there are none, and versions are whole weights."""
    max_loras: int = 2
    """Adapters that are held at a time."""
    sleep_mode: bool = False
    """The engine will be put to sleep, which some engines must know before they allocate anything."""


class Engine(ABC):
    """One engine, in this process or remote."""

    name: str
    """Its name in messages: that of the replica."""
    num_in_flight: int = 0
    """Number of requests that it has taken and not answered. A call of `generate` counts before it first waits."""
    is_up: bool = True
    """Cleared by the caller after EngineDown, until the weights have been loaded again."""
    max_model_len: int
    """How many tokens of prompt and reply together it can hold; known once it has started."""

    @abstractmethod
    async def start(self) -> None:
        """Start the engine and return once it answers. Raises InferenceError."""

    @abstractmethod
    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """Sample until a stop token (included in the result), `max_tokens`, or an interruption.

        Log-probabilities are those of the sampled tokens after temperature, top-p and top-k.
        `on_tokens` is called, from any thread, with the number of tokens sampled since
        its last call; if the engine cannot tell requests apart, it counts all of them.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """End every request in flight with the tokens it has, and return once none is left in the engine."""

    @abstractmethod
    async def load(self, weights_path: Path) -> None:
        """Replace the weights in place and drop every cached block. Call it with no request in flight.

        With `max_lora_rank` the directory holds an adapter, which is loaded in addition to the previous one, under a
        new name: a name that was used before would find its cached blocks. Requests name the adapter from then on. The
        config's `model` stands for the model without an adapter.

        Raises WeightsRejected, EngineDown or EngineDied.
        """

    async def load_from_gpu(self, weights_path: Path, on_gpu: WeightsOnGpu) -> None:
        """Do as `load`, with the bytes of the directory's buckets from the memory of a GPU.

        An engine that does not override this method cannot do it. The memory is the trainer's, and is not read after
        this returns. Raises as `load`.
        """
        del weights_path, on_gpu
        raise WeightsRejected(
            f'the engine {self.name} reads weights from files alone: publish.transfer = "cuda_ipc" is for vLLM'
        )

    async def sleep(self) -> None:
        """Free the memory of weights and cache until `wake`. Call it with no request in flight.

        An engine that does not override this method cannot sleep.
        Raises EngineDown, EngineDied, or InferenceError if the engine stays awake.
        """
        raise InferenceError(f"the engine {self.name} cannot sleep")

    async def wake(self) -> None:  # noqa: B027 - right as it is for an engine that never sleeps
        """Restore the weights from before `sleep`, with an empty cache. An engine that is awake stays awake.

        Raises EngineDown, EngineDied, or InferenceError if it cannot be used.
        """

    @abstractmethod
    async def check(self) -> None:
        """Raise InferenceError unless the engine can take a request now."""

    @abstractmethod
    async def close(self) -> None:
        """Free the engine; requests in flight fail."""


def require_sound(engine: str, request: GenerationRequest, answer: Continuation, vocab_size: int) -> None:
    """Raise InferenceError for an answer that cannot belong to the request: nothing may be learnt from it."""
    tokens, logprobs = answer.token_ids, answer.logprobs
    if any(type(token) is not int for token in tokens) or any(type(value) is not float for value in logprobs):
        fault = "other things than whole numbers as tokens and floats as log-probabilities"
    elif len(tokens) != len(logprobs):
        fault = f"{len(tokens)} tokens and {len(logprobs)} log-probabilities"
    elif len(tokens) > request.max_tokens:
        fault = f"{len(tokens)} tokens, and at most {request.max_tokens} were asked for"
    elif tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        outside = next(token for token in tokens if not 0 <= token < vocab_size)
        fault = f"the token {outside}, and the vocabulary ends at {vocab_size - 1}"
    elif not math.isfinite(sum(logprobs)) or max(logprobs, default=0.0) > _ROUNDING:
        wrong = next(value for value in logprobs if not (math.isfinite(value) and value <= _ROUNDING))
        fault = f"the log-probability {wrong:g}, and one is finite and at most 0"
    elif answer.finish_reason not in (None, *REPLY_ENDS):
        fault = f"the finish reason {answer.finish_reason!r}; known: {', '.join(REPLY_ENDS)}, or None if interrupted"
    elif answer.finish_reason is not None and not tokens:
        fault = f"the finish reason {answer.finish_reason!r} without a token"
    else:
        return
    raise InferenceError(f"the engine {engine} gave {fault}")
