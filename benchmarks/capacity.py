"""The resources that concurrent episodes need: `python -m benchmarks.capacity --episodes 10000 --env sciworld`.

docs/capacity.md explains the formulas and holds the tables. With `--recipe`, the environment, the number of turns
and the length of replies come from a recipe; its limits are upper bounds.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from gymfleet_contracts.recipe import load_recipe

from benchmarks.capacity_assumptions import Device, Model
from benchmarks.capacity_costs import Costs
from benchmarks.capacity_page import LOADS, fixed_wall, wall
from benchmarks.capacity_plan import Load, Plan, plan


def load_of(recipe: Path, episodes: int) -> Load:
    """Return the load of a recipe: its first environment, and its limits as upper bounds of turns and replies."""
    loaded = load_recipe(recipe)
    env = loaded.environments[0]
    limits = loaded.limits_of(env)
    base = LOADS.get(env.name, Load(0, env.name))
    return replace(base, episodes=episodes, turns=limits.max_turns, reply_tokens=limits.max_response_tokens)


def as_text(one: Plan) -> str:
    """Return the plan as text for a terminal."""
    load = one.load
    lines = [
        f"{load.episodes:,} episodes of {load.env}, {load.turns:g} turns of {load.reply_tokens:g} tokens",
        f"a turn takes {one.turn_s:.3g} s: {one.steps_per_s:,.0f} steps/s, {one.trajectories_per_s:,.3g} trajectories",
        f"{'':16}{'replicas':>9}{'cores':>9}{'GB':>9}{'one is full at':>18}",
    ]
    for need in one.needs:
        full = f"{need.full_at:,.0f} episodes"
        lines.append(f"{need.name:16}{need.replicas:>9}{need.cores:>9.3g}{need.memory / 1e9:>9.3g}{full:>18}")
    lines.append(f"Redis writes {one.redis_write / 1e6:.3g} MB/s to its file, moves {one.redis_wire / 1e6:.3g} MB/s")
    lines.append(
        f"walls of one replica each: {wall(one, 0)} episodes; then {wall(one, 1)}; no replica moves {fixed_wall(one)}"
    )
    return "\n".join(lines)


def main() -> None:
    """Print the plan of one load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, required=True, help="at once")
    parser.add_argument("--env", default="textcraft", help="one that benchmarks/results/envs.json has")
    parser.add_argument("--recipe", type=Path, help="takes environment, turns and reply tokens from its limits")
    for name in ("turns", "prompt-tokens", "observation-tokens", "reply-tokens"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--parameters", type=float, default=Model().parameters, help="of the model")
    parser.add_argument("--kv-bytes-per-token", type=float, default=Model().kv_token)
    parser.add_argument("--gpu-memory", type=float, default=Device().memory, help="bytes")
    options = parser.parse_args()
    base = LOADS.get(options.env, Load(0, options.env))
    load = load_of(options.recipe, options.episodes) if options.recipe else replace(base, episodes=options.episodes)
    names = ("turns", "prompt_tokens", "observation_tokens", "reply_tokens")
    load = replace(load, **{name: value for name in names if (value := getattr(options, name)) is not None})
    model = Model(options.parameters, options.kv_bytes_per_token)
    print(as_text(plan(load, Costs.measured(load.env), model, Device(memory=options.gpu_memory))))


if __name__ == "__main__":
    main()
