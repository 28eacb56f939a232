"""The figures in docs/methods.md and docs/reward-models.md, from the result files."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.bench_methods import CHOSEN, SEEDS, methods
from benchmarks.figures import Curve, side_by_side, small_multiples
from benchmarks.record import RESULTS

SETTINGS: Final[Mapping[str, str]] = {
    "methods": "BabyAI, level intro",
    "methods-maze": "Maze, level tiny",
    "methods-textcraft": "TextCraft, level depth_1",
}
"""The title of each setting, by the name of its result file."""
_COLUMNS: Final = (
    "", "before", "after", "interval", "each seed", "on the way", "env steps", "tokens trained", "collecting, s",
    "training, s", "MiB",
)  # fmt: skip
_NOTHING: Final = "Nothing is published yet: `make bench-methods` makes the figures.\n"
_LEGEND: Final = (
    "Success before and after is the mean of the seeds, on 400 held-out tasks each; the interval reaches from the "
    "lowest to the highest end of the seeds' Wilson intervals at 95 %. *On the way* is the mean height of the curve: "
    "of two methods that end alike, the one with more of it needed fewer steps. Steps and tokens are means; seconds "
    "and MiB, of the largest process, are the least of the seeds, since what else runs on a machine only adds to them."
)


def methods_section(results: Path = RESULTS) -> str:
    """Return the part of docs/methods.md between its marks."""
    parts = []
    for name, title in SETTINGS.items():
        if (document := _document(results / f"{name}.json")) is not None:
            runs = document["runs"]
            seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs}))
            parts += [
                f"### {title}",
                f"{document['hardware']}; each run had {_processors(runs)}; seeds: {seeds}.",
                f"![Success over environment steps, a panel for each method](figures/{name}.svg)",
                _table(runs),
                *_missing(runs, list(methods()) if name == "methods" else CHOSEN),
            ]
    return "\n\n".join([*parts, _LEGEND]) if parts else _NOTHING


def drawn(results: Path = RESULTS) -> dict[str, str]:
    """Return the figures of docs/figures, by file name."""
    found = {}
    for name in SETTINGS:
        if (document := _document(results / f"{name}.json")) is not None:
            found[f"{name}.svg"] = small_multiples(
                {method: [_curve(run) for run in runs] for method, runs in _by_method(document["runs"]).items()},
                x="environment steps", y="success",
            )  # fmt: skip
    if (document := _document(results / "reward_models.json")) is not None:
        runs = document["runs"]
        found["over-optimisation.svg"] = side_by_side(
            {
                what: [[(point["kl"], point[key]) for point in run["best_of"]] for run in runs]
                for what, key in (("success of the best of n", "gold"), ("the model's number", "proxy"))
            },
            x="KL divergence from one drawn at random, nat",
        )
    return found


def _document(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _by_method(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: sorted((run for run in runs if run["method"] == name), key=lambda run: int(run["seed"]))
        for name in sorted({run["method"] for run in runs})
    }


def _table(runs: Sequence[dict[str, Any]]) -> str:
    rows = [f"| {' | '.join(_COLUMNS)} |", f"|---{'|---:' * (len(_COLUMNS) - 1)}|"]
    for name, own in _by_method(runs).items():
        cells = (
            f"`{name}`",
            _percent(mean(run["success_before"] for run in own)),
            _percent(mean(run["success"] for run in own)),
            f"{_percent(min(run['interval'][0] for run in own))} to {_percent(max(run['interval'][1] for run in own))}",
            ", ".join(_percent(run["success"]) for run in own),
            _percent(mean(height(_curve(run)) for run in own)),
            *(f"{mean(run[key] for run in own):,.0f}" for key in ("env_steps", "tokens_trained")),
            *(f"{min(run[key] for run in own):,.0f}" for key in ("collecting_s", "training_s", "memory_mib")),
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _curve(run: Mapping[str, Any]) -> Curve:
    """Return success over environment steps, from the measurement before the first step to that after the last."""
    between = [(float(steps), float(success)) for steps, success in run["curve"] if 0 < steps < run["env_steps"]]
    return [(0.0, run["success_before"]), *between, (float(run["env_steps"]), run["success"])]


def height(curve: Curve) -> float:
    """Return the mean height of a piecewise linear curve, or the height of its end if it has no width."""
    width = curve[-1][0] - curve[0][0]
    area = sum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in pairwise(curve))
    return area / width if width else curve[-1][1]


def _missing(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return a line about the runs still to be done, if any: a comparison may take several days."""
    done = {(run["method"], int(run["seed"])) for run in runs}
    counts = {name: sum((name, seed) not in done for seed in SEEDS) for name in names}
    if not any(counts.values()):
        return []
    of_all = [f"`{name}`" for name, count in counts.items() if count == len(SEEDS)]
    others = sum(count for count in counts.values() if count < len(SEEDS))
    parts = [f"all of {', '.join(of_all)}"] * bool(of_all) + [f"{others} of the other methods'"] * bool(others)
    return [f"Runs that are still to be done: {', and '.join(parts)}."]


def _processors(runs: Sequence[Mapping[str, Any]]) -> str:
    numbers = sorted({int(run["processors"]) for run in runs})
    return f"{' or '.join(map(str, numbers))} core{'' if numbers == [1] else 's'} for itself"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
