"""The gateway's settings refuse what cannot work."""

import pytest
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
    assert settings.serves_agentgym


def test_the_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GOOD["SECRET"] not in repr(read(monkeypatch))


def test_the_agentgym_front_is_off_when_a_key_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not read(monkeypatch, API_KEY="k").serves_agentgym
    assert read(monkeypatch, API_KEY="k", AGENTGYM="true").serves_agentgym


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"SECRET": "short"}, "at least 16"),
        ({"REPLICAS": "[]"}, "at least 1 item"),
        ({"REPLICAS": '["http://a:1", "http://a:1"]'}, "twice"),
        ({"REPLICA": '["http://a:1"]'}, "unknown settings GYMFLEET_GATEWAY_REPLICA"),
        ({"UNRESPONSIVE_AFTER_S": "0.1"}, "unresponsive_after_s must exceed"),
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
