"""Augmented and filtered demonstrations against plain ones: `python -m benchmarks.bench_demonstrations [--seeds 0 1]`.

Both ways begin with the quickstart's model and the same demonstrations of BabyAI's `intro`, and imitate equally many
tokens of replies. One repeats the demonstrations. The other adds to them what augmenters make of them and still solves
its task, and leaves out what says nearly the same. Then both are measured on the same held-out tasks.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record

ROOT: Final = Path(__file__).parents[1]
LIMITS: Final = (
    "rollout.limits.max_turns=6", "rollout.limits.max_response_tokens=64", "rollout.limits.max_context_tokens=2000",
    "inference.max_model_len=2048",
)  # fmt: skip
"""More than the quickstart's: inserted turns and longer thoughts must fit."""
COLLECT: Final = """
[[stages]]
kind = "collect"
name = "demonstrations"
strategy = "expert"
num_tasks = {num_demonstrations}
"""
MORE: Final = """
[[stages]]
kind = "augment"
data = "demonstrations"
augmenter = [
    {{ use = "paraphrase", copies = 3 }},
    {{ use = "recovery", copies = 2, notice = "That was wrong." }},
    {{ use = "distractor", copies = 1, thought = "I look around." }},
]

[[stages]]
kind = "filter"
data = ["demonstrations", "augment"]
success = true
filters = ["duplicates", {{ use = "near_duplicates", threshold = 0.95 }}]
"""
IMITATE: Final = """
[[stages]]
kind = "sft"
data = "{data}"
roles = ["agent"]
epochs = 1000
max_tokens = {num_tokens}
tokens_per_batch = 2048

[stages.optimizer]
learning_rate = 1e-3
schedule = "linear"
warmup_steps = 10

[[stages]]
kind = "measure"
name = "after"
num_tasks = {num_measured}
"""
WAYS: Final = {
    "plain": (COLLECT + IMITATE, "demonstrations"),
    "augmented and filtered": (COLLECT + MORE + IMITATE, "filter"),
}
SIZES: Final = {
    "num_demonstrations": Size(16, smoke=6, help="tasks that the expert plays"),
    "num_tokens": Size(20_000, smoke=600, help="tokens of replies that either way imitates"),
    "num_measured": Size(400, smoke=8, help="held-out tasks"),
}
SMOKE: Final[dict[str, Any]] = {"seeds": [0], "set": ["model.scratch.corpus_episodes=20"]}


def main() -> None:
    """Run both ways for each seed, read the summaries, record."""
    parser = BenchmarkCommand(__doc__, SIZES, smoke=SMOKE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of both recipes")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="directory of the run directories")
    arguments = parser.options()
    rows = [row for seed in arguments.seeds for row in _compared(seed, arguments)]
    record("demonstrations", rows, arguments)


def recipe(way: str, arguments: argparse.Namespace) -> str:
    """Return the recipe of one way: the quickstart's, with other stages."""
    head, _, _ = (ROOT / "recipes" / "quickstart.toml").read_text(encoding="utf-8").partition("[[stages]]")
    stages, data = WAYS[way]
    sizes = {name: getattr(arguments, name) for name in SIZES}
    return head + stages.format(data=data, **sizes)


def _compared(seed: int, arguments: argparse.Namespace) -> list[Row]:
    plain, other = (_run(way, seed, arguments) for way in WAYS)
    counts = other["counts"]
    successes = [
        Row.of(f"seed {seed}: held-out success, {way}", run["success_after"], "", baseline=baseline)
        for way, run, baseline in zip(WAYS, (plain, other), (None, plain["success_after"]), strict=True)
    ]
    return [
        *successes,
        Row.of(
            f"seed {seed}: gap between the 95 % intervals, augmented above plain",
            other["interval_after"][0] - plain["interval_after"][1], "", goal=0.0,
        ),
        Row.of(
            f"seed {seed}: imitated tokens, augmented against plain",
            float(other["tokens_trained"]), "", baseline=float(plain["tokens_trained"]),
        ),
        Row.of(
            f"seed {seed}: replays that solved their task",
            float(_solved(counts)), "", baseline=float(counts["replays.augment"]),
        ),
        Row.of(f"seed {seed}: left out as near duplicates", float(counts["left_out.filter.1.near_duplicates"]), ""),
    ]  # fmt: skip


def _solved(counts: dict[str, int]) -> int:
    return sum(number for name, number in counts.items() if name.startswith("replays_solved.augment."))


def _run(way: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    directory = arguments.runs / f"bench-demonstrations-{way.partition(' ')[0]}-{seed}"
    path = directory.with_suffix(".toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe(way, arguments), encoding="utf-8")
    gymfleet = str(Path(sys.executable).with_name("gymfleet"))
    command = [gymfleet, "train", str(path), "--run-dir", str(directory), "--seed", str(seed), "--fresh"]
    for change in (*LIMITS, *arguments.set):
        command += ["--set", change]
    subprocess.run(command, check=True, cwd=ROOT)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return summary


if __name__ == "__main__":
    main()
