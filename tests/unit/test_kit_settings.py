"""Settings: a mistake is one line that names the variable, and exit code 2."""

import pytest
from gymfleet_kit.settings import ServiceSettings, read_settings
from pydantic import BaseModel, SecretStr
from pydantic_settings import SettingsConfigDict


class Pool(BaseModel):
    size: int = 1


class ExampleSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="KITTEST_", env_nested_delimiter="__", frozen=True)

    port: int = 1
    token: SecretStr = SecretStr("")
    pool: Pool = Pool()


def test_reads_the_environment_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KITTEST_PORT", "7")
    monkeypatch.setenv("kittest_pool__size", "3")

    settings = read_settings(ExampleSettings)

    assert (settings.port, settings.pool.size) == (7, 3)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        pytest.param("KITTEST_PROT", "7", "KITTEST_PROT", id="misspelt"),
        pytest.param("kittest_prot", "7", "KITTEST_PROT", id="misspelt in lower case"),
        pytest.param("KITTEST_POOLS__SIZE", "7", "KITTEST_POOLS", id="misspelt section"),
        pytest.param("KITTEST_PORT", "seven", "KITTEST_PORT", id="wrong type"),
        pytest.param("KITTEST_POOL__SIZE", "big", "KITTEST_POOL__SIZE", id="wrong type in a section"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str, named: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(SystemExit) as ended:
        read_settings(ExampleSettings)

    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert named in line


def test_a_misspelt_variable_is_told_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KITTEST_PROT", "7")

    with pytest.raises(SystemExit):
        read_settings(ExampleSettings)

    assert "known: KITTEST_POOL, KITTEST_PORT, KITTEST_TOKEN" in capsys.readouterr().err


def test_values_are_not_repeated_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KITTEST_TOKEN", "hunter2")
    monkeypatch.setenv("KITTEST_PORT", "hunter2")

    with pytest.raises(SystemExit):
        read_settings(ExampleSettings)

    assert "hunter2" not in capsys.readouterr().err
