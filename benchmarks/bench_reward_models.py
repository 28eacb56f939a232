"""A reward model against chance, length and the last line: `python -m benchmarks.bench_reward_models [--seeds 0 1 2]`.

Maze's expert plays with random moves in between, and replies contain only moves. The length limit of an episode is
drawn beforehand, so that episodes that reach the goal and episodes that do not are similarly long; the episodes of a
pair share a task and differ in length by at most ten per cent. The model begins with random weights and reads what the
reward service shows it: up to the last reply, without the observation that would give the outcome away. One rule still
decides every outcome: the last observation gives the positions of the player and the goal, the last reply gives the
direction of the move, and the goal was reached if that move enters it. So an accuracy of 1 is possible, and is listed
next to the model's; the benchmark measures whether the model finds the rule from pairs alone. No maze is played twice,
by one seed or by two, so no held-out maze was trained on.

On held-out tasks it reports how often the model finds the better of two episodes, and how often the model's best of n
is a solution, compared with one drawn at random. Plotted over the KL divergence of choosing the best of n, this is the
curve of over-optimisation (arXiv:2210.10760), of the model's number and of the true success.
"""

import argparse
import random
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import (
    FinishReason,
    PolicyRef,
    Reward,
    ScoredTrajectory,
    Status,
    Trajectory,
    Turn,
    trajectory_id,
)
from gymfleet_envs.maze.environment import Maze
from gymfleet_envs.maze.grid import MazeTask, neighbour
from gymfleet_envs.tasks import Task
from gymfleet_kit.chat.transcripts import Transcripts
from gymfleet_kit.intervals import wilson_interval
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.options import BradleyTerryOptions
from gymfleet_trainer.learning.reward_data import Example, Pair, held_out_tasks, pairs_of, read_examples
from gymfleet_trainer.learning.reward_measures import (
    LastLineBaseline,
    LengthBaseline,
    accuracy,
    best_of,
    best_of_kl,
    calibration,
    calibration_error,
    sides,
    sureness,
)
from gymfleet_trainer.model.scratch import build_scratch_model

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record

LEVEL: Final = "tiny"
MAX_TOKENS: Final = 1024
TURNS: Final = (2, 8)
"""The bounds between which an episode's limit is drawn."""
AT_RANDOM: Final = 0.5
"""How often a move is drawn at random instead of taken from the expert."""
_POSITION: Final = re.compile(r"position ([\d ]+), ([\d ]+)\.")
MODEL: Final = ScratchModel(vocab_size=384, hidden_size=64, intermediate_size=192, num_layers=3, num_heads=4,
                            num_kv_heads=2, head_dim=16)  # fmt: skip
SIZES: Final = {
    "num_tasks": Size(2500, smoke=12, help="tasks that are played, of which a fifth is held out"),
    "num_samples": Size(8, smoke=6, help="episodes of each"),
    "epochs": Size(6, smoke=1, help="passes over the pairs"),
}
SMOKE: Final[dict[str, Any]] = {"seeds": [0]}


class Measured(NamedTuple):
    """The results of one seed."""

    seed: int
    rows: list[Row]
    best_of: list[dict[str, float]]
    """For each n: the divergence of the best of n from one drawn at random (`kl`, nats), its success (`gold`), and the
    model's number (`proxy`), as means over the held-out tasks."""


def main() -> None:
    """Play, train and measure for each seed; record."""
    parser = BenchmarkCommand(__doc__, SIZES, smoke=SMOKE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.options()
    runs = [_measured(seed, arguments) for seed in arguments.seeds]
    rows = [row for run in runs for row in run.rows]
    record("reward_models", rows, arguments, [{"seed": run.seed, "best_of": run.best_of} for run in runs])


def played(seed: int, num_tasks: int, num_samples: int) -> list[ScoredTrajectory]:
    """Return episodes of Maze, with the reward 1 at the goal."""
    draw = random.Random(seed)
    tasks = islice(_mazes(), seed * num_tasks, (seed + 1) * num_tasks)
    return [_episode(task, number, sample, draw) for number, task in enumerate(tasks) for sample in range(num_samples)]


def _mazes() -> Iterator[Task[MazeTask]]:
    """Yield the tasks of the level without repetitions: it is so small that two indices may be the same maze."""
    source = Maze.task_source(None)
    seen: set[MazeTask] = set()
    for index in count():
        task = source.by_index("train", LEVEL, index)
        if task.data not in seen:
            seen.add(task.data)
            yield task


def _episode(task: Task[MazeTask], number: int, sample: int, draw: random.Random) -> ScoredTrajectory:
    maze = Maze()
    shown, solved = maze.reset(task.data, 0), False
    turns: list[Turn] = []
    for _ in range(draw.randint(*TURNS)):
        move = maze.expert()
        action = draw.choice(maze.admissible_actions()) if move is None or draw.random() < AT_RANDOM else move.action
        outcome = maze.step(action)
        turns.append(
            Turn(
                observation=shown, prompt_token_ids=(), response_token_ids=(), response_logprobs=(), thought="",
                text=f"Action: {action}", action=action, format_valid=True, action_valid=True,
            )
        )  # fmt: skip
        shown, solved = outcome.observation, outcome.terminated
        if solved:
            break
    group = f"played.t{number:06d}"
    trajectory = Trajectory(
        trajectory_id=trajectory_id("bench", group, sample), run_id="bench", group_id=group, sample=sample,
        task=TaskRef(env=Maze.name, split="train", level=LEVEL, task_id=task.task_id), turns=tuple(turns),
        policy=PolicyRef(model="scripted", version_min=0, version_max=0), format="react", format_version=1,
        status=Status.COMPLETED, finish_reason=FinishReason.TERMINATED if solved else FinishReason.ENV_TURN_LIMIT,
        final_observation=shown, success=solved, score=float(solved),
    )  # fmt: skip
    nothing: tuple[tuple[float, ...], ...] = tuple(() for _ in turns)
    reward = Reward(total=float(solved), components={}, allocation="last_token", token_rewards=nothing, scorers={})
    return ScoredTrajectory(trajectory=trajectory, reward=reward)


def enters_goal(turn: Turn) -> bool:
    """Return whether the reply moves the player to the goal, from their positions in the observation."""
    goal, here = (
        (int(row.replace(" ", "")), int(column.replace(" ", ""))) for row, column in _POSITION.findall(turn.observation)
    )
    return neighbour(here, turn.text.split()[-1]) == goal


def _measured(seed: int, arguments: argparse.Namespace) -> Measured:
    episodes = played(seed, arguments.num_tasks, arguments.num_samples)
    options = BradleyTerryOptions.model_validate(
        {
            "epochs": arguments.epochs, "max_length_ratio": 1.1, "max_pairs_per_task": 8, "pairs_per_batch": 32,
            "optimizer": {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 20},
        }
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        texts = [text for one in episodes for turn in one.trajectory.turns for text in (turn.observation, turn.text)]
        build_scratch_model(texts, MODEL, model, seed, max_position=MAX_TOKENS)
        tasks = read_examples(episodes, Transcripts(model), options, MAX_TOKENS).tasks
        pairs = {task: found for task, examples in tasks.items() if (found := pairs_of(examples, options))}
        held_out = held_out_tasks(pairs, options.held_out)
        trained = [pair for task in sorted(pairs.keys() - held_out) for pair in pairs[task]]
        learner = _learner(model, seed)
        learner.begin("bradley_terry", options)
        rows = [row for pair in trained for row in pair.rows()]
        started = time.perf_counter()
        for epoch in range(arguments.epochs):
            told = learner.reward_epoch(rows, epoch)
            print(
                f"seed {seed}, epoch {epoch + 1}: loss {told['loss']:.4f}, accuracy {told['accuracy']:.3f}", flush=True
            )
        seconds = time.perf_counter() - started
        measured = [example for task in sorted(held_out) for example in tasks[task]]
        numbers = learner.reward_numbers([example.row() for example in measured])
    said = {example.name: number for example, (number,) in zip(measured, numbers, strict=True)}
    own = [pair for task in sorted(held_out) for pair in pairs[task]]
    choices = [tasks[task] for task in sorted(held_out)]
    curve = _best_of(choices, said)
    rows_of_all = [
        *_of_pairs(seed, trained, own, said),
        *_of_choices(seed, choices, said, curve),
        Row.of(f"seed {seed}: training", seconds, "s"),
    ]
    return Measured(seed, rows_of_all, list(curve.values()))


def _of_pairs(seed: int, trained: list[Pair], held_out: list[Pair], said: dict[str, float]) -> list[Row]:
    chosen, rejected = ([said[example.name] for example in side] for side in sides(held_out))
    by_rule = ([float(enters_goal(one.scored.trajectory.turns[-1])) for one in side] for side in sides(held_out))
    bins = calibration(*sureness(chosen, rejected))
    name = f"seed {seed}: held-out accuracy"
    return [
        Row.of(f"{name}, the model", accuracy(chosen, rejected), "", goal=0.9),
        Row.of(f"{name}, by length alone", LengthBaseline(trained).accuracy(held_out), ""),
        Row.of(f"{name}, by the last line alone", LastLineBaseline(trained).accuracy(held_out), ""),
        Row.of(f"{name}, by the rule that decides it: does the last move enter the goal", accuracy(*by_rule), ""),
        Row.of(f"seed {seed}: expected calibration error", calibration_error(bins), ""),
        Row.of(f"seed {seed}: held-out pairs", len(held_out), "", baseline=float(len(trained))),
    ]


def _best_of(tasks: list[list[Example]], said: dict[str, float]) -> dict[int, dict[str, float]]:
    """Return the results of choosing the best of n of a task's episodes, for each n."""
    found = {}
    for n in (size for size in (1, 2, 4, 8) if size <= min(map(len, tasks))):
        gold, proxy = (
            mean(best_of(n, [said[one.name] for one in task], [value(one) for one in task]) for task in tasks)
            for value in (lambda one: one.reward, lambda one: said[one.name])
        )
        found[n] = {"kl": best_of_kl(n), "gold": gold, "proxy": proxy}
    return found


def _of_choices(
    seed: int, tasks: list[list[Example]], said: dict[str, float], curve: Mapping[int, Mapping[str, float]]
) -> list[Row]:
    """Return the gains from choosing among a task's episodes, over the tasks that make a pair."""
    largest = min(len(examples) for examples in tasks)
    rows = []
    for n, point in curve.items():
        name = f"seed {seed}: best of {n} (KL {point['kl']:.2f})"
        rows += [
            Row.of(f"{name}, success", point["gold"], ""),
            Row.of(f"{name}, the model's number", point["proxy"], ""),
        ]
    best = sum(max(task, key=lambda one: said[one.name]).reward > 0 for task in tasks)
    draw = random.Random(seed)
    drawn = sum(draw.choice(task).reward > 0 for task in tasks)
    gap = wilson_interval(best, len(tasks))[0] - wilson_interval(drawn, len(tasks))[1]
    return [
        *rows,
        Row.of(
            f"seed {seed}: best of {largest} against one at random", best / len(tasks), "", baseline=drawn / len(tasks)
        ),
        Row.of(f"seed {seed}: gap between their 95 % intervals", gap, "", goal=0.0),
    ]


def _learner(model: Path, seed: int) -> LocalLearner:
    recipe = Recipe.model_validate(
        {
            "name": "bench", "seed": seed, "environments": [{"name": "maze"}], "model": {"path": str(model)},
            "trainer_device": "cuda" if torch.cuda.is_available() else "cpu", "stages": [{"kind": "measure"}],
        }
    )  # fmt: skip
    return LocalLearner(recipe, str(model), model / "references")


if __name__ == "__main__":
    main()
