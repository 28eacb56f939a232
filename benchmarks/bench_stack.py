"""`kill -9` of every kind of process while the whole stack trains: time to recover, and correctness of the books.

The quickstart's recipe, in smaller steps, trains for about ten minutes. A seeded schedule kills twenty processes
meanwhile: env server, one of its shards, gateway, reward, rollout with its engine, trainer, Redis. They are started
again by the supervisor of `gymfleet train`, or (`--compose PROJECT`) by the restart policy of a compose project that
is already training. A recovery is over when the killed service is ready and, both begun after that, a session was
played through the gateway and a scored trajectory arrived; the end of a training step is measured as well.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from gymfleet_contracts.recipe import Recipe, load_recipe
from gymfleet_contracts.session import OpenSession
from pydantic import BaseModel, Field

from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record
from benchmarks.stack_accounts import Accounts, reinforcement
from benchmarks.stack_schedule import KILLS, Kill, schedule
from benchmarks.stack_signs import Signs, Watch
from benchmarks.stacks import ComposeProject, Kind, LocalFleet, Process, Stack, is_ready, kill, victim

ROOT: Final = Path(__file__).parents[1]
WINDOW_S: Final = 600.0
GOAL_S: Final = 15.0
SHOWN_S: Final = 300.0
"""What the figures show for an event that was never seen."""
LOG_LINES: Final = 40
"""Of the run's log, printed where the run fails."""
POLL_S: Final = 0.1
OVERRIDES: Final = (
    # Steps of a few seconds, so that a standstill shows; the run ends by the clock.
    "stages.reinforce.groups_per_step=8", "stages.reinforce.updates_per_step=1", "stages.reinforce.steps=2000",
    "stages.reinforce.max_wall_s=600",
    # The learning-rate schedule is for 2000 steps, of which about a tenth happens: a smaller, nearly constant rate.
    "stages.reinforce.optimizer.learning_rate=2e-4",
)  # fmt: skip


SMOKE: Final = {
    "window_s": 42.0, "start_s": 150.0, "give_up_s": 90.0, "end_s": 120.0,
    "set": [
        "stages.reinforce.steps=2000", "stages.reinforce.max_wall_s=55", "stages.reinforce.groups_per_step=2",
        "stages.reinforce.updates_per_step=1", "stages.before.num_tasks=5", "stages.after.num_tasks=5",
    ],
}  # fmt: skip
"""One kill of every kind; the run outlasts the window by the time of the last recovery."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each part is waited for, in seconds."""

    start_s: float
    """Until reinforcement learning begins."""
    give_up_s: float
    """After a kill, until the stack works again."""
    end_s: float
    """The rest of the run after the last recovery, including its measurement."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds after the kill; infinite for events not seen in time."""

    kill: Kill
    ready_s: float
    session_s: float
    trajectory_s: float
    step_s: float

    @property
    def works_s(self) -> float:
        """Seconds until the service is ready, a session was played and a trajectory arrived."""
        return max(self.ready_s, self.session_s, self.trajectory_s)


class Ordeal(BaseModel):
    """The observations, as kept next to the run directory."""

    recoveries: list[Recovery] = []
    signs: Signs = Field(default_factory=Signs)
    restarts: int = 0
    """Restarts of services, by the supervisor or the compose project, until the last recovery."""
    load_average: float = 0.0
    """Load average of the machine over the 15 minutes before the last recovery, including other work on it."""


async def strike(stack: Stack, signs: Signs, plan: Sequence[Kill], give_up_s: float) -> list[Recovery]:
    """Carry out the schedule, whether or not the stack has recovered from the previous kill."""
    started = time.monotonic()
    recoveries = []
    for entry in plan:
        await asyncio.sleep(max(0.0, started + entry.at_s - time.monotonic()))
        process = await _until_there(stack, entry.kind, give_up_s)
        kill(process)
        print(f"{time.monotonic() - started:6.1f} s  killed {entry.kind}, process {process.pid}", flush=True)
        recoveries.append(asyncio.create_task(_recovery(stack, signs, entry, process.pid, give_up_s)))
    return await asyncio.gather(*recoveries)


async def _until_there(stack: Stack, kind: Kind, give_up_s: float) -> Process:
    """Return the process to kill; wait for it while it is being started again."""
    deadline = time.monotonic() + give_up_s
    while (process := await asyncio.to_thread(victim, stack, kind)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"there is no {kind} to kill")
        await asyncio.sleep(POLL_S)
    return process


async def _recovery(stack: Stack, signs: Signs, entry: Kill, killed: int, give_up_s: float) -> Recovery:
    at = time.time()
    deadline = at + give_up_s
    while not await asyncio.to_thread(is_ready, stack, entry.kind, killed):
        if time.time() > deadline:
            break
        await asyncio.sleep(POLL_S)
    ready_at = time.time()
    seen: dict[str, float] = {}
    looks: dict[str, Callable[[], float]] = {
        "session": lambda: signs.session, "trajectory": lambda: signs.trajectory, "step": lambda: signs.step,
    }  # fmt: skip
    while len(seen) < len(looks) and time.time() < deadline:
        for name, look in looks.items():
            if name not in seen and look() > ready_at:
                seen[name] = time.time() - at
        await asyncio.sleep(POLL_S)
    ready_s = ready_at - at if ready_at < deadline else float("inf")
    times = {name: seen.get(name, float("inf")) for name in looks}
    print(f"          {entry.kind} ready after {ready_s:.1f} s, " + ", ".join(f"{n} {s:.1f}" for n, s in times.items()))
    return Recovery(entry, ready_s, times["session"], times["trajectory"], times["step"])


@contextmanager
def training(
    recipe: Path, run_dir: Path, overrides: Sequence[str], *, fresh: bool = True, threads: int = 1
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `gymfleet train` with `threads` trainer threads; stop it and all its services when the block ends."""
    sets = [part for override in overrides for part in ("--set", override)]
    command = [str(Path(sys.executable).with_name("gymfleet")), "train", str(recipe), "--run-dir", str(run_dir)]
    # One thread for the engine, and by default for the trainer: two threads that share a core with a third process
    # wait for each other.
    settings = {"GYMFLEET_TRAINER_TORCH_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        command.append("--fresh")
    with run_dir.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen([*command, *sets], stdout=log, stderr=log, env={**os.environ, **settings})
    try:
        yield process
    except BaseException:
        with run_dir.with_suffix(".log").open(encoding="utf-8", errors="replace") as lines:
            print(f"the end of {lines.name}:\n{''.join(deque(lines, LOG_LINES))}", file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait(timeout=60)


async def until_phase(run_dir: Path, phase: str, process: "subprocess.Popen[bytes] | None", timeout_s: float) -> None:
    """Wait until the run's progress shows `phase`. Raises `RuntimeError` if the run ends or takes too long."""
    deadline = time.monotonic() + timeout_s
    while (now := _phase(run_dir)) != phase:
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise RuntimeError(f"the run in {run_dir} is in phase {now!r} and does not come to {phase!r}")
        await asyncio.sleep(POLL_S)


def _phase(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / "progress.json").read_text(encoding="utf-8"))["phase"])
    except FileNotFoundError:
        return ""


async def ordeal(
    stack: Stack, recipe: Recipe, plan: Sequence[Kill], process: "subprocess.Popen[bytes] | None", patience: Patience
) -> Ordeal:
    """Wait for reinforcement learning, kill by the plan, and wait for the end of the run.

    The observations are on disk whatever happens then: an unfinished run can be resumed, with an empty plan.
    """
    notes = stack.run_dir.with_suffix(".ordeal.json")
    seen = Ordeal.model_validate_json(notes.read_bytes()) if not plan else Ordeal()
    if plan:
        await until_phase(stack.run_dir, reinforcement(recipe).name, process, patience.start_s)
    run_id = json.loads((stack.run_dir / "run.json").read_text(encoding="utf-8"))["run_id"]
    env = recipe.environments[0]
    task = OpenSession(env=env.name, split=env.train_split, level=env.level, task_index=0)
    async with Watch(stack, run_id, task, seen.signs) as watch:
        try:
            if plan:
                seen.recoveries = await strike(stack, watch.signs, plan, patience.give_up_s)
                seen.restarts, seen.load_average = stack.num_restarts(), os.getloadavg()[2]
            await until_phase(stack.run_dir, "done", process, patience.end_s)
        finally:
            notes.write_text(seen.model_dump_json(), encoding="utf-8")
    if process is not None:
        await asyncio.to_thread(process.wait, 60)
    return seen


def rows(seen: Ordeal, accounts: Accounts) -> list[Row]:
    """Return the figures per kind, per kill, and of the books."""
    recoveries = seen.recoveries
    asked = sum(one.kill.kind is not Kind.ENV_SHARD for one in recoveries)
    return [
        *(row for kind in Kind for row in _kind_rows([one for one in recoveries if one.kill.kind is kind])),
        *(
            _goal(f"kill {number}, {one.kill.kind}, at {one.kill.at_s:.0f} s: stack works again", one.works_s)
            for number, one in enumerate(recoveries, start=1)
        ),
        Row.of("recoveries within the goal", sum(r.works_s <= GOAL_S for r in recoveries), "", goal=len(recoveries)),
        Row.of(
            "services started again that nobody had killed", seen.restarts - asked, "", goal=0, lower_is_better=True
        ),
        Row.of("dead letters", seen.signs.dead, "messages", goal=0, lower_is_better=True),
        Row.of("training groups produced", accounts.produced, "groups"),
        Row.of("training groups trained", accounts.trained, "groups"),
        *(Row.of(f"  dropped, {reason}", n, "groups") for reason, n in sorted(accounts.dropped.items())),
        *(Row.of(name, float(n), "", goal=0, lower_is_better=True) for name, n in accounts.faults.items()),
        Row.of("load average over 15 minutes, other work on the machine included", seen.load_average, ""),
        Row.of("training steps", accounts.steps, "steps"),
        Row.of("trajectories received by the trainer", accounts.trajectories, "trajectories"),
        Row.of("trainer resumed", accounts.resumed, "times"),
        Row.of("weights published again", accounts.republished, "times"),
        *_policy_rows(accounts),
    ]


def _goal(name: str, seconds: float) -> Row:
    return Row.of(name, min(seconds, SHOWN_S), "s", goal=GOAL_S, lower_is_better=True)


def _kind_rows(recoveries: Sequence[Recovery]) -> list[Row]:
    if not recoveries:
        return []
    name = f"{recoveries[0].kill.kind}, killed {len(recoveries)} times, worst"
    return [
        _goal(f"{name}: ready", max(one.ready_s for one in recoveries)),
        _goal(f"{name}: a session is played", max(one.session_s for one in recoveries)),
        _goal(f"{name}: a trajectory arrives", max(one.trajectory_s for one in recoveries)),
        Row.of(f"{name}: a training step ends", min(SHOWN_S, max(one.step_s for one in recoveries)), "s"),
    ]


def _policy_rows(accounts: Accounts) -> list[Row]:
    before, after = accounts.before, accounts.after
    return [
        Row.of("held-out success before", before["success"], ""),
        Row.of("  95 % interval, low", before["interval"][0], ""),
        Row.of("  95 % interval, high", before["interval"][1], ""),
        Row.of("held-out success after", after["success"], "", goal=before["success"]),
        Row.of("  95 % interval, low", after["interval"][0], ""),
        Row.of("  95 % interval, high", after["interval"][1], ""),
    ]


def main() -> None:
    """Measure and record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "quickstart.toml")
    parser.add_argument("--run-dir", type=Path, default=ROOT / "runs" / "bench-stack")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule")
    parser.add_argument("--window-s", type=float, default=WINDOW_S, help="over which the kills are spread")
    parser.add_argument("--start-s", type=float, default=1200.0, help="limit until reinforcement learning begins")
    parser.add_argument("--give-up-s", type=float, default=300.0, help="limit for the recovery from a kill")
    parser.add_argument("--end-s", type=float, default=1800.0, help="limit for the rest of the run after the last one")
    parser.add_argument("--set", nargs="+", default=OVERRIDES, metavar="KEY=VALUE", help="changes of the recipe")
    parser.add_argument("--resume", action="store_true", help="finish a run whose kills are over, and do its books")
    parser.add_argument("--compose", metavar="PROJECT", help="a compose project that trains in --run-dir already")
    parser.add_argument("--secrets", type=Path, default=ROOT / "deploy" / "compose" / "secrets", help="of that project")
    options = parser.options()
    kills = dict.fromkeys(Kind, 1) if options.smoke else KILLS
    plan = [] if options.resume else schedule(kills, options.window_s, options.seed)
    recipe = load_recipe(options.recipe)
    env = recipe.environments[0].name
    patience = Patience(options.start_s, options.give_up_s, options.end_s)
    if options.compose:
        project = ComposeProject(options.compose, options.run_dir, env, options.secrets)
        record("stack-compose", _measured(project, recipe, plan, None, patience), options)
        return
    with training(options.recipe, options.run_dir, options.set, fresh=not options.resume) as process:
        measured = _measured(LocalFleet(options.run_dir, env), recipe, plan, process, patience)
    record("stack", measured, options)


def _measured(
    stack: Stack, recipe: Recipe, plan: Sequence[Kill], process: "subprocess.Popen[bytes] | None", patience: Patience
) -> list[Row]:
    seen = uvloop.run(ordeal(stack, recipe, plan, process, patience))
    return rows(seen, Accounts.of(stack.run_dir, seen.signs.produced))


if __name__ == "__main__":
    main()
