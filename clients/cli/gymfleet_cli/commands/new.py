"""`gymfleet new KIND NAME`: make a working plug-in and its test, as a starting point for another."""

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from gymfleet_cli.console import CliError, UsageProblem, out, plain
from gymfleet_cli.plugins import KINDS

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


def new(
    kind: Annotated[str, typer.Argument(help=f"What it is: {', '.join(KINDS)}.")],
    name: Annotated[str, typer.Argument(help="Its name: a-z, 0-9 and _, a letter first.")],
    directory: Annotated[Path, typer.Option("--in", help="Where the files are made.")] = Path(),
) -> None:
    """Write NAME.py, a working plug-in, and test_NAME.py."""
    if kind not in KINDS:
        raise UsageProblem(f"{kind!r} is no kind of plug-in; known: {', '.join(KINDS)}")
    if _NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise UsageProblem(f"{name!r}: a name is 1 to 32 of a-z, 0-9 and _, begins with a letter, and is no keyword")
    templates = files("gymfleet_cli") / "templates" / kind
    made = {
        directory / f"{name}.py": templates / "plugin.py.txt",
        directory / f"test_{name}.py": templates / "test.py.txt",
    }
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for file in made:
        if file.exists():
            raise CliError(f"{file} exists already; choose another name, or another place with --in")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, template in made.items():
            text = template.read_text(encoding="utf-8")
            text = text.replace("CLASS_NAME", class_name).replace("PLUGIN_NAME", name)
            with file.open("x", encoding="utf-8") as target:
                target.write(text)
    except OSError as error:
        raise CliError(f"{error.filename} could not be written: {error.strerror}") from None
    plugin, test = made
    out.print(plain(f"made {plugin} and {test}; try it with `gymfleet check {plugin}`"), soft_wrap=True)
