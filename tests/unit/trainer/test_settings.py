"""Addresses of the trainer's neighbours: a wrong one is refused at the start, and no password is shown."""

from typing import Any, cast

import pytest
from gymfleet_kit.settings import read_settings
from gymfleet_kit.streams import connect
from gymfleet_trainer.run.lifecycle import _missing
from gymfleet_trainer.settings import TrainerSettings

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param("REDIS_URL", f"http://:{PASSWORD}@redis:6379/0", id="another scheme"),
        pytest.param("REDIS_URL", f"redis://:{PASSWORD}/x@redis:6379/0", id="a slash in the password"),
        pytest.param("GATEWAY_URL", "env-gateway:8200", id="no scheme"),
        pytest.param("GATEWAY_URL", "http://:8200", id="no host"),
    ],
)
def test_a_url_that_is_none_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(f"GYMFLEET_TRAINER_{variable}", value)

    with pytest.raises(SystemExit):
        read_settings(TrainerSettings)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: GYMFLEET_TRAINER_{variable}: ")
    assert PASSWORD not in line


@pytest.mark.parametrize("url", [f"redis://:{PASSWORD}@127.0.0.1:1/0", f"redis://127.0.0.1:1/0?password={PASSWORD}"])
async def test_a_redis_that_is_missing_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("GYMFLEET_TRAINER_REDIS_URL", url)

    told = await _missing(TrainerSettings(), connect(url), cast("Any", None))

    assert told.endswith("127.0.0.1:1/0 does not answer (ConnectionError)")
    assert PASSWORD not in told
