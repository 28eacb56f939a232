"""The costs of publishing and keeping a model of half a billion parameters: bytes, seconds per step, memory.

`gymfleet train` takes a few steps with a random model, and as many with adapters on it, computed in bfloat16, with an
engine that uses no processor time (`random_engine`). Seconds come from the trainer's own records: a step waits for the
version to be published, and for the last step's checkpoint if it is still being written when the update changes the
weights. The figure is the median over the steps, as the first checkpoints go to parts of a disk that may never have
been written and be slow there; the longest wait stands beside it. Steps that changed nothing, because all of their
episodes were rewarded alike, do not count. The probe's passes are kept short; on a GPU they take no noticeable time.
Memory is the peak of the trainer's process, compared with the output of `gymfleet plan` for the same recipe.
"""

import argparse
import contextlib
import json
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from gymfleet_contracts.recipe import MODEL_INIT, load_recipe
from gymfleet_contracts.weights import MANIFEST, WeightsManifest
from gymfleet_trainer.learning.learner import MODEL, LocalLearner
from gymfleet_trainer.model.adapters import ADAPTER, ADAPTER_WEIGHTS
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from benchmarks.bench_stack import ROOT, training
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.gpu_memory import said
from benchmarks.record import Row, record
from benchmarks.stacks import Kind, LocalFleet

SIZES: Final = {
    "hidden": Size(1024, smoke=256, help="width of the model, a multiple of 128"),
    "layers": Size(31, smoke=2),
    "steps": Size(8, smoke=3, help="at least 2: no step waits for the last checkpoint"),
}
RUNS: Final = ROOT / "runs" / "bench-publish"
LIMIT_S: Final = 3600.0
POLL_S: Final = 0.2
BLOCKED_S: Final = 2.0
ADAPTER_S: Final = 0.1
MERGED: Final = 1e-4
OFF_BY: Final = 0.1
WEIGHTS: Final = "model.safetensors"
_PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_LORA: Final = "lora = { rank = 16, alpha = 32.0 }"
_RECIPE: Final = """
name = "publish"
trainer_dtype = "DTYPE"
[[environments]]
name = "maze"
[model]
MODEL
[inference]
backend = "BACKEND"
dtype = "DTYPE"
max_model_len = 1024
[rollout.limits]
max_turns = 1
max_response_tokens = 8
max_context_tokens = CONTEXT
[reward.length]
weight = -0.1
min_tokens = 0
max_tokens = 4
[publish]
parity_tolerance = 20.0
probe_prompts = 1
probe_max_tokens = 2
[[stages]]
kind = "reinforce"
steps = STEPS
groups_per_step = 1
group_size = 4
tokens_per_microbatch = BATCH
optimizer = { learning_rate = 1e-3 }
"""


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    path: Path
    plan: Mapping[str, int]
    """See `planned`."""
    peak_bytes: int
    lines: list[dict[str, Any]]
    """The lines of its metrics."""

    def of_steps(self, kind: str, key: str) -> float:
        """Return the median over the steps that changed the weights."""
        found = self._by_step(kind, key)
        return median(found[step] for step in self._changed)

    def _by_step(self, kind: str, key: str) -> dict[int, float]:
        return {line["step"]: float(line[key]) for line in self.lines if line["kind"] == kind}

    @property
    def _changed(self) -> list[int]:
        return [step for step, count in self._by_step("rl_step", "num_updates").items() if count]

    @property
    def checkpoint_s(self) -> list[float]:
        """Seconds that each step waited for the checkpoint before it."""
        found = self._by_step("checkpoint", "blocked_s")
        return [found[step - 1] for step in self._changed if step > 1]

    @property
    def last_checkpoint_s(self) -> float:
        """Seconds that the stage waits for its last checkpoint, after its last step."""
        found = self._by_step("checkpoint", "blocked_s")
        return found[max(found)]

    @property
    def blocked_s(self) -> list[float]:
        """Seconds that each step waited for the version and the checkpoint before it."""
        published = self._by_step("publish", "seconds")
        steps = [step for step in self._changed if step > 1]
        return [published[step - 1] + kept_s for step, kept_s in zip(steps, self.checkpoint_s, strict=True)]

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint."""
        return self.path / "checkpoints" / (self.path / "checkpoints" / "latest").read_text(encoding="utf-8").strip()


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    with emptied(RUNS):
        rows = measure(options)
    record("publish", rows, options)


@contextlib.contextmanager
def emptied(directory: Path) -> Iterator[None]:
    """Make an empty directory, and remove it afterwards: a run of the full size leaves 20 GB."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(options: argparse.Namespace) -> list[Row]:
    """Carry out both runs, and return their figures."""
    heads = options.hidden // 64
    scratch = (
        f"scratch = {{ hidden_size = {options.hidden}, intermediate_size = {4 * options.hidden}, num_layers = "
        f"{options.layers}, num_heads = {heads}, num_kv_heads = {heads // 2}, head_dim = 64, corpus_episodes = 20 }}"
    )
    whole = trained("whole", scratch, options.steps)
    rows = [*of_versions(whole), *of_seconds(whole), *of_memory("all weights", whole)]
    base = whole.path / MODEL_INIT
    adapted = trained("adapters", f'path = "{base}"\n{_LORA}', options.steps)
    return [*rows, *of_adapters(adapted, base)]


def trained(name: str, model: str, steps: int) -> Trained:
    """Carry out a run, and watch its trainer's memory."""
    recipe, run = written(name, model, steps), RUNS / name
    peak, fleet, deadline = 0, LocalFleet(run, "maze"), time.monotonic() + LIMIT_S
    with training(Path(recipe), run, ()) as process:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run in {run} does not end within {LIMIT_S:g} s")
            if (trainer := fleet.service(Kind.TRAINER)) is not None:
                peak = max(peak, peak_of(trainer.pid))
            time.sleep(POLL_S)
    if process.returncode != 0:
        raise RuntimeError(run.with_suffix(".log").read_text(encoding="utf-8")[-3000:])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    # A plan assumes rows of the longest context; this one is for the tokens that the rows actually have.
    computed = max(line["num_tokens"] - line["num_shared_tokens"] for line in lines if line["kind"] == "rl_step")
    return Trained(run, planned(written(f"{name}-planned", model, steps, tokens=computed)), peak, lines)


def planned(recipe: str) -> dict[str, int]:
    """Return the plan of the trainer's process: bytes by part, and the number of parameters."""
    trainer = "from gymfleet_trainer.main import main; main()"
    found = json.loads(said(["-c", trainer, "plan", recipe, "--gpus", "1xcpu"]))
    parts = found["devices"][0]["processes"][0]["parts"]
    return {"parameters": found["num_parameters"], **{part["what"]: part["size_bytes"] for part in parts}}


def written(name: str, model: str, steps: int, *, dtype: str = "bfloat16", tokens: int | None = None) -> str:
    """Write a recipe for batches of one row of `tokens` tokens, or of the rows played; return its path."""
    path = RUNS / f"{name}.toml"
    values = {
        "MODEL": model, "BACKEND": str(Path(__file__).with_name("random_engine.py")), "DTYPE": dtype,
        "CONTEXT": str(tokens or 1000), "BATCH": str(tokens or 4096), "STEPS": str(steps),
    }  # fmt: skip
    path.write_text(re.sub("[A-Z]{5,}", lambda found: values[found[0]], _RECIPE), encoding="utf-8")
    return str(path)


def peak_of(pid: int) -> int:
    """Return the peak memory of a process in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
        return 0 if found is None else int(found[1]) * 1024
    return 0


def of_versions(run: Trained) -> list[Row]:
    """Return the figures on the size of the last version."""
    version = max((run.path / "weights").glob("v*"))
    manifest = WeightsManifest.model_validate_json((version / MANIFEST).read_text(encoding="utf-8"))
    data = sum(bucket.size_bytes for bucket in manifest.buckets)
    everything = sum(file.stat().st_size for file in version.iterdir())
    with safe_open(run.path / MODEL / WEIGHTS, framework="pt") as file:  # as the run left it, in float32
        numbers = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return [
        Row.of("parameters", numbers / 1e6, "million"),
        Row.of("a version: bytes per parameter", data / numbers, "bytes", goal=2.0, lower_is_better=True),
        Row.of("  headers, manifest, config and tokenizer", (everything - data) / 1024, "KiB"),
    ]


def of_seconds(run: Trained) -> list[Row]:
    """Return how long a step is held up, and by what."""
    return [
        Row.of("a step waits for version and checkpoint", median(run.blocked_s), "s", goal=BLOCKED_S,
               lower_is_better=True),
        Row.of("  at most", max(run.blocked_s), "s"),
        *_publishing(run),
        Row.of("  the checkpoint: waited for", median(run.checkpoint_s), "s"),
        Row.of("  the last one: waited for at the end of the stage", run.last_checkpoint_s, "s"),
        Row.of("  the checkpoint: written beside the next batch", run.of_steps("checkpoint", "write_s"), "s"),
        Row.of("  the update", run.of_steps("rl_step", "update_s"), "s"),
    ]  # fmt: skip


def _publishing(run: Trained) -> list[Row]:
    return [
        Row.of("  the version: written", run.of_steps("publish", "write_s"), "s"),
        Row.of("  the version: checked and read by the engine", run.of_steps("publish", "update_s"), "s"),
        Row.of("  the version: the trainer's pass over the probe", run.of_steps("publish", "compare_s"), "s"),
    ]


def of_memory(what: str, run: Trained) -> list[Row]:
    """Return the peak memory, and the plan's relative error."""
    expected = sum(size for part, size in run.plan.items() if part != "parameters")
    off = abs(run.peak_bytes / expected - 1)
    return [
        Row.of(f"{what}: peak memory of the trainer", run.peak_bytes / 2**20, "MiB", baseline=expected / 2**20),
        Row.of("  off the plan, which is the baseline", off, "", goal=OFF_BY, lower_is_better=True),
    ]


def of_adapters(run: Trained, base: Path) -> list[Row]:
    """Return the figures on parameters, bytes, seconds and log-probabilities of adapters."""
    with safe_open(run.checkpoint / MODEL / ADAPTER_WEIGHTS, framework="pt") as file:
        numbers = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - it is no mapping
    moments = (run.checkpoint / "optimizer.safetensors").stat().st_size
    seconds = run.of_steps("publish", "write_s") + run.of_steps("publish", "update_s")
    return [
        Row.of("adapters: trained parameters", numbers, "", baseline=run.plan["gradients"] / 4),
        Row.of("adapters: moments on disk", moments / 2**20, "MiB", baseline=run.plan["optimiser"] / 2**20),
        Row.of("adapters: written and read by the engine", seconds, "s", goal=ADAPTER_S, lower_is_better=True),
        Row.of("adapters: a step waits for version and checkpoint", median(run.blocked_s), "s"),
        *_publishing(run),
        *of_memory("adapters", run),
        Row.of("adapters: largest difference to the merged model", 1e6 * difference(run, base), "1e-6 nat",
               goal=1e6 * MERGED, lower_is_better=True),
    ]  # fmt: skip


def difference(run: Trained, base: Path) -> float:
    """Return the largest difference in log-probability between adapter and merged model, both in float32.

    The adapter is added to the base as it was held in training, in bfloat16.
    """
    model, held = run.path / MODEL, RUNS / "held"
    shutil.copytree(base, held)
    weights = load_file(held / WEIGHTS)
    save_file({name: one.bfloat16().float() for name, one in weights.items()}, held / WEIGHTS, {"format": "pt"})
    generator = torch.Generator().manual_seed(0)
    prompts, samples = (torch.randint(3, 200, (2, 16), generator=generator).tolist() for _ in range(2))
    said_by = []
    for name, section, start in (
        ("adapter", f'path = "{held}"\n{_LORA}', model),
        ("merged", f'path = "{model}"', None),
    ):
        recipe = load_recipe(Path(written(name, section, 1, dtype="float32")))
        learner = LocalLearner(recipe, str(recipe.model.path), RUNS / "references")
        if start is not None:
            learner.start_from(start / ADAPTER)
        said_by.append(torch.tensor(learner.sampled_logprobs(prompts, samples)))
    return float((said_by[0] - said_by[1]).abs().max())


if __name__ == "__main__":
    main()
