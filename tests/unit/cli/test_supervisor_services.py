"""The supervisor's small parts: ports, log lines, state files, settings of each service."""

import json
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from gymfleet_cli.console import UsageProblem
from gymfleet_cli.running import run_plan
from gymfleet_cli.supervisor import ports
from gymfleet_cli.supervisor.errors import FleetError, PortInUse
from gymfleet_cli.supervisor.plan import ONE_OF_EACH, Plan, Ports, choose_ports, env_server_name, service_names
from gymfleet_cli.supervisor.ports import free_ports, row_of_ports
from gymfleet_cli.supervisor.service import Service, last_log_line, unready_reason
from gymfleet_cli.supervisor.sockets import socket_path
from gymfleet_cli.supervisor.state import FleetState, ProcessId, read_state, write_state
from gymfleet_cli.supervisor.supervisor import identity
from gymfleet_contracts.recipe_sections import ScaleSection
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_kit.settings import ServiceSettings
from gymfleet_reward.settings import RewardSettings
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_trainer.settings import TrainerSettings

from tests.fixtures.scored import make_recipe


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize(
    ("told", "first_outgoing"),
    [
        pytest.param("20500\t60999\n", 20_500, id="above what leaves room"),
        pytest.param("1024\t65535\n", 32_768, id="nearly all ports"),
        pytest.param(None, 32_768, id="not Linux"),
    ],
)
def test_free_ports_are_none_that_the_kernel_gives_to_an_outgoing_connection(
    told: str | None, first_outgoing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told is not None:
        (tmp_path / "range").write_text(told)
    monkeypatch.setattr(ports, "_OUTGOING", tmp_path / "range")

    assert all(10_000 <= port < first_outgoing for port in free_ports(200))


def test_port_in_use_is_named_with_its_service() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])

        with pytest.raises(PortInUse, match=f"port {port}, meant for env-gateway, is in use"):
            row_of_ports(port, ["env-gateway"])


@pytest.mark.parametrize(
    ("written", "line"),
    [
        pytest.param("loading\nerror: no such model\n\n", "no such model", id="an error line"),
        pytest.param('{"event": "service.started"}\n', "service.started", id="a structured line"),
        pytest.param('{"event": "run.failed", "error": "disk full"}\n', "run.failed: disk full", id="with its error"),
        pytest.param(
            '{"event": "bug", "exception": "Traceback\\n  x\\nValueError: no"}\n',
            "bug: ValueError: no",
            id="a traceback",
        ),
        pytest.param(
            '{"event": "service.failed", "level": "error", "exception": "Traceback\\nE: 1 fault\\n  too long'
            '\\n    For further information visit https://example.com"}\n'
            '{"event": "bye", "level": "info"}\n - leaked x\n',
            "service.failed: too long",
            id="an error before what libraries print at the end",
        ),
        pytest.param("", "it wrote nothing", id="nothing"),
        pytest.param("x" * 2000, "x" * 1000 + " ... (more in the log)", id="bounded"),
    ],
)
def test_last_log_line(written: str, line: str, tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_text(written)

    assert last_log_line(log) == line


def test_last_log_line_of_this_start_only(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_text("error: of yesterday\n")

    assert last_log_line(log, offset=log.stat().st_size) == "it wrote nothing"


def test_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_state(tmp_path, FleetState(gateway_secret="s3cret"))

    assert stat.S_IMODE((tmp_path / "fleet.json").stat().st_mode) == 0o600
    assert read_state(tmp_path) == FleetState(gateway_secret="s3cret")
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.json"]


def test_damaged_state_is_an_error_not_an_empty_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{")

    with pytest.raises(FleetError, match="cannot be read"):
        read_state(tmp_path)


def test_pid_of_another_process_is_not_taken_for_ours() -> None:
    me = identity(os.getpid())

    assert me.alive
    assert not ProcessId(pid=me.pid, started_ticks=me.started_ticks + 1).alive
    assert not ProcessId(pid=me.pid, started_ticks=me.started_ticks + 1).left_behind


@pytest.mark.parametrize(
    ("reference", "name"),
    [("maze", "env-maze"), ("my_pkg.envs:Counter", "env-counter"), ("../envs/My Game.py", "env-my-game")],
)
def test_env_server_names_can_be_file_names(reference: str, name: str) -> None:
    assert env_server_name(reference) == name


def make_plan(directory: Path, scale: ScaleSection = ONE_OF_EACH) -> Plan:
    return Plan(
        directory=directory,
        ports=choose_ports(("maze", "wordle"), None, scale),
        envs=("maze", "wordle"),
        gateway_secret="s" * 16,
        scale=scale,
    )


def test_ports_from_count_in_a_fixed_order() -> None:
    names = service_names(("maze",))

    assert names == ["env-gateway", "rollout", "reward", "trainer", "env-maze"]
    assert Ports({"env-gateway": 8200}).url("env-gateway") == "http://127.0.0.1:8200"


def test_gateway_knows_every_env_server(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)

    servers = [service.url for service in plan.env_servers()]

    assert json.loads(plan.gateways()[0].env["GYMFLEET_GATEWAY_REPLICAS"]) == servers


def test_a_recipe_may_want_several_of_each(tmp_path: Path) -> None:
    scale = ScaleSection(env_servers=2, env_shards=3, gateways=2, rollouts=3, rewards=2)
    plan = make_plan(tmp_path, scale)

    servers, gateways, rollouts = plan.env_servers(), plan.gateways(), plan.rollouts(None, "--recipe", "r.toml")

    assert [server.name for server in servers] == ["env-maze", "env-maze-2", "env-wordle", "env-wordle-2"]
    assert {server.env["GYMFLEET_ENV_SHARDS"] for server in servers} == {"3"}
    assert [gateway.name for gateway in gateways] == ["env-gateway", "env-gateway-2"]
    assert {gateway.env["GYMFLEET_GATEWAY_REPLICAS"] for gateway in gateways} == {
        json.dumps([server.url for server in servers])
    }
    assert [reward.name for reward in plan.rewards()] == ["reward", "reward-2"]
    assert [rollout.name for rollout in rollouts] == ["rollout", "rollout-2", "rollout-3"]
    assert [rollout.env["GYMFLEET_ROLLOUT_GATEWAY_URL"] for rollout in rollouts] == [
        gateways[0].url, gateways[1].url, gateways[0].url,
    ]  # fmt: skip
    assert all(rollout.argv[1:] == ("--recipe", "r.toml") for rollout in rollouts)
    assert plan.trainer("run").env["GYMFLEET_TRAINER_ROLLOUT_URL"].split(",") == [rollout.url for rollout in rollouts]
    everything = [*servers, *gateways, *plan.rewards(), *rollouts, plan.redis(), plan.trainer("run")]
    assert len({service.url for service in everything}) == len(everything)


def test_reward_services_may_load_what_the_recipe_names(tmp_path: Path) -> None:
    reward = {
        "goal": {},
        "own": {"use": "./own.py"},
        "off": {"use": "./off.py", "enabled": False},
        "more": {"use": "a:B"},
    }

    plan = run_plan(make_recipe(reward=reward), None, tmp_path, tmp_path, None)

    assert {service.env["GYMFLEET_REWARD_PLUGINS"] for service in plan.rewards()} == {'["./own.py", "a:B"]'}
    of_a_stage = make_recipe(stages=[{"repeat": 2, "stages": [{"kind": "collect", "reward": reward}]}])
    assert run_plan(of_a_stage, None, tmp_path, tmp_path, None).components == ("./own.py", "a:B")
    assert "GYMFLEET_REWARD_PLUGINS" not in run_plan(make_recipe(), None, tmp_path, tmp_path, None).rewards()[0].env


def test_every_environment_of_a_recipe_is_served_once_with_its_own_data_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYMFLEET_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "data/wordle").mkdir(parents=True)
    recipe = make_recipe(environments=[
        {"name": "db", "options": {"observation_chars": 90}},
        {"name": "maze", "reward": {"own": {"use": "./own.py"}}},
        {"name": "maze", "label": "hard", "level": "hard", "reward": {"other": {"use": "a:B"}}},
        {"name": "wordle", "tasks": "benchmark"},
    ])  # fmt: skip

    plan = run_plan(recipe, None, tmp_path, tmp_path, None)

    assert [server.name for server in plan.env_servers()] == ["env-db", "env-maze", "env-wordle"]
    db, maze, wordle = (server.env for server in plan.env_servers())
    assert db["GYMFLEET_ENV_OPTIONS"] == '{"db": {"observation_chars": 90}}'
    assert json.loads(wordle["GYMFLEET_ENV_DATA"]) == {"wordle": str(tmp_path / "data/wordle")}
    for name in ("GYMFLEET_ENV_OPTIONS", "GYMFLEET_ENV_DATA"):
        assert name not in maze
    assert plan.components == ("./own.py", "a:B")


def test_a_source_stands_for_the_only_environment(tmp_path: Path) -> None:
    levels = make_recipe(environments=[{"name": "maze"}, {"name": "maze", "label": "hard"}])
    mixed = make_recipe(environments=[{"name": "maze"}, {"name": "babyai"}])

    assert run_plan(levels, "./mine.py", tmp_path, tmp_path, None).envs == ("./mine.py",)
    with pytest.raises(UsageProblem, match=r"^--env \./mine\.py: it stands for the only .* has maze, babyai; install"):
        run_plan(mixed, "./mine.py", tmp_path, tmp_path, None)


def test_replicas_come_last_in_a_row_of_ports() -> None:
    assert service_names(("maze",), ScaleSection(rollouts=2, env_servers=2)) == [
        "env-gateway", "rollout", "reward", "trainer", "env-maze", "rollout-2", "env-maze-2",
    ]  # fmt: skip


def test_redis_has_a_socket_beside_its_data_that_every_service_is_told(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "a run?#%")
    redis = plan.redis()

    assert redis.socket == tmp_path / "a run?#%/redis/redis.sock"
    assert redis.url == f"unix://{tmp_path}/a%20run%3F%23%25/redis/redis.sock"
    users = (*plan.gateways(), *plan.rewards(), *plan.rollouts("m"), plan.trainer("run"))
    assert [url for user in users for name, url in user.env.items() if name.endswith("REDIS_URL")] == [redis.url] * 4
    assert unready_reason("redis", redis.url) == "no answer yet"


def test_a_deep_directory_has_its_socket_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    deep = tmp_path / ("d" * 60) / ("e" * 60)

    one, again, other = socket_path(deep), socket_path(deep), socket_path(deep / "f")

    assert one == again != other
    assert len(os.fsencode(one)) <= 107
    assert one.parent == other.parent
    assert stat.S_IMODE(one.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("made", ["readable", "link", "file"])
def test_a_directory_for_sockets_that_others_may_enter_is_refused(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = tmp_path / f"gymfleet-{os.getuid()}"
    if made == "readable":
        ours.mkdir()
        ours.chmod(0o755)
    elif made == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        ours.symlink_to(tmp_path / "elsewhere")
    else:
        ours.touch(mode=0o700)

    with pytest.raises(FleetError, match=r"not a directory of yours alone"):
        socket_path(Path("/") / ("d" * 120))


def test_where_no_socket_fits_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    with pytest.raises(FleetError, match="let TMPDIR name a directory with a short path"):
        socket_path(Path("/") / ("d" * 120))


def test_every_service_of_the_fleet_but_its_gateway_asks_for_a_key_that_its_callers_have(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    (server, *_), (gateway,), (reward,) = plan.env_servers(), plan.gateways(), plan.rewards()
    (rollout,), trainer = plan.rollouts("m"), plan.trainer("run")

    assert gateway.env["GYMFLEET_GATEWAY_REPLICA_API_KEY"] == server.env["GYMFLEET_ENV_API_KEY"]
    assert trainer.env["GYMFLEET_TRAINER_ROLLOUT_API_KEY"] == rollout.env["GYMFLEET_ROLLOUT_API_KEY"]
    asked = [service.env[f"GYMFLEET_{name}_API_KEY"] for service, name in (
        (server, "ENV"), (rollout, "ROLLOUT"), (reward, "REWARD"), (trainer, "TRAINER"),
    )]  # fmt: skip
    assert sorted(asked) == sorted(plan.keys.values())
    assert len(set(asked)) == 4
    assert plan.gateway_secret not in asked
    assert "GYMFLEET_GATEWAY_API_KEY" not in gateway.env


def test_every_service_accepts_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(tmp_path)
    pairs: list[tuple[Service, type[ServiceSettings]]] = [
        (plan.env_servers()[0], EnvServerSettings),
        (plan.gateways()[0], GatewaySettings),
        (plan.rewards()[0], RewardSettings),
        (plan.rollouts("m")[0], RolloutSettings),
        (plan.trainer("run"), TrainerSettings),
    ]
    for service, settings in pairs:
        with monkeypatch.context() as patch:
            for name, value in service.env.items():
                patch.setenv(name, value)
            assert settings().model_dump()["port"] == service.port
