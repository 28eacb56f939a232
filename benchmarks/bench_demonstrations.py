"""Augmented and filtered demonstrations against plain ones: `python -m benchmarks.bench_demonstrations [--seeds 0 1]`.

All ways begin with the quickstart's model and the same demonstrations of BabyAI's `intro`, and imitate equally many
tokens of replies. `plain` repeats the demonstrations. The others add variants made by one augmenter, or by all, that
still solve their task, and leave out near duplicates. All are measured on the same held-out tasks.
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
"""Higher than the quickstart's: inserted turns and longer thoughts must fit."""
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
augmenter = {augmenters}

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
    "plain": "",
    "paraphrase": '{ use = "paraphrase", copies = 3 }',
    "distractor": '{ use = "distractor", copies = 3, thought = "I look around." }',
    "recovery": '{ use = "recovery", copies = 3, notice = "That was wrong." }',
}
"""The augmenters of each way; `all` has those of all the others."""
SIZES: Final = {
    "num_demonstrations": Size(16, smoke=6, help="tasks that the expert plays"),
    "num_tokens": Size(20_000, smoke=600, help="tokens of replies that either way imitates"),
    "num_measured": Size(400, smoke=8, help="held-out tasks"),
}
SMOKE: Final[dict[str, Any]] = {"seeds": [0], "ways": ["recovery"], "set": ["model.scratch.corpus_episodes=20"]}


def main() -> None:
    """Run all ways for each seed, read the summaries, record."""
    parser = BenchmarkCommand(__doc__, SIZES, smoke=SMOKE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of all recipes")
    parser.add_argument(
        "--ways", nargs="+", default=[*WAYS, "all"][1:], choices=[*WAYS, "all"][1:], help="what is compared with plain"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="directory of the run directories")
    arguments = parser.options()
    rows = [row for seed in arguments.seeds for row in _compared(seed, arguments)]
    record("demonstrations", rows, arguments)


def recipe(way: str, arguments: argparse.Namespace) -> str:
    """Return the recipe of one way: the quickstart's, with other stages."""
    head, _, _ = (ROOT / "recipes" / "quickstart.toml").read_text(encoding="utf-8").partition("[[stages]]")
    given = [one for name, one in WAYS.items() if one and way in (name, "all")]
    stages = COLLECT + (MORE if given else "") + IMITATE
    sizes = {name: getattr(arguments, name) for name in SIZES}
    data = "filter" if given else "demonstrations"
    return head + stages.format(data=data, augmenters=f"[{', '.join(given)}]", **sizes)


def _compared(seed: int, arguments: argparse.Namespace) -> list[Row]:
    plain = _run("plain", seed, arguments)
    rows = [Row.of(f"seed {seed}: held-out success, plain", plain["success_after"], "")]
    for way in arguments.ways:
        rows += _against(plain, _run(way, seed, arguments), f"seed {seed}, {way}")
    return rows


def _against(plain: dict[str, Any], other: dict[str, Any], name: str) -> list[Row]:
    counts = other["counts"]
    gap = other["interval_after"][0] - plain["interval_after"][1]
    solved = sum(number for key, number in counts.items() if key.startswith("replays_solved.augment."))
    return [
        Row.of(f"{name}: held-out success", other["success_after"], "", baseline=plain["success_after"]),
        Row.of(f"{name}: gap between the 95 % intervals, above plain", gap, ""),
        Row.of(f"{name}: imitated tokens", float(other["tokens_trained"]), "", baseline=float(plain["tokens_trained"])),
        Row.of(f"{name}: replays that solved their task", float(solved), "", baseline=float(counts["replays.augment"])),
        Row.of(f"{name}: left out as near duplicates", float(counts["left_out.filter.1.near_duplicates"]), ""),
    ]


def _run(way: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    directory = arguments.runs / f"bench-demonstrations-{way}-{seed}"
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
