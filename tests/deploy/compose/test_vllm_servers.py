"""The profile `gpu` on processors: vLLM's own server beside a light rollout, trained by the trainer of that profile.

Only what needs a GPU is changed: the images are those for CPUs, the reservations are gone, nothing is compiled.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from gymfleet_cli.recipes import load_with_overrides, to_toml

from tests.deploy.compose.stack import COMPOSE_FILE, Stack, report, until
from tests.deploy.compose.test_training import trainer_output
from tests.fixtures.paths import ROOT

RUN_S: Final = 900.0
NAME: Final = "servers"
SHORT: Final = (
    "stages.reinforce.steps=1",
    "stages.reinforce.groups_per_step=8",
    "stages.sft.epochs=4",
    "stages.before.num_tasks=20",
    "stages.after.num_tasks=20",
    "stages.reinforce.updates_per_step=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def servers(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """The same project with the services of the profile, all of them started."""
    directory = tmp_path_factory.mktemp("servers")
    recipes = directory / "recipes"
    recipes.mkdir()
    recipe = load_with_overrides(ROOT / "recipes/quickstart.toml", SHORT)
    (recipes / f"{NAME}.toml").write_text(to_toml(recipe), encoding="utf-8")
    for path in (directory, recipes, *recipes.iterdir()):  # read by the containers' user
        path.chmod(0o755)
    file = directory / "docker-compose.yml"
    file.write_text(yaml.safe_dump(on_processors(COMPOSE_FILE)), encoding="utf-8")
    settings = {
        **stack.settings,
        "COMPOSE_PROFILES": "babyai,gpu",
        "GYMFLEET_RECIPE": NAME,
        "GYMFLEET_RECIPES": str(recipes),
        "GYMFLEET_MODEL": f"/runs/{NAME}/model-init",
    }
    servers = replace(stack, settings=settings, files=(file,))
    servers.take_down()
    servers.compose("up", "--detach", "--no-build", timeout_s=400)
    return servers


def on_processors(path: Path) -> dict[str, Any]:
    """The compose file, with the services of `gpu` in the images for CPUs."""
    document: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    for service in document["services"].values():
        service.pop("deploy", None)
        service.pop("build", None)
        service["image"] = service["image"].replace("-cuda", "-cpu")
    vllm = document["services"]["vllm-gpu"]
    vllm["command"] += ["--enforce-eager", "--kv-cache-memory-bytes", str(512 * 2**20)]
    vllm["environment"] |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",  # there is no compiler in the image
    }  # fmt: skip
    return document


@pytest.mark.timeout(RUN_S + 500)
def test_a_recipe_is_run_on_vllms_own_server(servers: Stack) -> None:
    (trainer,) = servers.containers("trainer-gpu")

    def over() -> bool:
        state = servers.inspect(trainer)["State"]
        said = ("logs", "--no-color", "--tail", "40", "trainer-gpu", "rollout-gpu", "vllm-gpu")
        assert state["Running"] or state["ExitCode"] == 0, servers.compose(*said)
        return not state["Running"]

    took_s = until("the run's end", over, RUN_S)

    summary: dict[str, Any] = json.loads(trainer_output(servers, "trainer-gpu", "cat", f"/runs/{NAME}/summary.json"))
    report(
        f"profile gpu on processors took {took_s:.0f} s: success {summary['success_before']:.2f} -> "
        f"{summary['success_after']:.2f}, parity {summary['parity_mean_abs']:.2g}"
    )
    assert summary["groups"]["trained"] == 8
    assert summary["last_policy_version"] >= 2
    assert summary["parity_mean_abs"] < 0.001, "what vLLM's server samples is what the trainer computes"
    assert servers.published().keys() == {"env_gateway", "rollout-gpu"}, "vLLM is reached by its rollout alone"
