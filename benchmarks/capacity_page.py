"""The tables and worked examples of docs/capacity.md."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.capacity_assumptions import Device, Model
from benchmarks.capacity_costs import Costs, figures
from benchmarks.capacity_plan import UTILISATION, Load, Need, Plan, plan
from benchmarks.record import RESULTS

LOADS: Final[Mapping[str, Load]] = {
    "textcraft": Load(0, "textcraft"),
    "sciworld": Load(0, "sciworld", turns=40, prompt_tokens=900, observation_tokens=120),
    "os": Load(0, "os", turns=8, prompt_tokens=600, observation_tokens=200),
}
"""A light environment, one with a virtual machine, one with a sandbox; lengths are assumptions."""
SCALES: Final = (10, 100, 10_000)


def summary_table(env: str, results: Path = RESULTS) -> str:
    """Return the table of one environment at every scale, as Markdown."""
    costs = Costs.measured(env, results)
    plans = [plan(replace(LOADS[env], episodes=episodes), costs) for episodes in SCALES]
    names = [need.name for need in plans[0].needs]
    lines = [
        "| | " + " | ".join(f"{episodes:,} episodes" for episodes in SCALES) + " |",
        "|---|" + "---:|" * len(SCALES),
        _line("a turn, s", [f"{one.turn_s:.3g}" for one in plans]),
        _line("steps/s", [f"{one.steps_per_s:,.0f}" for one in plans]),
        _line("trajectories/s", [f"{one.trajectories_per_s:,.3g}" for one in plans]),
    ]
    for place, name in enumerate(names):
        lines.append(_line(f"{name}: replicas", [str(one.needs[place].replicas) for one in plans]))
        if plans[0].needs[place].cores:
            lines.append(_line(f"{name}: cores in use", [f"{one.needs[place].cores:,.3g}" for one in plans]))
        if plans[0].needs[place].memory:
            lines.append(_line(f"{name}: memory, GB", [f"{one.needs[place].memory / 1e9:,.3g}" for one in plans]))
    lines += [
        _line("Redis writes to its file, MB/s", [f"{one.redis_write / 1e6:,.3g}" for one in plans]),
        _line("Redis over the network, MB/s", [f"{one.redis_wire / 1e6:,.3g}" for one in plans]),
        _line("first wall of one replica each", [wall(one, 0) for one in plans]),
        _line("the next behind it", [wall(one, 1) for one in plans]),
        _line("first that no replica moves", [fixed_wall(one) for one in plans]),
    ]
    return "\n".join(lines)


def worked_example(env: str, episodes: int, results: Path = RESULTS) -> str:
    """Return the formulas with their figures, as a Markdown list."""
    costs, model, device = Costs.measured(env, results), Model(), Device()
    load = replace(LOADS[env], episodes=episodes)
    one = plan(load, costs, model, device)
    needs = {need.name: need for need in one.needs}
    engine, trainer, redis = needs["engine (GPU)"], needs["trainer (GPU)"], needs["Redis"]
    turn = f"{load.turns:g} ({load.observation_tokens:g} + {load.reply_tokens:g})"
    free = f"0.9 · {device.memory / 1e9:g} GB - {model.weights / 1e9:g} GB"
    context = f"{load.mean_context:,.0f} · {model.kv_token / 1e3:.0f} kB"
    tokens_per_s = f"{one.trajectories_per_s * load.tokens:,.0f} tokens/s"
    reached = f"{device.flops_share:g} · {device.flops / 1e12:g}e12/s · {UTILISATION:g}"
    steps = {
        "env shard": costs.env_step_s, "env server": costs.front_step_s,
        "gateway": costs.gateway_step_s, "rollout": costs.rollout_step_s,
    }  # fmt: skip
    lines = [
        f"L = {load.prompt_tokens:g} + {turn} = {load.tokens:,.0f} tokens, C = {load.mean_context:,.0f} tokens",
        f"B = ({free}) / ({context}) = {engine.full_at:,.0f} episodes, n = {engine.replicas:,} engines",
        f"t = {one.turn_s - costs.env_step_s:.3g} s for the reply + {1e3 * costs.env_step_s:.3g} ms in the environment",
        f"S = {episodes:,} / {one.turn_s:.3g} s = {one.steps_per_s:,.0f} steps/s, J = {one.trajectories_per_s:,.3g}/s",
        *(_share(needs[name], one.steps_per_s, step_s) for name, step_s in steps.items()),
        f"Redis: {redis.cores:.3g} of its core, {redis.memory / 1e9:.3g} GB, {one.redis_write / 1e6:.3g} MB/s to disk",
        f"trainers: 6 · {model.parameters / 1e9:g}e9 · {tokens_per_s} / ({reached}), rounded up: {trainer.replicas:,}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _share(need: Need, steps_per_s: float, step_s: float) -> str:
    work = f"{steps_per_s:,.0f}/s · {1e6 * step_s:,.0f} µs = {need.cores:,.3g} cores"
    return f"{need.name}: {work}, one is full at {need.full_at:,.0f} episodes: {need.replicas} of them"


def without_gpu(results: Path = RESULTS) -> str:
    """Return the figures measured on two cores, as a Markdown list."""
    rollout, trainer, quickstart = (figures(results / f"{name}.json") for name in ("rollout", "trainer", "quickstart"))
    replies = rollout["embedded: replies while episodes run, bare engine as baseline"]
    update = max(value for name, value in trainer.items() if name.startswith("update, micro-batches"))
    parts = {
        part: quickstart[f"seed 0: {part} per training step"] for part in ("wait", "update", "publish", "checkpoint")
    }
    return "\n".join(
        f"- {line}"
        for line in (
            f"engine in the rollout process: {replies:,.0f} replies/s of at most 12 tokens, to 256 episodes at once",
            f"trainer: {update:,.0f} tokens/s forward and backward",
            "a step of the quickstart, 256 episodes of at most 4 turns: "
            + ", ".join(f"{part} {seconds:.2g} s" for part, seconds in parts.items()),
        )
    )


def wall(one: Plan, place: int) -> str:
    """Return the part at `place` in order of scarcity, and how many episodes one replica of it bears."""
    need = one.walls[place]
    return f"{need.name}, {need.full_at:,.0f}"


def fixed_wall(one: Plan) -> str:
    """Return the scarcest part that cannot be replicated."""
    need = next(need for need in one.walls if not need.scales)
    return f"{need.name}, {need.full_at:,.0f}"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"
