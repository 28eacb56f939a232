"""Reply formats of somebody's own: the guide's in a whole run, and one that fails."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_contracts.rollout import EpisodeLimits, GroupRequest, StrategySpec
from gymfleet_contracts.trajectory import Status
from gymfleet_rollout.format_checks import examine

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet
from tests.integration.test_rollout_service import group, played

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FAILS = """
from pathlib import Path

from gymfleet_contracts.formats.react import React


class Fails(React):
    def parse(self, text):
        if not Path(__file__).with_name("mended").exists():
            raise RuntimeError("not\\nyet")
        return super().parse(text)
"""


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs/adding-a-format.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the guide's format and one that fails."""
    path = tmp_path_factory.mktemp("formats")
    guide, *_ = blocks("python")
    assert len(guide.splitlines()) < 60
    (path / "prompt_sign.py").write_text(guide)
    (path / "fails.py").write_text(FAILS)
    return path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, plugins: Path) -> Iterator[Fleet]:
    settings = {"LEASE_S": "3", "PLUGINS": json.dumps([str(path) for path in plugins.glob("*.py")])}
    with Fleet(tmp_path_factory.mktemp("fleet"), tiny_model, rollout=settings) as fleet:
        yield fleet


@pytest.fixture
def http(fleet: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.rollout.url, timeout=60, trust_env=False) as client:
        yield client


def section(use: Path | str, **options: Any) -> dict[str, Any]:
    return {"format": {"use": str(use), **options}}


def expert(**given: Any) -> GroupRequest:
    limits = EpisodeLimits(max_context_tokens=1024)
    return group("own", num_samples=1, strategy=StrategySpec(use="expert"), limits=limits, **given)


def test_the_format_of_the_guide_is_sound(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plugins)

    assert blocks("python")[1].splitlines()[-1] == 'assert examine("./prompt_sign.py") == []'
    assert examine("./prompt_sign.py") == []


def test_the_format_of_the_guide_in_a_whole_run(
    fleet: Fleet, http: httpx.Client, tiny_model: Path, tmp_path: Path, plugins: Path
) -> None:
    path = plugins / "prompt_sign.py"
    table = blocks("toml")[0].replace("./prompt_sign.py", str(path))
    run = TrainerRun(fleet, tmp_path, tiny_model, steps=2, more=table)

    run.finish()

    assert json.loads((run.run_dir / "plugins.json").read_text()).keys() == {str(path)}
    (demonstration,) = played(http, expert(**section(path, sign="$")))
    assert (demonstration.format, demonstration.format_version) == ("prompt_sign", 1)
    assert demonstration.turns
    assert all(turn.text.endswith(f"\n$ {turn.action}") and turn.format_valid for turn in demonstration.turns)


def test_one_that_fails_ends_the_run_and_leaves_the_service_as_it_was(
    fleet: Fleet, tiny_model: Path, tmp_path: Path, plugins: Path
) -> None:
    path = plugins / "fails.py"
    run = TrainerRun(fleet, tmp_path, tiny_model, steps=1, sft="", more=f'[rollout.format]\nuse = "{path}"')

    run.start()

    assert run.wait() == 6
    last = run.tail().splitlines()[-1]
    assert "FormatFailed: the format fails failed in parse: RuntimeError: not yet" in last
    (plugins / "mended").touch()
    TrainerRun(fleet, tmp_path / "again", tiny_model, steps=1, sft="", more=run.more).finish()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (section("morse"), "there is no format 'morse'; known: agentbench_kg, agentbench_os, "),
        (section("/etc/passwd.py"), "this service was not given the format '/etc/passwd.py'"),
        (section("tags", tag="x"), "rollout.format.tag: Extra inputs are not permitted (the options of tags: "),
    ],
)
def test_what_this_service_does_not_play_is_refused(http: httpx.Client, given: dict[str, Any], reason: str) -> None:
    body = {"groups": [group("refused", **given).model_dump(mode="json")]}

    answer = http.post("/v1/jobs", json=body)

    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unknown-format")
    assert answer.json()["detail"].startswith(reason)


def test_tags_over_the_wire(http: httpx.Client) -> None:
    (episode,) = played(http, expert(**section("tags", action_tag="act")))

    assert episode.status is Status.COMPLETED
    assert all(turn.text.endswith(f"<act>{turn.action}</act>") for turn in episode.turns)
