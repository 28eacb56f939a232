"""A light service's image stays light: importing its app pulls in neither torch nor vLLM."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "transformers", "tokenizers", "minigrid", "pyarrow", "pandas", "ray")
FOR_PEOPLE = ("typer", "rich")


@pytest.mark.parametrize(
    "module",
    [
        "gymfleet_contracts.recipe",
        "gymfleet_kit.app",
        "gymfleet_env_server.main",
        "gymfleet_envs.dataset.environment",
        "gymfleet_envs.textcraft.environment",
        "gymfleet_envs.maze.environment",
        "gymfleet_envs.wordle.environment",
        "gymfleet_envs.db.environment",
        "gymfleet_envs.sql.environment",
        "gymfleet_envs.kg.environment",
        "gymfleet_envs.os.environment",
        "gymfleet_envs.webshop.environment",
        "gymfleet_envs.sciworld.environment",
        "gymfleet_envs.alfworld.environment",
        "gymfleet_envs.card_game.environment",
        "gymfleet_envs.function_calling.environment",
        "gymfleet_envs.lateral_thinking.environment",
        "gymfleet_envs.searchqa.environment",
        "gymfleet_envs.reasoning_gym.environment",
        "gymfleet_envs.textarena.environment",
        "gymfleet_envs.textworld.environment",
        "gymfleet_envs.tau_airline.environment",
        "gymfleet_envs.tau_retail.environment",
        "gymfleet_env_gateway.main",
        "gymfleet_reward.main",
        "gymfleet_cli.main",
    ],
)
def test_importing_a_light_module_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print([name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module",
    [
        "gymfleet_client",
        "gymfleet_client.gymnasium_env",
        "gymfleet_conformance",
        "gymfleet_env_server.main",
        "gymfleet_env_gateway.main",
        "gymfleet_reward.main",
        "gymfleet_rollout.process",
    ],
)
def test_what_people_read_is_the_command_lines_alone(module: str) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({FOR_PEOPLE!r}))  # an import of these fails now, but httpx' own does without
import {module}
print([name for name in {HEAVY[:2]!r} if name in sys.modules])
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize(
    ("module", "spared"), [("gymfleet_cli.main", ["jinja2"]), ("gymfleet_client", ["jinja2", "psutil"])]
)
def test_what_only_some_commands_need_is_not_imported_at_the_start(module: str, spared: list[str]) -> None:
    code = f"import {module}, sys; print([name for name in {spared!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize(
    "module", ["gymfleet_env_server.main", "gymfleet_envs.sql.environment", "gymfleet_envs.textcraft.environment"]
)
def test_sql_is_parsed_where_mysql_is_spoken_alone(module: str) -> None:
    code = f"import {module}, sys; print('sqlglot' in sys.modules)"  # a tenth of a second, and 18 MB

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_the_command_says_what_it_lacks() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom gymfleet_cli.entry import main; main()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (
        1, "error: the gymfleet command needs its extra: pip install 'gymfleet[cli]'\n",
    )  # fmt: skip


def test_importing_the_trainers_settings_does_not_start_torch() -> None:
    code = "import gymfleet_trainer.settings, gymfleet_rollout.settings, sys; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.strip() == "False", done.stderr
