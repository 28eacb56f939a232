"""What the settings of all services have in common."""

from typing import Any

import pytest

from scripts.reference_tables import SETTINGS
from tests.fixtures.paths import ROOT

NEEDED = {
    "GYMFLEET_GATEWAY_SECRET": "0123456789abcdef",
    "GYMFLEET_GATEWAY_REPLICAS": '["http://127.0.0.1:8110"]',
    "GYMFLEET_ROLLOUT_MODEL": "model",
}


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_levels_of_the_log_are_the_four_of_the_reference(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"{kind.model_config['env_prefix']}LOG_LEVEL"
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")

    assert f"| `{variable}` | `INFO` | DEBUG, INFO, WARNING or ERROR. |" in page
    for level in ("DEBUG", "INFO", "warning", "error"):
        monkeypatch.setenv(variable, level)
        assert kind().log_level == level
    monkeypatch.setenv(variable, "TRACE")
    with pytest.raises(ValueError, match="log_level"):
        kind()
