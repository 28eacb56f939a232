"""`gymfleet trajectories`: the recorded episodes of a run, as a table or one by one."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from gymfleet_contracts.trajectory import AGENT, ScoredTrajectory, Turn
from gymfleet_kit.run_events import EventsDamaged, find_episode
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gymfleet_cli.commands.trees import show_tree
from gymfleet_cli.console import CliError, UsageProblem, out, plain
from gymfleet_cli.run_directory import RunDataError, RunFiles

app = typer.Typer(help="Read the recorded episodes of a run.", no_args_is_help=True)

RunDir = Annotated[Path, typer.Argument(help="Run directory.")]
StageOption = Annotated[str | None, typer.Option(help="Only episodes of this stage, such as reinforce or after.")]
Failed = Annotated[bool, typer.Option("--failed", help="Only episodes that did not solve their task.")]
Success = Annotated[bool, typer.Option("--success", help="Only episodes that solved their task.")]


@app.command("list")
def list_trajectories(
    run_dir: RunDir,
    stage: StageOption = None,
    failed: Failed = False,
    success: Success = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show at most.")] = 50,
) -> None:
    """List episodes in a table."""
    table = Table()
    for column in ("stage", "id", "task", "status", "solved", "turns", "tokens", "reward"):
        table.add_column(column, overflow="fold")
    chosen = _select(run_dir, stage, failed, success)
    for name, scored in islice(chosen, limit):
        table.add_row(*_row(name, scored))
    if not table.row_count:
        raise CliError(f"{run_dir} has no such episodes")
    out.print(table)
    if next(chosen, None) is not None:
        out.print(f"more than {limit} episodes; --limit shows more")


@app.command()
def show(
    run_dir: RunDir,
    trajectory_id: Annotated[str | None, typer.Argument(help="Trajectory id, or its end. Default: the first.")] = None,
    stage: StageOption = None,
    failed: Failed = False,
    success: Success = False,
) -> None:
    """Show one episode, turn by turn."""
    if trajectory_id is not None and (found := _by_id(run_dir, trajectory_id, stage)) is not None:
        _print_episode(*found)
        return
    for name, scored in _select(run_dir, stage, failed, success):
        if trajectory_id is None or scored.trajectory.trajectory_id.endswith(trajectory_id):
            _print_episode(name, scored)
            return
    wanted = "such episodes" if trajectory_id is None else f"trajectory {trajectory_id!r}"
    raise CliError(f"{run_dir} has no {wanted}; `gymfleet trajectories list` shows them")


app.command("tree")(show_tree)


def _by_id(run_dir: Path, ending: str, stage: str | None) -> tuple[str, ScoredTrajectory] | None:
    """Return an episode and its stage, without reading those before it; None if the run's events do not list it."""
    try:
        found = find_episode(RunFiles.open(run_dir).path, ending)
    except RunDataError as error:
        raise UsageProblem(str(error)) from None
    except EventsDamaged:
        return None  # the episodes themselves may be sound
    name = None if found is None else Path(found[0]).stem
    return (name, found[1]) if found is not None and name is not None and stage in (None, name) else None


def _select(run_dir: Path, stage: str | None, failed: bool, success: bool) -> Iterator[tuple[str, ScoredTrajectory]]:
    if failed and success:
        raise UsageProblem("give --failed or --success, not both")
    try:
        files = RunFiles.open(run_dir)
        recorded = files.recorded()
        if stage is not None and stage not in recorded:
            raise UsageProblem(f"--stage {stage!r}: this run has {', '.join(recorded) or 'no episodes yet'}")
        for name in recorded if stage is None else [stage]:
            for scored in files.trajectories(name):
                if not ((failed and scored.trajectory.success) or (success and not scored.trajectory.success)):
                    yield name, scored
    except RunDataError as error:
        raise UsageProblem(str(error)) from None


def _row(stage: str, scored: ScoredTrajectory) -> list[str | Text]:
    episode = scored.trajectory
    group_and_sample = episode.trajectory_id.partition("/")[2]
    return [
        stage,
        plain(group_and_sample),
        plain(episode.task.task_id),
        episode.status.value,
        Text("yes", style="green") if episode.success else Text("no", style="red"),
        str(len(episode.turns)),
        str(episode.num_response_tokens),
        "-" if scored.reward is None else f"{scored.reward.total:.3g}",
    ]


def _print_episode(stage: str, scored: ScoredTrajectory) -> None:
    episode = scored.trajectory
    out.print(plain(episode.trajectory_id, "bold"), soft_wrap=True)
    policy = f"policy version {episode.policy.version_min}"
    if episode.policy.version_max != episode.policy.version_min:
        policy += f" to {episode.policy.version_max}"
    author = "expert" if episode.by_expert else policy
    task = f"{episode.task.env} {episode.task.task_id}"
    if episode.seat is not None:
        task += f" as {episode.seat}"
    out.print(plain(f"{stage} · {task} · {author} · {episode.status.value}"))
    for number, turn in enumerate(episode.turns):
        title = f"turn {number + 1}" if turn.role == AGENT else f"turn {number + 1}, {turn.role}"
        out.print(Panel(_turn(turn), title=title, title_align="left"))
    if episode.final_observation:
        out.print(Panel(plain(episode.final_observation), title="at the end", title_align="left"))
    outcome = Text("solved", style="green") if episode.success else Text("not solved", style="red")
    out.print(Text.assemble(outcome, f" · score {episode.score:.3g} · {episode.finish_reason.value}"))
    if scored.reward is not None:
        terms = " + ".join(
            f"{name} {component.value:.3g}" for name, component in sorted(scored.reward.components.items())
        )
        out.print(plain(f"reward {scored.reward.total:.3g} = {terms or '0'}"))
    if scored.reward_error:
        out.print(plain(f"no reward: {scored.reward_error}", "red"))
    if episode.error:
        out.print(plain(episode.error, "red"))


def _turn(turn: Turn) -> Group:
    notes = []
    if turn.context == "replaced":
        notes.append("the context before this turn was replaced")
    if not turn.format_valid:
        notes.append("the reply does not follow the format")
    if not turn.action_valid:
        notes.append("the environment did not understand the action")
    parts = [plain(turn.observation.rstrip(), "dim"), plain(turn.text.strip() or "(empty reply)")]
    if notes:
        parts.append(Text("; ".join(notes), style="yellow"))
    return Group(*parts)
