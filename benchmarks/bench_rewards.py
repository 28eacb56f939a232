"""The speed of the reward service's rules: each alone, all together, and with reading and writing the records.

The episodes have five turns of 60 sampled tokens. Components that ask a model, or compare mathematics in separate
processes, are not rules and are left out. Rates are for several concurrent processes, as replicas run.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from gymfleet_contracts.reward import RewardSpec, ScoreRequest
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_reward.composer import Scorer
from gymfleet_reward.evaluation import answered

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record
from tests.fixtures.trajectories import make_trajectory, make_turn

GOLD: Final = {"ground_truth_from": "info.gold"}
RULES: Final[dict[str, dict[str, Any]]] = {
    "action_path": {"ground_truth_from": "info.path"}, "action_use": {}, "bleu": GOLD, "cosine_length": {},
    "efficiency": {}, "environment": {}, "exact_match": GOLD, "f1": GOLD, "format": {}, "goal": {},
    "invalid_action": {}, "length": {}, "numeric_match": {"ground_truth_from": "info.number"}, "reasoning_steps": {},
    "recovery": {}, "repetition": {}, "rouge": GOLD, "set_match": GOLD, "tag_order": {}, "think_format": {},
    "thought_length": {},
}  # fmt: skip
FEW: Final = ("goal", "format", "length")
GOAL_PER_S: Final = 10_000
NUM_TOKENS: Final = 60
TURNS: Final = 5
DISTINCT: Final = 64
"""Number of episodes with different texts, so that nothing a component may cache from the last one helps it."""
SIZES: Final = {
    "episodes": Size(20_000, smoke=128, help="scored for each figure"),
    "processes": Size(2, smoke=1, help="side by side"),
}


def episodes() -> list[Trajectory]:
    """Return the episodes to score."""
    return [_episode(number) for number in range(DISTINCT)]


def _episode(number: int) -> Trajectory:
    turns = []
    for place in range(TURNS):
        thought = (
            f"<think>First, I look at shelf {number}. Step {place}: the red box is behind the door, so I go to room "
            f"{number * place % 7} and open it before I take what is in it.</think><plan>take it</plan>"
        )
        action = f"go to room {number * place % 7}" if place < TURNS - 1 else f"answer {number} red boxes"
        turn = make_turn(
            NUM_TOKENS, observation=f"You are in room {number * place % 5}. You see a door and a box.", thought=thought,
            text=f"{thought}<act>{action}</act>", action=action, action_valid=(number + place) % 6 != 0, reward=0.2,
        )  # fmt: skip
        turns.append(turn)
    info = {"gold": f"{number} red boxes", "number": number, "path": ["go to room 0", "open box", "take key"]}
    turns[-1] = turns[-1].model_copy(update={"info": info})
    return make_trajectory(turns=tuple(turns), sample=number)


def tables(names: tuple[str, ...] | list[str]) -> RewardSpec:
    """Return a reward of these components."""
    return RewardSpec.model_validate({"goal": {"enabled": "goal" in names}, **{name: RULES[name] for name in names}})


def per_second(call: Callable[[int], object], count: int) -> float:
    """Return the calls per second, the best of three."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for number in range(count // 3):
            call(number)
        best = min(best, time.perf_counter() - began)
    return (count // 3) / best


def component_us(name: str, count: int) -> float:
    """Return the microseconds that a component takes for an episode."""
    (term,) = Scorer().terms(tables([name]))
    given = episodes()
    return 1e6 / per_second(lambda number: answered(term.component, given[number % DISTINCT]), count)


def rate(names: tuple[str, ...], count: int, *, wire: bool) -> float:
    """Return the episodes that one process scores per second, with reading and writing their records if `wire`."""
    scorer, spec = Scorer(), tables(names)
    requests = [ScoreRequest(trajectory=episode, reward=spec) for episode in episodes()]
    records = [request.model_dump_json() for request in requests]

    def scored(number: int) -> None:
        place = number % DISTINCT
        found = scorer.score_alone(ScoreRequest.model_validate_json(records[place]) if wire else requests[place])
        if found is None or found.reward is None:
            raise RuntimeError(f"no reward: {found and found.reward_error}")
        if wire:
            found.model_dump_json()

    scored(0)
    return per_second(scored, count)


def side_by_side(names: tuple[str, ...], options: argparse.Namespace, *, wire: bool) -> float:
    """Return the sum of the rates of several processes that run at the same time."""
    command = [sys.executable, "-m", "benchmarks.bench_rewards", "--one", ",".join(names)]
    command += ["--episodes", str(options.episodes), *(["--wire"] if wire else [])]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(options.processes)]
    found = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError("a process that scores failed; its message stands above")
    return sum(float(one) for one in found)


def main() -> None:
    """Measure and record, or measure one process of several."""
    parser = BenchmarkCommand(__doc__, SIZES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--wire", action="store_true", help=argparse.SUPPRESS)
    options = parser.options()
    if options.one:
        print(rate(tuple(options.one.split(",")), options.episodes, wire=options.wire))
        return
    rows = [Row.of(f"{name}: an episode", component_us(name, options.episodes), "us") for name in RULES]
    for names, what in ((FEW, ", ".join(FEW)), (tuple(RULES), f"all {len(RULES)} rules")):
        for wire in (False, True):
            beside = f"{what}, {options.processes} processes" + (", with reading and writing" if wire else "")
            found = side_by_side(names, options, wire=wire)
            rows.append(Row.of(beside, found, "episodes/s", goal=GOAL_PER_S))
    record("rewards", rows, options)


if __name__ == "__main__":
    main()
