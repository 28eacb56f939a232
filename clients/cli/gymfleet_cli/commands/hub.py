"""`gymfleet data push` and `pull`, `gymfleet models push` and `pull`: data and checkpoints on Hugging Face's hub."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from gymfleet_kit.data.reading import DataError

from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.hub import datasets, models
from gymfleet_cli.hub.repository import RemoteFile, Repository, RepoType

app = typer.Typer(help="Checkpoints on Hugging Face's hub: push, pull.", no_args_is_help=True)

_SPLIT: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_CARD: Final = "README.md"
_MOST_TOLD: Final = 5

Repo = Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME on the hub.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")]
Public = Annotated[bool, typer.Option("--public", help="Everybody may see it. Default: private.")]
Revision = Annotated[str | None, typer.Option(help="A branch, tag or commit. Default: the newest.")]
MaxBytes = Annotated[int, typer.Option(min=1, help="The most that is fetched.")]


def push_data(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Records: a .jsonl, .json or .parquet file.")],
    repo: Repo,
    split: Annotated[str, typer.Option(help="What the table is called there.")] = "train",
    public: Public = False,
) -> None:
    """Put records on the hub as a table, with a card that lets `datasets.load_dataset` find it."""
    if not file.is_file():
        raise UsageProblem(f"there is no file {file}")
    if _SPLIT.fullmatch(split) is None:
        raise UsageProblem(f"--split {split}: give a name of lower-case letters, digits and _")
    repository = Repository(repo, "dataset")
    with TemporaryDirectory(prefix="gymfleet-") as name:
        table = Path(name) / f"{split}.parquet"
        try:
            counts = datasets.write_table(file, table)
        except DataError as error:
            raise CliError(str(error)) from None
        except ModuleNotFoundError as error:
            raise CliError(f"this needs {error.name}: install gymfleet[hub]") from None
        others = datasets.other_splits(repository.paths())
        card = datasets.card(repo.partition("/")[2], split, counts, others)
        files: dict[str, Path | bytes] = {f"data/{split}.parquet": table, _CARD: card.encode()}
        commit = repository.push(files, private=not public, message=f"{counts.num_records} records of {split}")
    out.print(
        plain(f"{repository.url}: {counts.num_records} {counts.form} as {split}, commit {commit}"), soft_wrap=True
    )


def pull_data(repo: Repo, directory: Directory, revision: Revision = None, max_bytes: MaxBytes = 10 * 2**30) -> None:
    """Fetch the table and line files of a data set, and nothing else."""
    _pull(repo, "dataset", directory, revision, max_bytes, lambda path: path.endswith(datasets.DATA_SUFFIXES))


@app.command("push")
def push_model(
    target: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, checkpoint or model directory.")],
    repo: Repo,
    public: Public = False,
) -> None:
    """Put the last model of a run on the hub: config, tokenizer and safetensors."""
    files, left_out = models.model_files(target)
    repository = Repository(repo, "model")
    content: dict[str, Path | bytes] = {path.name: path for path in files}
    content[_CARD] = models.card(repo.partition("/")[2], files).encode()
    commit = repository.push(content, private=not public, message=f"model of {target.resolve().name}")
    _tell_left_out([path.name for path in left_out])
    out.print(plain(f"{repository.url}: {len(files)} files, commit {commit}"), soft_wrap=True)


@app.command("pull")
def pull_model(repo: Repo, directory: Directory, revision: Revision = None, max_bytes: MaxBytes = 200 * 2**30) -> None:
    """Fetch a model: config, tokenizer and safetensors. Pickles and code are not fetched."""
    _pull(repo, "model", directory, revision, max_bytes, models.is_wanted, models.check)


def _pull(
    repo: str,
    kind: RepoType,
    directory: Path,
    revision: str | None,
    max_bytes: int,
    wants: Callable[[str], bool],
    check: Callable[[Path], None] = lambda _: None,
) -> None:
    if directory.exists():
        raise UsageProblem(f"{directory} is there already; choose another directory")
    repository = Repository(repo, kind)
    commit, there = repository.files(revision)
    wanted = [one for one in there if wants(one.path)]
    _require(repository, kind, wanted)
    repository.fetch(wanted, commit, directory, max_bytes=max_bytes, check=check)
    _tell_left_out([one.path for one in there if one not in wanted])
    size = sum(one.size_bytes for one in wanted)
    out.print(plain(f"{directory}: {len(wanted)} files, {size:,} bytes, commit {commit}"), soft_wrap=True)


def _require(repository: Repository, kind: RepoType, wanted: Sequence[RemoteFile]) -> None:
    """Raise `CliError` if there is nothing to fetch."""
    if kind == "dataset" and not wanted:
        raise CliError(f"{repository.url} has no file of {', '.join(datasets.DATA_SUFFIXES)}")
    if kind == "model" and not any(one.path.endswith(models.WEIGHTS) for one in wanted):
        raise CliError(f"{repository.url} has no {models.WEIGHTS} file; weights in pickles are not fetched")


def _tell_left_out(paths: Sequence[str]) -> None:
    if paths:
        told = ", ".join(paths[:_MOST_TOLD]) + (f" and {more} more" if (more := len(paths) - _MOST_TOLD) > 0 else "")
        err.print(plain(f"left out: {told}", "dim"), soft_wrap=True)
