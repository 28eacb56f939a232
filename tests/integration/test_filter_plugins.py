"""Filters of somebody's own: the guide's in a whole run."""

import json
import re
from pathlib import Path

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data import samples
from gymfleet_kit.data.filter_checks import examine
from gymfleet_kit.data.filtering import filter_of

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs/adding-a-filter.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STAGE: str = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[[stages]]" in block)
COLLECT = """
[[stages]]
kind = "collect"
name = "demonstrations"
strategy = "expert"
num_tasks = 6
samples_per_task = 2
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "not_the_longest.py"
    path.write_text(SOURCE)
    return path


def test_it_is_short_and_sound(plugin: Path) -> None:
    assert len(SOURCE.splitlines()) < 60
    assert examine(str(plugin)) == []


def test_it_compares_with_what_comes_behind(plugin: Path) -> None:
    short, long = samples.episodes()[:2]
    task = {"task": short.trajectory.task}
    slow = long.model_copy(update={"trajectory": long.trajectory.model_copy(update=task)})

    def kept(detour: int) -> list[ScoredTrajectory]:
        found = filter_of({"use": str(plugin), "detour": detour}, table="filters.0").kept([slow, short])
        return [one for one in found if isinstance(one, ScoredTrajectory)]

    assert kept(1) == [short], "five turns, where three do"
    assert kept(2) == [slow, short]


def test_it_is_part_of_a_run(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, plugin: Path) -> None:
    stage = STAGE.replace("./not_the_longest.py", str(plugin))
    assert str(plugin) in stage
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=COLLECT + stage)

    summary = run.finish()

    left = {one["name"]: one for one in json.loads((run.run_dir / "stages.json").read_text())}
    given, kept = left["demonstrations"]["num_episodes"], left["filter"]["num_episodes"]
    counts = summary["counts"]
    doubles, detours = counts["left_out.filter.0.duplicates"], counts["left_out.filter.1.not_the_longest"]
    assert given > 0
    assert (doubles, detours, kept) == (given // 2, 0, given // 2), "the expert plays a task in the same way both times"
    assert json.loads((run.run_dir / "plugins.json").read_text()).keys() == {str(plugin)}
