"""`gymfleet scale`: print how many replicas of each service a recipe needs, for stacks that run in containers."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from gymfleet_contracts.recipe import Recipe

from gymfleet_cli.console import out
from gymfleet_cli.recipes import load_with_overrides
from gymfleet_cli.supervisor.plan import env_server_name


class Form(StrEnum):
    """The form in which the numbers are printed."""

    COMPOSE = "compose"
    JSON = "json"


def scale(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a TOML file.")],
    form: Annotated[Form, typer.Option("--format", help="Arguments of docker compose up, or JSON.")] = Form.COMPOSE,
) -> None:
    """Print how many replicas of each service a recipe needs: `docker compose up $(gymfleet scale RECIPE)`."""
    wanted = replicas(load_with_overrides(recipe, ()))
    text = json.dumps(wanted) if form is Form.JSON else " ".join(f"--scale {name}={n}" for name, n in wanted.items())
    out.print(text, soft_wrap=True, highlight=False, markup=False)


def replicas(recipe: Recipe) -> dict[str, int]:
    """Return the numbers of replicas, by the stack's service names."""
    wanted = recipe.scale
    return {
        **{env_server_name(env.name): wanted.env_servers for env in recipe.environments},
        "env_gateway": wanted.gateways,
        "rollout": wanted.rollouts,
        "reward": wanted.rewards,
    }
