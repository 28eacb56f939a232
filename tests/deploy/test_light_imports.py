"""A light service's image stays light: importing its app pulls in neither torch nor vLLM."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "transformers", "tokenizers", "minigrid", "pyarrow", "pandas", "ray")


@pytest.mark.parametrize(
    "module",
    [
        "gymfleet_contracts.recipe",
        "gymfleet_kit.app",
        "gymfleet_envs.runtime.main",
        "gymfleet_envs.textcraft.environment",
        "gymfleet_envs.maze.environment",
        "gymfleet_envs.wordle.environment",
        "gymfleet_envs.db.environment",
        "gymfleet_envs.sql.environment",
        "gymfleet_envs.os.environment",
        "gymfleet_envs.webshop.environment",
        "gymfleet_envs.sciworld.environment",
        "gymfleet_envs.alfworld.environment",
        "gymfleet_env_gateway.main",
        "gymfleet_reward.main",
        "gymfleet_client.cli.main",
    ],
)
def test_importing_a_light_module_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print([name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_the_trainers_settings_does_not_start_torch() -> None:
    code = "import gymfleet_trainer.settings, gymfleet_rollout.settings, sys; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.strip() == "False", done.stderr
