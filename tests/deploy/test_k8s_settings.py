"""What a pod is given is what its process asks for: settings, secrets, arguments, ports, addresses."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
import yaml
from gymfleet_contracts.recipe import initial_model, load_recipe
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_kit.settings import ServiceSettings
from gymfleet_reward.settings import RewardSettings
from gymfleet_rollout.recipe import settings_for
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_trainer.settings import TrainerSettings

from tests.deploy.k8s_manifests import (
    FLEETS,
    K8S,
    KUSTOMIZE,
    OVERLAYS,
    Workload,
    arguments_of,
    environment_of,
    every_workload,
    mounted_secrets,
    named,
    needs_kustomize,
    of_kind,
    render,
    secrets,
    selects,
    workloads,
)
from tests.fixtures.families import FAMILIES
from tests.fixtures.paths import ROOT

pytestmark = needs_kustomize

SETTINGS: Final[dict[str, type[ServiceSettings]]] = {
    "env-gateway": GatewaySettings,
    "environment": EnvServerSettings,
    "reward": RewardSettings,
    "rollout": RolloutSettings,
    "trainer": TrainerSettings,
}
ALL: Final = [(overlay, workload.name) for overlay, workload in every_workload(*OVERLAYS)]
WITHOUT: Final = {"redis", "trainer-gpu"}
"""Redis is not ours; Ray's workers get all they need from the head."""


def find(overlay: str, name: str) -> Workload:
    (found,) = (workload for workload in workloads(overlay) if workload.name == name)
    return found


def give(
    environment: dict[str, str], files: dict[str, str], secrets_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process gets what the container would; files lie as the kubelet lays them, behind two links."""
    for name in [name for name in os.environ if name.startswith("GYMFLEET_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    content = secrets_dir / "..2026_01_01_00_00_00.1"
    content.mkdir(parents=True)
    (secrets_dir / "..data").symlink_to(content.name)
    for file, text in files.items():
        (content / file).write_text(text)
        (secrets_dir / file).symlink_to(Path("..data") / file)
    monkeypatch.setenv("GYMFLEET_SECRETS_DIR", str(secrets_dir))


def settings_of(overlay: str, workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """Its settings, as its main container reads them."""
    (container, *_) = workload.pod["containers"]
    manifests = render(overlay)
    give(environment_of(container, manifests), mounted_secrets(workload), tmp_path / "secrets", monkeypatch)
    kind = SETTINGS[workload.component]
    if kind is RolloutSettings:
        _, recipe, _, run_dir = arguments_of(container, manifests)
        kind = settings_for(load_recipe(ROOT / recipe.lstrip("/")), Path(run_dir))
    return kind()


@pytest.mark.parametrize(("overlay", "name"), [pair for pair in ALL if pair[1] not in WITHOUT])
def test_settings_are_constructed_and_listen_where_the_pod_says(
    overlay: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = find(overlay, name)

    settings = settings_of(overlay, workload, tmp_path, monkeypatch)

    listens = {settings.model_dump()["port"]}
    if isinstance(settings, RolloutSettings):
        listens.add(settings.control_port)
    assert listens == set(workload.ports.values()) - {8265}, "8265 is Ray's own"
    assert settings.model_dump()["host"] == "0.0.0.0"  # noqa: S104 - in a pod


def test_ray_workers_are_told_and_trusted_nothing() -> None:
    worker = find("prod", "trainer-gpu")

    assert mounted_secrets(worker) == {}
    assert environment_of(worker.pod["containers"][0], render("prod")).keys() == {"HF_HUB_OFFLINE"}


@pytest.mark.parametrize("overlay", FLEETS)
def test_secrets_reach_both_ends(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = {
        workload.component: settings_of(overlay, workload, tmp_path / workload.name, monkeypatch).model_dump()
        for workload in workloads(overlay)
        if workload.name not in WITHOUT
    }
    assert read["environment"]["api_key"] == read["env-gateway"]["replica_api_key"]
    keys = [read[component]["api_key"] for component in SETTINGS]
    assert len({key.get_secret_value() for key in keys}) == len(SETTINGS), "each service has a key of its own"
    key = secrets()["env-gateway"]["api-key"]

    assert read["env-gateway"]["api_key"].get_secret_value() == key
    assert read["rollout"]["gateway_api_key"].get_secret_value() == key
    assert read["trainer"]["gateway_api_key"].get_secret_value() == key
    assert read["trainer"]["rollout_api_key"] == read["rollout"]["api_key"]
    assert len({str(settings["redis_url"]) for settings in read.values() if "redis_url" in settings}) == 1


@pytest.mark.parametrize("overlay", FLEETS)
def test_addresses_are_services_and_their_ports(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        (service["metadata"]["name"], port["port"])
        for service in of_kind(render(overlay), "Service")
        for port in service["spec"]["ports"]
    }
    trainers = [workload for workload in workloads(overlay) if workload.component == "trainer"]
    gateway = settings_of(overlay, find(overlay, "env-gateway"), tmp_path / "gateway", monkeypatch)
    rollout = settings_of(overlay, find(overlay, "rollout"), tmp_path / "rollout", monkeypatch)
    trainer = settings_of(overlay, trainers[0], tmp_path / "trainer", monkeypatch)
    assert isinstance(gateway, GatewaySettings)
    assert isinstance(rollout, RolloutSettings)
    assert isinstance(trainer, TrainerSettings)

    urls = [str(url) for url in gateway.discover if ".gymfleet-sandbox" not in str(url)]
    urls += [str(rollout.gateway_url), trainer.gateway_url, trainer.rollout_url]
    if of_kind(render(overlay), "StatefulSet"):
        urls.append(str(gateway.redis_url))
    addresses = {(urlsplit(url).hostname, urlsplit(url).port) for url in urls}

    assert addresses <= known
    assert urlsplit(trainer.rollout_url).port == rollout.control_port
    environments = {workload.name for workload in workloads(overlay) if workload.component == "environment"}
    assert {urlsplit(url).hostname for url in urls if "//env-" in url} - {"env-gateway"} == environments


def test_whom_the_gateway_seeks_in_the_sandbox_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (service,) = of_kind(render("sandbox"), "Service")
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}"

    for overlay in ("gpu", "prod"):
        gateway = settings_of(overlay, find(overlay, "env-gateway"), tmp_path / overlay, monkeypatch)
        assert isinstance(gateway, GatewaySettings)
        assert f"http://{name}:{service['spec']['ports'][0]['port']}/" in {str(url) for url in gateway.discover}


def test_every_environment_can_be_served() -> None:
    served = {
        workload.labels["app.kubernetes.io/instance"]
        for overlay in ("gpu", "sandbox")
        for workload in workloads(overlay)
        if workload.component == "environment"
    }

    assert served == set(FAMILIES)


@pytest.mark.parametrize(("overlay", "name"), ALL)
def test_service_ports_lead_to_container_ports(overlay: str, name: str) -> None:
    workload = find(overlay, name)
    for service in of_kind(render(overlay), "Service"):
        if selects({"matchLabels": service["spec"]["selector"]}, workload.labels):
            for port in service["spec"]["ports"]:
                assert workload.ports[port["targetPort"]] == port["port"], "by its name and by its number alike"


@pytest.mark.parametrize("overlay", FLEETS)
def test_replicas_that_are_told_apart_have_headless_services(overlay: str) -> None:
    headless = {
        service["metadata"]["name"]
        for service in of_kind(render(overlay), "Service")
        if service["spec"].get("clusterIP") == "None" and service["spec"].get("publishNotReadyAddresses")
    }
    environments = {workload.name for workload in workloads(overlay) if workload.component == "environment"}

    assert headless == environments | {"rollout-control"}


@pytest.mark.parametrize(("overlay", "name"), [pair for pair in ALL if "env-" in pair[1] and pair[1] != "env-gateway"])
def test_an_env_server_outlives_its_drain_and_its_start(
    overlay: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = find(overlay, name)
    settings = settings_of(overlay, workload, tmp_path, monkeypatch)
    assert isinstance(settings, EnvServerSettings)
    startup = workload.pod["containers"][0]["startupProbe"]

    assert settings.drain_s > 0
    assert workload.pod["terminationGracePeriodSeconds"] >= settings.drain_s + 20, "10 s are for running requests"
    assert startup["periodSeconds"] * startup["failureThreshold"] > settings.start_timeout_s


@pytest.mark.parametrize("overlay", FLEETS)
def test_trainer_and_rollout_run_the_same_recipe_in_the_same_place(overlay: str) -> None:
    manifests = render(overlay)
    (container, *_) = find(overlay, "rollout").pod["containers"]
    flag, recipe, run_flag, run_dir = arguments_of(container, manifests)
    assert (flag, run_flag) == ("--recipe", "--run-dir")

    if overlay == "prod":
        (job,) = of_kind(manifests, "RayJob")
        variables = environment_of(find(overlay, "trainer-head").pod["containers"][0], manifests)
        line = job["spec"]["entrypoint"]
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        build, run = line.split(" && ")
    else:
        build, run = (
            " ".join(["gymfleet-trainer", *arguments_of(container, manifests)])
            for container in find(overlay, "trainer").containers
        )

    assert build == f"gymfleet-trainer build {recipe} --run-dir {run_dir}"
    assert run == f"gymfleet-trainer run {recipe} --run-dir {run_dir}"
    assert Path(recipe).parent == Path("/recipes")
    assert Path(run_dir).parent == Path("/runs")


@pytest.mark.parametrize("overlay", ["gpu", "prod"])
def test_vllm_is_told_what_the_recipe_says(overlay: str) -> None:
    manifests = render(overlay)
    rollout, vllm = find(overlay, "rollout").pod["containers"]
    _, path, _, run_dir = arguments_of(rollout, manifests)
    recipe = load_recipe(ROOT / path.lstrip("/"))
    said = dict(argument.split("=", 1) for argument in arguments_of(vllm, manifests) if "=" in argument)

    assert said["--model"] == initial_model(recipe, Path(run_dir))
    assert said["--dtype"] == recipe.inference.dtype
    assert int(said["--max-model-len"]) == recipe.inference.max_model_len
    assert said["--host"] == "127.0.0.1"
    assert (
        environment_of(rollout, manifests)["GYMFLEET_ROLLOUT_SERVER_URLS"] == f'["http://127.0.0.1:{said["--port"]}"]'
    )
    module, _, name = said["--worker-extension-cls"].rpartition(".")
    source = (ROOT / "services/rollout" / module.replace(".", "/")).with_suffix(".py").read_text()
    assert f"class {name}" in source


def test_vllm_takes_adapters_with_the_component_for_them(tmp_path: Path) -> None:
    assert KUSTOMIZE is not None
    shutil.copytree(K8S, tmp_path / "deploy/k8s")
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")  # of which the fleet makes a config map
    overlay = tmp_path / "deploy/k8s/overlays/gpu/kustomization.yaml"
    text = overlay.read_text().replace("components/vllm\n", "components/vllm\n  - ../../components/lora\n")
    overlay.write_text(text.rstrip() + "\n      - RUN_LORA_RANK=8\n")

    built = subprocess.run([*KUSTOMIZE, str(overlay.parent)], capture_output=True, text=True, check=True)
    manifests = tuple(yaml.safe_load_all(built.stdout))
    vllm = named(manifests, "Deployment", "rollout")["spec"]["template"]["spec"]["containers"][1]

    assert {"--enable-lora", "--max-lora-rank=8", "--max-loras=2"} <= set(arguments_of(vllm, manifests))
    assert {"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "1"} in vllm["env"]


def test_ray_is_the_version_that_is_pinned() -> None:
    (job,) = of_kind(render("prod"), "RayJob")
    lock = (ROOT / "requirements" / "lock.txt").read_text().split()

    assert f"ray=={job['spec']['rayClusterSpec']['rayVersion']}" in lock


@pytest.mark.parametrize("overlay", FLEETS)
def test_the_recipes_are_the_repositorys(overlay: str) -> None:
    (config,) = (
        item for item in of_kind(render(overlay), "ConfigMap") if item["metadata"]["name"].startswith("recipes-")
    )
    files = {path.name: path.read_text() for path in (ROOT / "recipes").glob("*.toml")}

    assert config["data"] == files


def test_images_are_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    names = {f"gymfleet/env-{name}:{version}" for name in FAMILIES}
    names |= {f"gymfleet/{name}:{version}" for name in ("env-gateway", "reward", "rollout")}
    names |= {f"gymfleet/{name}:{version}-{kind}" for name in ("inference", "trainer") for kind in ("cpu", "cuda")}
    used = {
        container["image"].removeprefix("registry.example.com/")
        for overlay in OVERLAYS
        for workload in workloads(overlay)
        for container in workload.containers
    }

    assert used - {"redis:7.2-bookworm"} <= names
    assert {f"gymfleet/env-{name}:{version}" for name in FAMILIES} <= used


def test_prod_takes_every_image_of_gymfleet_from_the_registry() -> None:
    for workload in workloads("prod"):
        for container in workload.containers:
            assert container["image"].startswith("registry.example.com/gymfleet/")


def test_there_are_as_many_pods_as_workers() -> None:
    (job,) = of_kind(render("prod"), "RayJob")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    _, path, _, _ = arguments_of(find("prod", "rollout").pod["containers"][0], render("prod"))
    recipe = load_recipe(ROOT / path.lstrip("/"))

    assert recipe.trainer.workers > 1
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == recipe.trainer.workers


@pytest.mark.parametrize("overlay", ["dev-cpu", "gpu"])
def test_a_job_runs_recipes_of_one_worker(overlay: str) -> None:
    _, path, _, _ = arguments_of(find(overlay, "rollout").pod["containers"][0], render(overlay))

    assert load_recipe(ROOT / path.lstrip("/")).trainer.workers == 1
