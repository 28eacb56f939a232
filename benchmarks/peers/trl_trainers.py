"""SFT and DPO by TRL on given tokens, for `bench_trl`: `python trl_trainers.py JOB`, in TRL's environment.

The job is a JSON file; the last line of output is JSON with the loss and the seconds of each update.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer


class GivenPairs(DPOTrainer):
    """A DPO trainer for pairs that are already tokens."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


class Clock(TrainerCallback):
    """Times each update."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the seconds of the update."""
        self.seconds.append(time.perf_counter() - self.started)


def main() -> None:
    """Train."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    common: dict[str, Any] = {
        "output_dir": job["directory"], "per_device_train_batch_size": job["microbatch"],
        "gradient_accumulation_steps": job["per_update"] // job["microbatch"], "num_train_epochs": 1,
        "learning_rate": job["learning_rate"], "lr_scheduler_type": "constant", "warmup_steps": 0,
        "max_grad_norm": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_epsilon": 1e-8, "weight_decay": 0.0,
        "max_length": None, "gradient_checkpointing": False, "bf16": False, "use_cpu": True, "logging_steps": 1,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "train_sampling_strategy": "sequential",
    }  # fmt: skip
    if job["kind"] == "dpo":
        trainer, config = GivenPairs, DPOConfig(beta=0.1, **common)
    else:
        trainer = SFTTrainer
        config = SFTConfig(padding_free=job["packed"], dataset_kwargs={"skip_prepare_dataset": True}, **common)
    clock = Clock()
    running = trainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        train_dataset=Dataset.from_list(job["rows"]),
        args=config,
        callbacks=[clock],
    )
    running.train()
    losses = [line["loss"] for line in running.state.log_history if "loss" in line]
    print(json.dumps({"losses": losses, "seconds": clock.seconds}))


if __name__ == "__main__":
    main()
