"""The gateway's settings refuse what cannot work."""

import resource
from pathlib import Path

import pytest
from gymfleet_env_gateway.main import raise_file_limit
from gymfleet_env_gateway.settings import GatewaySettings
from pydantic import ValidationError

GOOD = {"REPLICAS": '["http://127.0.0.1:8110"]', "SECRET": "0123456789abcdef"}


def read(monkeypatch: pytest.MonkeyPatch, **changes: str) -> GatewaySettings:
    for name, value in {**GOOD, **changes}.items():
        monkeypatch.setenv(f"GYMFLEET_GATEWAY_{name}", value)
    return GatewaySettings.model_validate({})  # the environment is read all the same


def test_two_variables_are_enough_and_it_listens_on_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch)

    assert (settings.host, settings.port) == ("127.0.0.1", 8200)
    assert settings.agentgym


def test_the_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    previous = "the secret of last year"
    settings = read(monkeypatch, PREVIOUS_SECRETS=f'["{previous}"]')

    assert [secret.get_secret_value() for secret in settings.previous_secrets] == [previous]
    assert GOOD["SECRET"] not in repr(settings)
    assert previous not in repr(settings)


def test_the_agentgym_front_is_served_with_keys_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, API_KEY="a long key").agentgym
    assert not read(monkeypatch, AGENTGYM="false").agentgym


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine_alone_needs_no_key(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert read(monkeypatch, HOST=host).api_key is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gateway.example", "localhost.example", ""])  # noqa: S104
def test_whoever_listens_to_others_needs_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str) -> None:
    with pytest.raises(ValidationError, match="gymfleet keys new --tenant NAME"):
        read(monkeypatch, HOST=host)

    assert read(monkeypatch, HOST=host, API_KEY="a long key").host == host
    monkeypatch.delenv("GYMFLEET_GATEWAY_API_KEY")
    (tmp_path / "tenants.toml").write_text("[tenants.lab]\n")
    assert read(monkeypatch, HOST=host, TENANTS=str(tmp_path / "tenants.toml")).host == host


def test_a_file_of_tenants_that_cannot_be_read_is_an_error_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=r"tenants\.toml: No such file"):
        read(monkeypatch, TENANTS=str(tmp_path / "tenants.toml"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"SECRET": "short"}, "at least 16"),
        ({"PREVIOUS_SECRETS": '["short"]'}, "at least 16"),
        ({"REPLICAS": "[]"}, "give the env servers' URLs in replicas"),
        ({"REPLICAS": '["http://a:1", "http://a:1"]'}, "twice"),
        ({"REPLICA": '["http://a:1"]'}, "unknown settings GYMFLEET_GATEWAY_REPLICA"),
        ({"UNRESPONSIVE_AFTER_S": "0.1"}, "unresponsive_after_s must exceed"),
        ({"API_KEY": ""}, "at least 8"),
        ({"API_KEY": "a long key", "TENANTS": "t.toml"}, "set api_key or tenants, not both"),
        ({"MAX_BODY_BYTES": "5"}, "greater than or equal to 1024"),
        ({"PORT": "0"}, "greater than or equal to 1"),
    ],
)
def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        read(monkeypatch, **changes)


def test_a_secret_has_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMFLEET_GATEWAY_REPLICAS", GOOD["REPLICAS"])

    with pytest.raises(ValidationError, match="secret"):
        GatewaySettings.model_validate({})


def test_a_full_fleets_clients_may_have_a_socket_each() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 8192:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        raise_file_limit()

        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 8192
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
