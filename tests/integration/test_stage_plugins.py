"""The stage of the guide: what it promises, and in a whole run; and one that fails."""

import json
import re
from pathlib import Path

import pytest
from gymfleet_trainer.stage_checks import examine

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs/adding-a-stage.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STAGES = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[[stages]]" in block)

FAILS = """
from gymfleet_trainer.stage import Stage


class Fails(Stage):
    async def run(self, run):
        raise RuntimeError("not\\nyet")
"""


@pytest.fixture
def frontier(tmp_path: Path) -> Path:
    path = tmp_path / "frontier.py"
    path.write_text(SOURCE)
    return path


def test_it_is_short_and_sound(frontier: Path) -> None:
    assert len(SOURCE.splitlines()) < 60
    assert examine(str(frontier)) == []


def test_it_is_part_of_a_run(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, frontier: Path) -> None:
    stages = STAGES.replace("./frontier.py", str(frontier))
    # A model that was never trained solves next to nothing, and so leaves next to nothing: the expert helps out.
    stages = stages.replace('data = "frontier"', 'data = ["frontier", "demonstrations"]')
    demonstrations = '[[stages]]\nkind = "collect"\nname = "demonstrations"\nstrategy = "expert"\nnum_tasks = 8\n'
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=demonstrations + stages)

    summary = run.finish()

    left = {one["name"]: one for one in json.loads((run.run_dir / "stages.json").read_text())}
    assert list(left) == ["demonstrations", "frontier", "sft", "before", "reinforce", "after"]
    assert left["frontier"]["kind"] == str(frontier)
    assert left["frontier"]["episodes"] == "trajectories/frontier.jsonl"
    assert summary["counts"]["trajectories_received"] >= 8 + 20 * 3
    assert summary["stages"] == list(left.values())
    assert json.loads((run.run_dir / "plugins.json").read_text()).keys() == {str(frontier)}


def test_one_that_fails_ends_the_run_and_one_that_changed_does_not_go_on(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "fails.py"
    path.write_text(FAILS)
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=f'[[stages]]\nkind = "{path}"')

    run.start()

    assert run.wait() == 8
    assert run.tail().splitlines()[-1] == (
        "error: the stage fails (Fails) failed: RuntimeError: not yet; its traceback is in the log"
    )
    path.write_text(FAILS.replace("yet", "now"))
    run.start()
    assert run.wait() == 2
    assert f"{path} changed since the run in" in run.tail(400)


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (
            '[[stages]]\nkind = "distil"',
            "there is no stage 'distil'; known: augment, bradley_terry, collect, filter, generative_judge, measure,",
        ),
        ('[[stages]]\nkind = "sft"\ndata = "demos"', "stages.sft: data = 'demos': there is no such stage before it"),
        (
            '[[stages]]\nkind = "measure"\n[[stages]]\nkind = "sft"\ndata = "measure"',
            "stages.sft: data = 'measure': that stage leaves no episodes",
        ),
        ('[[stages]]\nkind = "measure"\nnum_task = 3', "stages.measure.num_task: Extra inputs are not permitted"),
        ('[[stages]]\nkind = "measure"\nname = "after"', "two are called after: give one of them another name"),
    ],
)
def test_what_cannot_be_is_a_line_before_anything_is_written(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, stages: str, reason: str
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, sft=stages)

    run.start()

    assert run.wait() == 2
    assert reason in run.tail().splitlines()[-1]
    assert not (run.run_dir / "run.json").exists()
