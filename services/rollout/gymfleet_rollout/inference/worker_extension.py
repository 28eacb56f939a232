"""An extension of vLLM's worker that loads a policy's weights in place.

The embedded engine names it itself; a vLLM server is started with
`--worker-extension-cls gymfleet_rollout.inference.worker_extension.PolicyLoader`.
"""

import logging
from pathlib import Path
from typing import Any

from gymfleet_contracts.weights import WeightsOnGpu
from gymfleet_kit.shared_weights import is_shared

from gymfleet_rollout.inference.base import WeightsRejected
from gymfleet_rollout.inference.gpu_weights import synchronise, tensors_on_gpu
from gymfleet_rollout.inference.manifest import require_intact

_RELOADING = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")


class _WithoutRotaryTables(logging.Filter):
    """Drop the message with each version that rotary embedding tables "failed to load": they are computed."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "RotaryEmbedding: Failed to load weights" not in record.getMessage()


_UNFOUNDED = _WithoutRotaryTables()


class PolicyLoader:
    """A mixin of vLLM's worker class, whose `model_runner` it uses."""

    model_runner: Any

    def load_policy(self, weights_path: str, on_gpu: str = "") -> dict[str, int | str]:
        """Load Hugging Face safetensors from a directory, overwriting the weights in place.

        With `on_gpu`, a `WeightsOnGpu` as JSON, their bytes come from there. Returns `{"refused": why}`, with the
        weights unchanged, if the new ones do not match their manifest: a vLLM server does not pass on the message of a
        worker's exception.

        With tied embeddings vLLM reloads the embedding but keeps the output head's old
        packed copy, which gives wrong logits and no error. So every head is packed again. The CPU build packs experts
        only when their kernel is made, with the same effect, so the kernel is made anew.
        """
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (  # noqa: PLC0415 - as below
            UnquantizedFusedMoEMethod,
        )
        from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: PLC0415 - exists in the worker alone
            ParallelLMHead,
            UnquantizedEmbeddingMethod,
        )
        from vllm.platforms import current_platform  # noqa: PLC0415 - as above

        if is_shared(Path(weights_path)) and not Path(weights_path).is_dir():
            return {"refused": f"{weights_path} is not in the shared memory that the engine sees"}
        tensors = None
        try:
            if on_gpu:
                tensors = tensors_on_gpu(Path(weights_path), WeightsOnGpu.model_validate_json(on_gpu))
            else:
                require_intact(Path(weights_path))
        except WeightsRejected as error:
            return {"refused": str(error)}
        _RELOADING.addFilter(_UNFOUNDED)  # adding it again changes nothing
        modules = list(self.model_runner.get_model().modules())
        for method in (getattr(module, "quant_method", None) for module in modules):
            if isinstance(method, UnquantizedFusedMoEMethod) and current_platform.is_cpu():
                method.moe_kernel = None
        if tensors is None:
            self.model_runner.reload_weights(weights_path=weights_path)
        else:
            self.model_runner.reload_weights(weights_iterator=tensors)
            synchronise()
        num_heads = 0
        for module in modules:
            if isinstance(module, ParallelLMHead) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
                module.quant_method.process_weights_after_loading(module)
                num_heads += 1
        return {"num_heads": num_heads}

    def describe_policy(self) -> dict[str, str | int]:
        """Describe this engine; a call succeeds only if the extension was loaded."""
        config, lora = self.model_runner.model_config, self.model_runner.lora_config
        return {
            "model": str(config.model),
            "dtype": str(config.dtype).removeprefix("torch."),
            "max_lora_rank": 0 if lora is None else int(lora.max_lora_rank),
        }
