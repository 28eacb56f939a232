"""deploy/docker-compose.yml without a Docker Engine: what it gives each container, and what it keeps from it."""

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from gymfleet_contracts.recipe import load_recipe
from gymfleet_env_gateway import streams
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_kit.settings import ServiceSettings
from gymfleet_reward.settings import RewardSettings
from gymfleet_rollout.recipe import settings_for
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_trainer.settings import TrainerSettings

from tests.fixtures.families import FAMILIES, members
from tests.fixtures.paths import ROOT

DEPLOY: Final = ROOT / "deploy"
COMPOSE_FILE: Final = DEPLOY / "docker-compose.yml"
DEFAULTS: Final = dict(
    line.split("=", 1) for line in (DEPLOY / ".env").read_text("utf-8").splitlines() if line and line[0] != "#"
)
ENV_SERVICES: Final = [f"env-{name}" for name in FAMILIES]
RECIPE: Final = load_recipe(ROOT / "recipes" / f"{DEFAULTS['GYMFLEET_RECIPE']}.toml")
OS_SECCOMP: Final = str(DEPLOY / "docker/seccomp-os.json")
"""Given whole: docker-compose 1.29 seeks a relative one where it is called."""
THIRD_PARTY: Final = ("redis", "vllm-gpu", "reward-model")


def interpolated(text: str) -> str:
    """`${NAME:-default}` as compose reads it with deploy/.env alone."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: DEFAULTS.get(found[1]) or found[2], text)
    assert not re.search(r"(?<!\$)\$\{", text), "a variable without a default"
    return text.replace("$$", "$")


DOCUMENT: Final[dict[str, Any]] = yaml.safe_load(interpolated(COMPOSE_FILE.read_text("utf-8")))
SERVICES: Final[dict[str, dict[str, Any]]] = DOCUMENT["services"]
every_service = pytest.mark.parametrize("name", list(SERVICES))


def settings_of(name: str) -> type[ServiceSettings]:
    """The model that the process of a service reads."""
    kinds: dict[str, type[ServiceSettings]] = {
        "env-": EnvServerSettings, "env_gateway": GatewaySettings, "reward": RewardSettings,
        "rollout": settings_for(RECIPE, Path("/runs") / RECIPE.name),
        "trainer": TrainerSettings, "model": TrainerSettings,
    }  # fmt: skip
    return next(kind for prefix, kind in kinds.items() if name.startswith(prefix))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stack") / "secrets"
    subprocess.run([DEPLOY / "compose/secrets.sh", directory], check=True, capture_output=True, timeout=60)
    return directory


def test_there_is_a_service_and_a_profile_for_every_environment() -> None:
    found = {name: set(service["profiles"]) for name, service in SERVICES.items() if name.startswith("env-")}

    assert found == {f"env-{name}": {name, "all-envs"} for name in FAMILIES}


def test_a_family_is_served_whole() -> None:
    commands = {name: SERVICES[f"env-{name}"].get("command") for name in FAMILIES}

    assert {name: command for name, command in commands.items() if command is not None} == {
        name: members(name) for name in FAMILIES if members(name) != [name]
    }


def test_the_gateway_looks_for_a_name_that_every_env_server_has() -> None:
    discover = json.loads(SERVICES["env_gateway"]["environment"]["GYMFLEET_GATEWAY_DISCOVER"])
    named = {
        name
        for name, service in SERVICES.items()
        if isinstance(service["networks"], dict)
        and "environments" in (service["networks"].get("environments") or {}).get("aliases", [])
    }

    assert discover == ["http://environments:8110"]
    assert named == set(ENV_SERVICES)


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in THIRD_PARTY])
def test_settings_can_be_read_from_what_the_container_gets(
    name: str, secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    for secret in service.get("secrets", []):
        source = secrets / Path(DOCUMENT["secrets"][secret["source"]]["file"]).name
        (tmp_path / secret["target"]).symlink_to(source)
    monkeypatch.setenv("GYMFLEET_SECRETS_DIR", str(tmp_path))
    for variable, value in service["environment"].items():
        assert isinstance(value, str), f"{variable}: compose wants strings"
        monkeypatch.setenv(variable, value)
    kind = settings_of(name)
    prefix = kind.model_config["env_prefix"]
    foreign = [v for v in service["environment"] if v.startswith("GYMFLEET_") and not v.startswith(prefix)]
    foreign += [s["target"] for s in service.get("secrets", []) if not s["target"].upper().startswith(prefix)]

    settings = kind()

    assert foreign == [], "settings and secrets of another service"
    assert settings.model_dump()["host"] == "0.0.0.0"  # noqa: S104 - inside its container
    if "redis_url" in kind.model_fields:
        assert "@redis:6379" in str(settings.model_dump()["redis_url"])


def test_a_variable_for_compose_is_no_unknown_setting_of_a_service_started_in_the_same_shell() -> None:
    prefixes = tuple(
        str(settings.model_config["env_prefix"])
        for settings in (EnvServerSettings, GatewaySettings, RewardSettings, RolloutSettings, TrainerSettings)
    )
    variables = set(re.findall(r"\$\{(GYMFLEET_\w+)", COMPOSE_FILE.read_text("utf-8")))

    assert "GYMFLEET_COMPOSE_GATEWAY_PORTS" in variables
    assert {name for name in variables if name.startswith(prefixes)} == set()


def test_the_environment_of_the_default_recipe_is_served() -> None:
    profiles = DEFAULTS["COMPOSE_PROFILES"].split(",")

    assert {*(env.name for env in RECIPE.environments), "cpu"} <= set(profiles)
    assert set(profiles) <= {profile for service in SERVICES.values() for profile in service.get("profiles", [])}


def test_ports_are_published_on_the_loopback_and_only_those_of_gateway_and_rollout() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if service.get("ports")}

    assert published == {
        "env_gateway": ["127.0.0.1:8200-8209:8200"],
        "rollout": ["127.0.0.1:8220-8229:8202"],
        "rollout-gpu": ["127.0.0.1:8220-8229:8202"],
    }


def test_networks_have_no_way_out_but_the_one_that_publishes() -> None:
    open_networks = [name for name, network in DOCUMENT["networks"].items() if not network.get("internal")]
    on_them = [name for name, service in SERVICES.items() if set(open_networks) & set(service["networks"])]

    assert open_networks == ["edge"]
    assert on_them == ["env_gateway", "rollout", "rollout-gpu"]
    masquerade = DOCUMENT["networks"]["edge"]["driver_opts"]["com.docker.network.bridge.enable_ip_masquerade"]
    assert masquerade == "false"


def test_neighbours_share_a_network_and_others_do_not() -> None:
    members = {
        network: {name for name, service in SERVICES.items() if network in service["networks"]}
        for network in DOCUMENT["networks"]
    }

    assert members["environments"] == {"env_gateway", *ENV_SERVICES}
    assert members["inference"] == {"vllm-gpu", "rollout-gpu"}, "vLLM's control routes have no keys"
    assert members["reward-models"] == {"reward", "reward-model"}, "nor have its routes for reward models"
    assert members["fleet"] == set(SERVICES) - set(ENV_SERVICES) - {"vllm-gpu", "reward-model"}


@every_service
def test_a_container_has_few_rights(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["init"] is True
    assert any(mount.partition(":")[2].startswith("mode=1777,size=") for mount in service["tmpfs"])
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices", "userns_mode"} & set(service)
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


@every_service
def test_a_container_has_a_filter_of_system_calls(name: str) -> None:
    filters = [option for option in SERVICES[name]["security_opt"] if option.startswith("seccomp")]

    assert filters == (["seccomp=docker/seccomp-os.json"] if name == "env-os" else []), "none is the engine's own"
    assert (DEPLOY / "docker/seccomp-os.json").is_file()


@every_service
def test_a_container_has_limits_a_health_check_and_time_to_stop(name: str) -> None:
    service = SERVICES[name]

    assert service["mem_limit"]
    assert float(service["cpus"]) > 0
    assert service["pids_limit"] > 0
    assert service["restart"] in {"unless-stopped", "on-failure:10", "no"}
    assert service["logging"]["options"]["max-size"]
    assert "healthcheck" in service
    assert bool(service["healthcheck"].get("disable")) == (name == "model"), "only what serves nothing goes unchecked"
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    drain_s = float(service.get("environment", {}).get("GYMFLEET_ENV_DRAIN_S", 0))
    drain_s += streams._PATIENCE_S if name == "env_gateway" else 0
    assert grace_s >= drain_s + 10, "uvicorn gives running requests 10 s more"


@every_service
def test_an_image_has_a_version(name: str) -> None:
    image = SERVICES[name]["image"]

    repository, _, tag = image.rpartition(":")
    assert repository
    assert tag != "latest"
    if name != "redis":
        version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
        assert version is not None
        assert re.fullmatch(rf"gymfleet/[a-z_-]+:{re.escape(version[1])}(-cpu|-cuda)?", image)


@every_service
def test_what_a_service_waits_for_is_started_with_it(name: str) -> None:
    service = SERVICES[name]

    for other in service.get("depends_on", {}):
        needed = set(service.get("profiles", [])) or {"no profile at all"}
        assert not SERVICES[other].get("profiles") or needed <= set(SERVICES[other]["profiles"]), other


def test_secrets_are_files_and_no_password_is_on_a_command_line() -> None:
    text = COMPOSE_FILE.read_text("utf-8")
    used = {secret["source"] for service in SERVICES.values() for secret in service.get("secrets", [])}

    assert used == set(DOCUMENT["secrets"])
    assert all(list(secret) == ["file"] for secret in DOCUMENT["secrets"].values())
    assert not re.search(r"--requirepass|-a |--pass\b|_API_KEY:|_SECRET:|_REDIS_URL:", text)


def test_redis_keeps_everything_and_refuses_what_it_cannot_keep() -> None:
    command = SERVICES["redis"]["command"]
    options = dict(zip(command[2::2], command[3::2], strict=True))

    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert "redis:/data" in SERVICES["redis"]["volumes"]


def test_vllms_server_compiles_nothing_where_the_image_has_no_compiler() -> None:
    servers = [s for s in SERVICES.values() if "vllm.entrypoints.openai.api_server" in s.get("entrypoint", ())]
    on_processors = [server for server in servers if server["image"].endswith("-cpu")]

    assert on_processors
    for server in on_processors:
        assert "--enforce-eager" in server["command"]
        assert server["environment"]["TORCHDYNAMO_DISABLE"] == "1"


def test_gpus_are_reserved_by_the_gpu_profile_alone() -> None:
    with_gpu = {name for name, service in SERVICES.items() if "deploy" in service}

    assert with_gpu == {"vllm-gpu", "trainer-gpu"}
    for name in with_gpu:
        assert SERVICES[name]["profiles"] == ["gpu"]
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_secrets_are_made_once_and_for_nobody_else(secrets: Path) -> None:
    before = {file.name: file.read_text("ascii") for file in secrets.iterdir()}

    again = subprocess.run(
        [DEPLOY / "compose/secrets.sh", secrets], check=True, capture_output=True, text=True, timeout=60
    )

    assert set(before) == {Path(secret["file"]).name for secret in DOCUMENT["secrets"].values()}
    assert {file.name: file.read_text("ascii") for file in secrets.iterdir()} == before
    assert again.stdout == ""
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets.iterdir()} == {0o444}, "containers have other users"
    assert before["redis_url"].strip() == f"redis://:{before['redis.conf'].split()[1]}@redis:6379/0"
    values = [value for name, value in before.items() if not name.startswith("redis")]
    assert all(re.fullmatch("[0-9a-f]{64}\n", value) for value in values)
    assert len(set(values)) == len(values)


def test_a_lost_url_is_made_again_for_the_password_that_redis_has(secrets: Path, tmp_path: Path) -> None:
    copy = tmp_path / "secrets"
    shutil.copytree(secrets, copy)
    (copy / "redis_url").unlink()

    subprocess.run([DEPLOY / "compose/secrets.sh", copy], check=True, capture_output=True, timeout=60)

    assert (copy / "redis_url").read_text("ascii") == (secrets / "redis_url").read_text("ascii")


def resolved(program: list[str]) -> dict[str, dict[str, Any]]:
    """Every service, as a program that reads compose files understands it."""
    profiles = sorted({profile for service in SERVICES.values() for profile in service.get("profiles", [])})
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GYMFLEET_", "COMPOSE_"))}
    done = subprocess.run(
        [*program, "-f", str(COMPOSE_FILE), "config"], check=False, capture_output=True, text=True, timeout=120,
        env=environment | {"COMPOSE_PROFILES": ",".join(profiles), "GYMFLEET_OS_SECCOMP": OS_SECCOMP},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    services: dict[str, dict[str, Any]] = yaml.safe_load(done.stdout)["services"]
    return services


def plain(key: str, value: Any) -> Any:
    """The two programs write sizes, durations and ports differently; what they mean is compared."""
    if key == "mem_limit":
        units = {"m": 2**20, "g": 2**30}
        return int(value) if str(value).isdigit() else int(value[:-1]) * units[value[-1]]
    if key == "cpus":
        return float(value)
    if key == "ports":
        return [
            port.removesuffix("/tcp")
            if isinstance(port, str)
            else f"{port['host_ip']}:{port['published']}:{port['target']}"
            for port in value
        ]
    if key == "depends_on":
        return {other: how["condition"] for other, how in value.items()}
    return value


def test_both_compose_programs_read_the_same_services() -> None:
    if shutil.which("docker-compose") is None or shutil.which("docker") is None:
        pytest.skip("docker-compose 1.29 or docker is not here")
    if subprocess.run(["docker", "compose", "version"], check=False, capture_output=True, timeout=60).returncode:
        pytest.skip("the docker here has no compose plugin")

    old, new = resolved(["docker-compose"]), resolved(["docker", "compose"])

    assert set(old) == set(new) == set(SERVICES)
    keys = ("image", "command", "entrypoint", "environment", "mem_limit", "cpus", "pids_limit", "ports", "secrets",
            "networks", "read_only", "cap_drop", "security_opt", "init", "restart", "depends_on", "profiles", "user",
            "deploy")  # fmt: skip
    for name in SERVICES:
        for key in keys:
            seen = [plain(key, service[key]) if service.get(key) else None for service in (old[name], new[name])]
            assert seen[0] == seen[1], f"{name}: {key}"
