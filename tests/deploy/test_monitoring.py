"""Alerts and dashboards against the code and the operator's guide; Prometheus' own checks where it is installed."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.paths import ROOT

MONITORING = ROOT / "deploy/monitoring"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
GUIDE = ROOT / "docs/operations.md"
CODE = ("contracts", "kit", "services")

METRIC = re.compile(r"\bgymfleet_[a-z_]+")
DECLARED = re.compile(r"(Counter|Gauge|Histogram)\w*\(\s*f?\"((?:gymfleet|\{prefix\})_[a-z_]+)\"")
SUFFIXES = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("_bucket", "_sum", "_count")}
SEVERITIES = {"critical", "warning"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
    return found


def expressions(dashboard: Path) -> list[str]:
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


def served() -> set[str]:
    """Every series that the code can serve, as Prometheus names it."""
    text = "\n".join(path.read_text(encoding="utf-8") for root in CODE for path in sorted((ROOT / root).rglob("*.py")))
    declared = {
        (kind, name.replace("{prefix}", "gymfleet_env").removesuffix("_total")) for kind, name in DECLARED.findall(text)
    }
    return {f"{name}{suffix}" for kind, name in declared for suffix in SUFFIXES[kind]}


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^### (Gymfleet\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE))


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_alerts_ask_for_metrics_that_the_code_serves() -> None:
    named = {name for rule in rules() for name in METRIC.findall(rule["expr"])}

    assert len(named) > 20
    assert named - served() == set()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_ask_for_metrics_that_the_code_serves(dashboard: Path) -> None:
    named = {name for expression in expressions(dashboard) for name in METRIC.findall(expression)}

    assert len(named) > 10
    assert named - served() == set()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_have_what_grafana_needs(dashboard: Path) -> None:
    board = json.loads(dashboard.read_text(encoding="utf-8"))

    assert board["uid"] == f"gymfleet-{dashboard.stem}"
    assert board["schemaVersion"] >= 36
    assert [variable["name"] for variable in board["templating"]["list"]] == ["DS_PROMETHEUS"]
    ids = [panel["id"] for panel in panels(dashboard)]
    assert ids == list(range(1, len(ids) + 1))
    for panel in panels(dashboard):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in SEVERITIES, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert "\n" not in rule["annotations"]["summary"].strip()


def test_every_alert_has_its_section_in_the_guide_and_every_section_its_alert() -> None:
    assert headings(GUIDE) == {rule["alert"] for rule in rules()}


def test_every_alert_is_tested() -> None:
    text = (MONITORING / "alerts_test.yml").read_text(encoding="utf-8")

    assert {rule["alert"] for rule in rules() if rule["alert"] not in text} == set()


def test_prometheus_scrapes_every_kind_of_service_where_it_listens() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    ports = {name: found["port"] for found in job["dns_sd_configs"] for name in found["names"]}
    down = next(rule for rule in rules() if rule["alert"] == "GymfleetServiceDown")
    match = re.search(r'job=~"(.+?)"', down["expr"])
    assert match is not None

    assert {ports[name] for name in ("env-maze", "env_gateway", "rollout", "reward", "trainer")} == {
        8110, 8200, 8202, 8203, 8204,
    }  # fmt: skip
    assert [name for name in ports if not re.fullmatch(match[1], name)] == []
    assert re.fullmatch(match[1], "node-exporter") is None


def test_promtool_takes_the_alerts_and_their_tests() -> None:
    checked = promtool("check", "rules", MONITORING / "alerts.yml")
    tested = promtool("test", "rules", MONITORING / "alerts_test.yml")

    assert checked.returncode == 0, checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_promtool_parses_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    asked = [expression for dashboard in DASHBOARDS for expression in expressions(dashboard)]
    group = {
        "name": "dashboards",
        "rules": [{"record": f"panel:{n}", "expr": expression} for n, expression in enumerate(asked)],
    }
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")

    checked = promtool("check", "rules", tmp_path / "rules.yml")

    assert checked.returncode == 0, checked.stderr
    assert f"{len(asked)} rules found" in checked.stdout


def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    text = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/", f"{MONITORING}/"), encoding="utf-8")

    checked = promtool("check", "config", tmp_path / "prometheus.yml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout
