"""`gymfleet trajectories tree`: show the search of a group that was played as one."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from gymfleet_contracts.search import SearchNode, SearchTree
from gymfleet_contracts.trajectory import AGENT
from rich.text import Text
from rich.tree import Tree

from gymfleet_cli.console import CliError, UsageProblem, out, plain
from gymfleet_cli.run_directory import RunDataError, RunFiles


def show_tree(
    run_dir: Annotated[Path, typer.Argument(help="Run directory.")],
    group_id: Annotated[str | None, typer.Argument(help="Group id, or its end. Default: the first.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only searches of this stage, such as reinforce.")] = None,
) -> None:
    """Show one search: every node that its strategy reached, including those it rejected."""
    for tree in _select(run_dir, stage):
        if group_id is None or tree.group_id.endswith(group_id):
            _print(tree)
            return
    wanted = "searches" if group_id is None else f"search of a group {group_id!r}"
    raise CliError(f"{run_dir} has no {wanted}; strategies that play a group together leave them")


def _select(run_dir: Path, stage: str | None) -> Iterator[SearchTree]:
    try:
        files = RunFiles.open(run_dir)
        searched = files.searched()
        if stage is not None and stage not in searched:
            raise UsageProblem(f"--stage {stage!r}: this run has searches of {', '.join(searched) or 'no stage yet'}")
        for name in searched if stage is None else [stage]:
            yield from files.trees(name)
    except RunDataError as error:
        raise UsageProblem(str(error)) from None


def _print(tree: SearchTree) -> None:
    out.print(plain(f"{tree.run_id}/{tree.group_id}", "bold"), soft_wrap=True)
    out.print(plain(f"{tree.task.env} {tree.task.task_id} · {tree.strategy} · attempt {tree.attempt}"))
    children: defaultdict[str | None, list[SearchNode]] = defaultdict(list)
    for node in tree.nodes:
        children[node.parent].append(node)
    drawn: dict[str | None, Tree] = {}
    for node in tree.nodes:
        label = _label(node, rejected=not children[node.id] and not node.samples)
        drawn[node.id] = Tree(label) if node.parent is None else drawn[node.parent].add(label)
    for root in children[None]:
        out.print(drawn[root.id])
    if tree.num_left_out:
        out.print(f"and {tree.num_left_out} nodes of which there is no record")
    spent = tree.spent
    out.print(
        f"spent {spent.env_steps} steps, {spent.model_calls} replies, {spent.tokens} tokens, "
        f"{spent.evaluations} evaluations, {spent.seconds:.1f} s"
    )


def _label(node: SearchNode, *, rejected: bool) -> Text:
    action = "" if node.parent is None else " ".join((node.action or "no action").split())
    role = "" if node.role == AGENT else f"({node.role})"
    notes = [f"score {node.score:.3g}"]
    notes += [] if node.value is None else [f"value {node.value:.3g}"]
    notes += [] if node.visits is None else [f"visits {node.visits}"]
    notes += [] if node.ended is None else [node.ended.value]
    notes += [f"sample {', '.join(map(str, node.samples))}"] if node.samples else []
    notes += ["selected"] if node.selected else []
    words = [word for word in (node.id, role, action) if word]
    return Text.assemble(plain(" ".join(words), "dim" if rejected else ""), plain(f"  {' · '.join(notes)}", "cyan"))
