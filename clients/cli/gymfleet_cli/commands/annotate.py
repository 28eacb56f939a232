"""`gymfleet data annotate`: score stored episodes with any components."""

from pathlib import Path
from typing import Annotated

import typer

from gymfleet_cli.annotating.annotation import Annotation
from gymfleet_cli.annotating.rewards import rewards_of
from gymfleet_cli.annotating.scoring import RewardApi
from gymfleet_cli.annotating.service import reward_service
from gymfleet_cli.console import UsageProblem


def annotate(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Episodes: a .jsonl, .json or .parquet file.")],
    file: Annotated[Path, typer.Argument(metavar="OUT", help="The .jsonl file, which may have some of them already.")],
    component: Annotated[
        list[str] | None,
        typer.Option(help="A term of the reward: a name, package.module:Class or a .py file. Repeat for several."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="An option of a component, as length.weight=0.5. Repeat.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="Instead: score as the [reward] tables of a recipe say.")] = None,
    reward: Annotated[str | None, typer.Option(help="A reward service. Default: one of the command's own.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=1024, help="Episodes of one request; groups stay whole.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at once.")] = 2,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="For one request.")] = 600.0,
) -> None:
    """Score stored episodes, failed ones too, and keep them with their rewards; those in OUT are not scored again."""
    if not source.is_file():
        raise UsageProblem(f"there is no file {source}")
    if file.suffix != ".jsonl":
        raise UsageProblem(f"{file}: OUT is a .jsonl file, which grows; `gymfleet data convert` makes a table of it")
    rewards = rewards_of(component or (), option or (), recipe)
    annotation = Annotation(source, rewards, batch_size=batch, concurrency=concurrency)
    with (
        reward_service(reward, rewards.references()) as (address, key),
        RewardApi(address, key, timeout_s=timeout_s) as api,
    ):
        annotation.run(file, api)
