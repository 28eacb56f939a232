"""`gymfleet envs new`: a folder with a complete environment, to be changed into another."""

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from gymfleet_cli.console import CliError, UsageProblem, out, plain

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_FILES: Final = {"environment.py": "environment.py", "test_environment.py": "test_{name}.py", "README.md": "README.md"}


def new(
    name: Annotated[str, typer.Argument(help="Name of the environment: a-z, 0-9 and _, a letter first.")],
    directory: Annotated[Path, typer.Option("--in", help="Where the folder is made.")] = Path(),
) -> None:
    """Make the folder NAME with a small environment that runs, its test and its README."""
    if _NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise UsageProblem(f"{name!r}: a name is 1 to 32 of a-z, 0-9 and _, begins with a letter, and is no keyword")
    folder = directory / name
    class_name = "".join(part.capitalize() for part in name.split("_"))
    templates = files("gymfleet_cli") / "templates" / "environment"
    try:
        folder.mkdir(parents=True)
        for template, target in _FILES.items():
            text = (templates / f"{template}.txt").read_text(encoding="utf-8")
            text = text.replace("CLASS_NAME", class_name).replace("ENV_NAME", name)
            (folder / target.format(name=name)).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise CliError(f"{folder} exists already; choose another name, or another place with --in") from None
    except OSError as error:
        raise CliError(f"{folder} could not be made: {error.strerror}") from None
    source = folder / "environment.py"
    out.print(plain(f"made {folder}; play it with `gymfleet envs play {source}`"), soft_wrap=True)
