"""vLLM's engine core, called directly: build, add, step, abort and load.

`LLMEngine` builds the configuration and the core. Requests go to the core
itself, because the engine's front half (detokeniser, text outputs, a dictionary
per log-probability) costs more per token than a small model's forward pass.
"""

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.weights import WeightsOnGpu
from gymfleet_kit.chat.image_reader import PlacedImage, sees_images

from gymfleet_rollout.inference.base import EngineConfig, GenerationRequest
from gymfleet_rollout.inference.manifest import require_loaded

_GIB: Final = 1024**3
_SLEEP_LEVEL: Final = 1
"""Weights are kept in main memory and not only on disk: docs/adr/0067 explains why."""
_EXTENSION: Final = "gymfleet_rollout.inference.worker_extension.PolicyLoader"
_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM can be started for; adapters of lower ranks are padded."""


class StepOutput(NamedTuple):
    """What one forward pass gave for one request."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    ended: str | None
    """Why the request ended, in vLLM's words."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were in the prefix cache; told with the first token, and 0 with the others."""


class Core(Protocol):
    """The core that the engine's thread drives. It is not thread-safe."""

    def add(self, request: GenerationRequest) -> str:
        """Queue a request and return its id."""

    def step(self) -> list[StepOutput]:
        """Run one forward pass; return what it gave to each request that has new tokens or ended."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests, which then give no further output."""

    def load(self, weights_path: Path, on_gpu: WeightsOnGpu | None = None) -> None:
        """Replace the weights by those of the directory, or by its bytes on a GPU, and drop every cached block."""

    def sleep(self) -> None:
        """Free the memory of weights and cached blocks. Call it without requests."""

    def wake(self) -> None:
        """Take the memory back, with the same weights in it. Do nothing if awake."""

    def close(self) -> None:
        """Free the engine's resources."""


def prepare_environment(config: EngineConfig) -> None:
    """Set environment variables that torch and vLLM read on import. Values that are already set take precedence.

    There is no second process and no core binding (the default pins every engine
    thread to one core), and log lines go through the standard library's root logger.
    Eager execution would still compile one helper of the sampler, which costs the
    first request seconds and needs a C++ compiler, so that is turned off as well.
    """
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(config.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if config.enforce_eager:
        defaults["TORCHDYNAMO_DISABLE"] = "1"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def build_core(config: EngineConfig) -> "VllmCore":
    """Start vLLM in the calling thread, which must then be the one that uses it."""
    prepare_environment(config)
    import torch  # noqa: PLC0415 - after the environment
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415 - after the environment
    from vllm.platforms import current_platform  # noqa: PLC0415 - after the environment
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415 - after the environment

    sees = sees_images(config.model)
    torch.set_num_threads(config.threads)
    # vLLM's attention in bfloat16 uses a processor's tile registers (AMX), and dies of an illegal instruction if
    # nothing has asked Linux for them before. On other processors and devices this does nothing.
    torch.cpu._init_amx()  # noqa: SLF001 - has no public name
    arguments = EngineArgs(
        model=str(config.model),
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        kv_cache_memory_bytes=int(config.kv_cache_gib * _GIB),
        enforce_eager=config.enforce_eager,
        # The CPU build refuses the option. It accepts the calls, but frees nothing.
        enable_sleep_mode=config.sleep_mode and current_platform.is_sleep_mode_available(),
        block_size=config.block_size,
        seed=config.seed,
        enable_prefix_caching=True,
        skip_tokenizer_init=not sees,  # what reads images is made with one, although nothing is asked of it
        mm_device_do_normalize=False,  # patches are the trainer's, which are normalised
        # Not Mistral's own form, even if the directory has both: versions are published in this form.
        config_format="hf",
        load_format="safetensors",
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        distributed_executor_backend="uni",
        worker_extension_cls=_EXTENSION,
        disable_log_stats=True,
        use_tqdm_on_load=False,  # it would print a progress bar for each policy version
        **adapter_arguments(config),
    )
    engine = LLMEngine.from_engine_args(arguments)
    return VllmCore(engine, base=config.model)


def adapter_arguments(config: EngineConfig) -> dict[str, Any]:
    """Return the arguments with which vLLM can load adapters, if there will be any."""
    if not config.max_lora_rank:
        return {}
    rank = next(rank for rank in _LORA_RANKS if rank >= config.max_lora_rank)
    return {"enable_lora": True, "max_lora_rank": rank, "max_loras": config.max_loras}


@lru_cache(maxsize=4096)
def _seedless_params(temperature: float, top_p: float, top_k: int, max_tokens: int, stop: tuple[int, ...]) -> Any:
    return _params(Sampling(temperature=temperature, top_p=top_p, top_k=top_k), max_tokens, stop)


def _params(sampling: Sampling, max_tokens: int, stop: tuple[int, ...]) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415 - heavy

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        seed=sampling.seed,
        max_tokens=max_tokens,
        stop_token_ids=list(stop),
        ignore_eos=True,  # only the stop tokens above end a reply
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def features_of(images: Sequence[PlacedImage], cache_salt: str) -> list[Any]:
    """Return images as vLLM's own front half passes them to its core, with our patches in place of its own.

    Embeddings of images are cached by name, and other weights have other embeddings: a name belongs to one
    `cache_salt`.
    """
    if not images:
        return []
    import torch  # noqa: PLC0415 - after the environment
    from vllm.multimodal.inputs import (  # noqa: PLC0415 - heavy
        MultiModalFeatureSpec,
        MultiModalFieldConfig,
        MultiModalKwargsItems,
        PlaceholderRange,
    )

    found = []
    for placed in images:
        image = placed.image
        data = {
            "pixel_values": torch.from_numpy(image.patches),
            "image_grid_thw": torch.tensor([[1, *image.grid]]),
        }
        fields = {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([len(image.patches)])),
            "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }
        (item,) = MultiModalKwargsItems.from_hf_inputs(data, fields)["image"]
        found.append(
            MultiModalFeatureSpec(
                data=item,
                modality="image",
                identifier=f"{cache_salt}/{image.sha256}",
                mm_position=PlaceholderRange(offset=placed.start, length=image.num_tokens),
            )
        )
    return found


class VllmCore:
    """The running engine."""

    def __init__(self, engine: Any, *, base: Path) -> None:
        from vllm.v1.engine import EngineCoreRequest  # noqa: PLC0415 - heavy

        self._engine = engine
        self._base = base
        self._adapter: Any = None
        """vLLM's name for the adapter of new requests."""
        self._before: Any = None
        self._num_adapters = 0
        self._core = engine.engine_core
        self._request_type = EngineCoreRequest
        self._ids = count()

    def add(self, request: GenerationRequest) -> str:
        """See `Core.add`."""
        sampling, max_tokens, stop = request.sampling, request.max_tokens, request.stop_token_ids
        if sampling.seed is None:
            params = _seedless_params(sampling.temperature, sampling.top_p, sampling.top_k, max_tokens, stop)
        else:
            params = _params(sampling, max_tokens, stop)
        request_id = str(next(self._ids))
        self._core.add_request(
            self._request_type(
                request_id=request_id,
                prompt_token_ids=list(request.prompt_token_ids),
                mm_features=features_of(request.images, request.cache_salt) or None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=0.0,
                lora_request=self._adapter,
                cache_salt=request.cache_salt,
                data_parallel_rank=None,
                external_req_id=request_id,
            )
        )
        return request_id

    def step(self) -> list[StepOutput]:
        """See `Core.step`."""
        return [_unpack(output) for output in self._core.get_output().outputs]

    def abort(self, request_ids: Sequence[str]) -> None:
        """See `Core.abort`."""
        if request_ids:
            self._core.abort_requests(list(request_ids))

    def load(self, weights_path: Path, on_gpu: WeightsOnGpu | None = None) -> None:
        """See `Core.load`."""
        if self._engine.vllm_config.lora_config is None:
            where = "" if on_gpu is None else on_gpu.model_dump_json()
            require_loaded(self._engine.collective_rpc("load_policy", args=(str(weights_path), where)))
        else:
            self._load_adapter(weights_path)
        if not self._core.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be reset: a request still holds blocks of it")

    def _load_adapter(self, path: Path) -> None:
        """Let new requests name the adapter in a directory, or none for the model's own; keep the previous one."""
        from vllm.lora.request import LoRARequest  # noqa: PLC0415 - heavy

        loaded = None
        if path != self._base:
            self._num_adapters += 1
            loaded = LoRARequest(f"{path.name}.{self._num_adapters}", self._num_adapters, str(path))
            self._engine.add_lora(loaded)
        if self._before is not None:
            self._engine.remove_lora(self._before.lora_int_id)
        self._before, self._adapter = self._adapter, loaded

    def sleep(self) -> None:
        """See `Core.sleep`."""
        self._engine.sleep(level=_SLEEP_LEVEL)

    def wake(self) -> None:
        """See `Core.wake`."""
        # An older vLLM returns None where this one returns True.
        if self._engine.is_sleeping() and self._engine.wake_up() is False:
            raise RuntimeError("a part of the engine's memory is still asleep")

    def close(self) -> None:
        """Free the weights, the cache and the process group, so that another engine can be built."""
        from vllm.distributed.parallel_state import (  # noqa: PLC0415 - heavy
            destroy_distributed_environment,
            destroy_model_parallel,
        )

        self._core.shutdown()
        destroy_model_parallel()
        destroy_distributed_environment()


def _unpack(output: Any) -> StepOutput:
    reason = None if output.finish_reason is None else str(output.finish_reason)
    logprobs = output.new_logprobs
    values: list[float] = [] if logprobs is None else logprobs.logprobs[:, 0].tolist()
    prefill = output.prefill_stats
    num_cached = 0 if prefill is None else prefill.num_cached_tokens
    return StepOutput(output.request_id, output.new_token_ids, values, reason, num_cached)
