"""Options of environments: the user's values, checked by the environments before anything starts."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import typer
from pydantic import JsonValue, TypeAdapter, ValidationError

from gymfleet_cli.console import UsageProblem
from gymfleet_cli.supervisor.plan import OPTIONS_VARIABLE
from gymfleet_cli.supervisor.service import console_script, reason_of

OptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="Set an option of an environment: ENV.KEY=VALUE, such as db.backend=mariadb. Repeat for several.",
    ),
]
Options = dict[str, dict[str, JsonValue]]
"""Values by key, by environment."""
_OPTIONS: Final = TypeAdapter(Options)


def one_option(given: str, *, name: str = "--option", example: str = "KEY=VALUE") -> tuple[str, JsonValue]:
    """Read KEY=VALUE; the value is read as JSON if possible, else as text. Raises `UsageProblem`."""
    key, mark, text = given.partition("=")
    if not (key and mark):
        raise UsageProblem(f"{name} {given}: give {example}")
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        value = text
    return key, value


def options_of(values: Iterable[str], *, example: str = "db.backend=mariadb") -> Options:
    """Read several NAME.KEY=VALUE options, by the name of an environment or plug-in. Raises `UsageProblem`."""
    found: Options = {}
    for given in values:
        place, value = one_option(given)
        env, dot, key = place.partition(".")
        if not (env and dot and key):
            raise UsageProblem(f"--option {given}: give NAME.KEY=VALUE, such as {example}")
        found.setdefault(env, {})[key] = value
    return found


def served_options(envs: Sequence[str], given: Mapping[str, Mapping[str, JsonValue]]) -> dict[str, Options]:
    """Return the options for the server of each of `envs`.

    Given options take precedence over those in `GYMFLEET_ENV_OPTIONS`. The environments check the options themselves,
    in a separate process. Raises `UsageProblem` with the options that exist.
    """
    merged = _inherited()
    for env, values in given.items():
        if values:
            merged[env] = {**merged.get(env, {}), **values}
    if not merged:
        return {}
    names = _checked(envs, merged)
    if unknown := sorted(set(merged) - set(names.values())):
        served = ", ".join(names.values())
        raise UsageProblem(f"options are given for {', '.join(unknown)}, but served are {served}")
    return {env: {name: merged[name]} for env, name in names.items() if name in merged}


def _inherited() -> Options:
    try:
        return _OPTIONS.validate_json(os.environ.get(OPTIONS_VARIABLE, "{}"))
    except ValidationError:
        raise UsageProblem(f'{OPTIONS_VARIABLE} is no JSON of the form {{"db": {{"backend": "mariadb"}}}}') from None


def _checked(envs: Sequence[str], options: Options) -> dict[str, str]:
    """Return the environments' own names, by their names on the command line."""
    done = subprocess.run(
        [console_script("gymfleet-env-server"), "--check-options", *envs],
        capture_output=True, text=True, check=False, env={**os.environ, OPTIONS_VARIABLE: json.dumps(options)},
    )  # fmt: skip
    if done.returncode:
        raise UsageProblem(reason_of("gymfleet-env-server", done))
    names: dict[str, str] = json.loads(done.stdout)
    return names
