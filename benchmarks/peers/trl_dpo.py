"""DPO by TRL on tokens that are given, for `bench_preferences`: `python trl_dpo.py JOB`, with TRL's own environment.

The job is a JSON file; what is printed last is a JSON line with the loss and the seconds of each update.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer


class Given(DPOTrainer):
    """Takes pairs that are tokens already, in the order in which they stand."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)


class Clock(TrainerCallback):
    """Times each update."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin."""
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End."""
        self.seconds.append(time.perf_counter() - self.started)


def main() -> None:
    """Train."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    clock = Clock()
    trainer = Given(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        train_dataset=Dataset.from_list(job["pairs"]),
        args=DPOConfig(
            output_dir=job["directory"], per_device_train_batch_size=job["microbatch"],
            gradient_accumulation_steps=job["pairs_per_batch"] // job["microbatch"], num_train_epochs=1,
            learning_rate=job["learning_rate"], lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=1.0,
            adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, weight_decay=0.0, beta=0.1, max_length=None,
            gradient_checkpointing=False, bf16=False, use_cpu=True, logging_steps=1, save_strategy="no",
            report_to=[], disable_tqdm=True,
        ),
        callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    print(json.dumps({"losses": losses, "seconds": clock.seconds}))


if __name__ == "__main__":
    main()
