"""Settings: a mistake is one line that names the variable or the file, and exit code 2."""

import os
from pathlib import Path

import pytest
from gymfleet_kit.settings import ServiceSettings, no_arguments, read_settings
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
        pytest.param("KITTEST_PORT__SIZE", "7", "KITTEST_PORT__SIZE", id="part of a setting without parts"),
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


def test_a_part_is_refused_where_settings_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Whole(ServiceSettings):
        model_config = SettingsConfigDict(env_prefix="KITTEST_", frozen=True)

        pool: Pool = Pool()

    monkeypatch.setenv("KITTEST_POOL__SIZE", "3")

    with pytest.raises(SystemExit):
        read_settings(Whole)

    assert capsys.readouterr().err == "error: unknown settings KITTEST_POOL__SIZE; known: KITTEST_POOL\n"


def test_a_misspelt_variable_is_told_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KITTEST_PROT", "7")

    with pytest.raises(SystemExit):
        read_settings(ExampleSettings)

    assert "known: KITTEST_POOL, KITTEST_PORT, KITTEST_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["--help"], 0, "KITTEST_PORT", id="help names the settings"),
        pytest.param(["--port", "7"], 2, "unrecognized arguments: --port 7", id="what nobody takes is refused"),
    ],
)
def test_a_service_without_arguments_starts_with_none(
    arguments: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gymfleet-example", *arguments])

    with pytest.raises(SystemExit) as ended:
        no_arguments("gymfleet-example", "Set an example.", ExampleSettings)

    assert ended.value.code == code
    assert said in "".join(capsys.readouterr())


def test_values_are_not_repeated_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KITTEST_TOKEN", "hunter2")
    monkeypatch.setenv("KITTEST_PORT", "hunter2")

    with pytest.raises(SystemExit):
        read_settings(ExampleSettings)

    assert "hunter2" not in capsys.readouterr().err


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GYMFLEET_SECRETS_DIR", str(tmp_path))
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        read_settings(ExampleSettings)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_file_named_like_the_variable_is_read_without_its_last_line_end(secrets: Path) -> None:
    (secrets / "kittest_token").write_text(" hunter2 \n")
    (secrets / "kittest_port").write_text("7\r\n")
    (secrets / "kittest_pool__size").write_text("3")
    (secrets / "kitother_token").write_text("another service's")

    settings = read_settings(ExampleSettings)

    assert (settings.token.get_secret_value(), settings.port, settings.pool.size) == (" hunter2 ", 7, 3)


def test_a_section_may_be_one_file_of_json(secrets: Path) -> None:
    (secrets / "kittest_pool").write_text('{"size": 5}\n')

    assert read_settings(ExampleSettings).pool.size == 5


def test_the_environment_wins_over_a_file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "kittest_token").write_text("from the file")
    (secrets / "kittest_port").write_text("7")
    monkeypatch.setenv("KITTEST_TOKEN", "from the environment")

    settings = read_settings(ExampleSettings)

    assert (settings.token.get_secret_value(), settings.port) == ("from the environment", 7)


def test_links_and_dotted_entries_of_a_mounted_secret_are_fine(secrets: Path) -> None:
    (secrets / "..data").mkdir()
    (secrets / "..data" / "kittest_port").write_text("7")
    (secrets / "kittest_port").symlink_to("..data/kittest_port")

    assert read_settings(ExampleSettings).port == 7


def test_a_directory_that_is_not_there_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMFLEET_SECRETS_DIR", str(tmp_path / "absent"))

    assert read_settings(ExampleSettings).port == 1


def test_a_misspelt_file_is_refused_with_its_path(secrets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (secrets / "kittest_tokn").write_text("hunter2")

    line = refusal(capsys)

    assert line.startswith(f"error: unknown settings {secrets / 'kittest_tokn'}; known: KITTEST_POOL")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\xff\xfe", "is not UTF-8 text", id="not text"),
        pytest.param(b"x" * (64 * 1024 + 1), "is longer than 65536 bytes", id="too long"),
        pytest.param(None, "is not a file", id="a directory"),
    ],
)
def test_a_file_that_cannot_be_a_secret_is_one_line(
    secrets: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, reason: str
) -> None:
    file = secrets / "kittest_token"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)

    assert refusal(capsys) == f"error: the secret {file} {reason}"


def test_a_pipe_is_refused_and_not_waited_for(secrets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(secrets / "kittest_token")

    assert "is not a file" in refusal(capsys)


def test_a_file_without_permission_is_one_line(
    secrets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = secrets / "kittest_token"
    file.write_text("hunter2")
    opened = Path.open

    def refuse(path: Path, mode: str = "r") -> object:  # root, as whom tests may run, may read every file
        if path == file:
            raise PermissionError(13, "Permission denied")
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", refuse)

    assert refusal(capsys) == f"error: the secret {file} cannot be read: Permission denied"


def test_a_section_that_is_no_json_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KITTEST_POOL", "{hunter2")

    line = refusal(capsys)

    assert "pool" in line
    assert "hunter2" not in line
