"""The figures in docs/search.md, from the result file."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.bench_expert_iteration import Run, by_method, ends
from benchmarks.record import RESULTS
from benchmarks.search_runs import ONE, UNITS, Measured, baseline, by_cell, pooled
from benchmarks.search_settings import INDEPENDENT

_NOTHING: Final = "Nothing is published yet: `make bench-search` makes the figures."
_COLUMNS: Final = (
    "", "valued by", "forks", "success", "interval", "each seed", "beside", "steps", "replies", "tokens", "s",
)  # fmt: skip
_LEGEND: Final = (
    "Success of all seeds together, with Wilson's interval at 95 % over the tasks. Beside it stands what independent "
    "episodes reach: within the same budget, and with the same knowledge of the score, or else one of them. Steps, "
    "replies, tokens and forks are those of a task on average; seconds are those of the measurement of one seed, with "
    "the reward service's."
)
_LEARNED_COLUMNS: Final = ("", "before", "after", "interval", "each seed", "env steps", "tokens trained", "s")
_LEARNED_LEGEND: Final = (
    "Success before and after is the mean of the seeds; the interval reaches from the lowest to the highest end of the "
    "seeds' Wilson intervals at 95 %. Steps, tokens and seconds are means; the seconds of runs that share a machine "
    "say little."
)
_SEARCH: Final = ("expert_iteration", "go_explore")


def search_section(results: Path = RESULTS) -> str:
    """Return the part of docs/search.md between its marks."""
    path = results / "search.json"
    if not path.is_file():
        return _NOTHING
    document = json.loads(path.read_text(encoding="utf-8"))
    runs = [Measured(**{**run, "interval": tuple(run["interval"]), "valued_by": tuple(run["valued_by"])})
            for run in document["runs"]]  # fmt: skip
    parts = [f"{document['hardware']}, commit {document['commit']}.", _LEGEND]
    for env in dict.fromkeys(run.env for run in runs):
        own = [run for run in runs if run.env == env]
        parts += [f"### {env}", _table(own), f"Success by budget, in whole episodes:\n\n{_curves(own)}"]
    return "\n\n".join(parts)


def learned_section(results: Path = RESULTS) -> str:
    """Return the part of docs/search.md on learning from a search, which follows the figures of searches."""
    path = results / "expert_iteration.json"
    if not path.is_file():
        return "Nothing is published yet: `make bench-expert-iteration` makes the figures."
    document = json.loads(path.read_text(encoding="utf-8"))
    runs = by_method(Run(**{**run, "interval": tuple(run["interval"])}) for run in document["runs"])
    lines = [f"| {' | '.join(_LEARNED_COLUMNS)} |", f"|---{'|---:' * (len(_LEARNED_COLUMNS) - 1)}|"]
    for name, own in runs.items():
        low, high = ends(own)
        shown = (
            f"`{name}`", *(_percent(mean(getattr(run, what) for run in own)) for what in ("success_before", "success")),
            f"{_percent(low)} to {_percent(high)}", ", ".join(_percent(run.success) for run in own),
            *(f"{mean(getattr(run, what) for run in own):,.0f}" for what in ("env_steps", "tokens_trained", "total_s")),
        )  # fmt: skip
        lines.append(f"| {' | '.join(shown)} |")
    origin = f"{document['hardware']}, commit {document['commit']}, `{document['command']}`."
    verdicts = [
        f"- `{ours}` is {_verdict(name, ends(runs[ours]), ends(own))}"
        for ours in _SEARCH
        if ours in runs
        for name, own in runs.items()
        if name != ours
    ]
    return "\n\n".join([origin, _LEARNED_LEGEND, "\n".join(lines), "\n".join(verdicts)])


def _verdict(name: str, ours: tuple[float, float], theirs: tuple[float, float]) -> str:
    if ours[0] > theirs[1]:
        return f"above `{name}`: the intervals do not overlap."
    if ours[1] < theirs[0]:
        return f"below `{name}`: the intervals do not overlap."
    return f"not told apart from `{name}`: the intervals overlap."


def _table(runs: Sequence[Measured]) -> str:
    """Return a table with a row for each strategy, for each of the two budgets in which all were played."""
    cells = by_cell(runs)
    most = max((own[0].episodes for own in cells.values() if own[0].strategy not in (INDEPENDENT, ONE)), default=1)
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|---|---|{'---:|' * (len(_COLUMNS) - 2)}"]
    for own in cells.values():
        first = own[0]
        if first.strategy != ONE and first.episodes != most:
            continue
        success, (low, high) = pooled(own)
        beside = baseline(first, cells)
        seconds = [one.seconds for one in own if one.seconds is not None]
        budget = f", {most} episodes' {UNITS[first.currency]}" if first.currency else ""
        shown = (
            f"`{first.strategy}`{budget}", ", ".join(first.valued_by) or "nothing",
            f"{mean(one.forks for one in own):.1f}", _percent(success), f"{_percent(low)} to {_percent(high)}",
            ", ".join(_percent(one.num_solved / one.num_tasks) for one in own),
            "" if beside is None else _percent(beside),
            *(f"{mean(getattr(one, what) for one in own):,.1f}" for what in ("env_steps", "replies", "tokens")),
            f"{mean(seconds):.1f}" if seconds else "",
        )  # fmt: skip
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def _curves(runs: Sequence[Measured]) -> str:
    """Return a table with a row per strategy played with several budgets of replies, by the environment's score."""
    curves: defaultdict[str, dict[int, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.currency == "model_calls" and run.valued_by == ("goal",):
            curves[run.strategy][run.episodes].append(run)
    several = {name: curve for name, curve in curves.items() if len(curve) > 1}
    budgets = sorted({budget for curve in several.values() for budget in curve})
    lines = [f"| | {' | '.join(map(str, budgets))} |", f"|---|{'---:|' * len(budgets)}"]
    for name, curve in several.items():
        shown = (_percent(pooled(curve[budget])[0]) if budget in curve else "" for budget in budgets)
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
