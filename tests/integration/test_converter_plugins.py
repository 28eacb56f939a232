"""Converters of somebody's own: the guide's in a whole run, and real forms beside it."""

import json
import re
from pathlib import Path

import pytest
from gymfleet_kit.data.converter_checks import examine

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs/adding-a-converter.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STAGE: str = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[[stages]]" in block)
STEPS = [{"saw": "a wall", "did": "Action: move left"}, {"saw": "the goal", "did": "Action: move up"}]


@pytest.fixture
def agent_log(tmp_path: Path) -> Path:
    path = tmp_path / "agent_log.py"
    path.write_text(SOURCE)
    return path


def stage_of(plugin: Path, data: Path) -> str:
    assert "./agent_log.py" in STAGE
    return STAGE.replace("./agent_log.py", str(plugin)).replace("logs.jsonl", str(data))


def logs(path: Path, *solved: bool) -> Path:
    path.write_text("".join(json.dumps({"goal": "Leave.", "solved": one, "steps": STEPS}) + "\n" for one in solved))
    return path


def test_it_is_short_and_sound(agent_log: Path) -> None:
    assert len(SOURCE.splitlines()) < 60
    assert examine(str(agent_log)) == []


def test_it_is_part_of_a_run_that_is_killed(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, agent_log: Path
) -> None:
    data = logs(tmp_path / "logs.jsonl", True, False, True)
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=stage_of(agent_log, data))
    run.start()
    run.wait_until(lambda: bool(run.metrics("sft_epoch")))
    run.kill()

    summary = run.finish()

    assert [line["epoch"] for line in run.metrics("sft_epoch")] == [1, 2]
    replies = sum(len(step["did"]) for step in STEPS) * 2
    assert 0 < run.metrics("sft_epoch")[0]["num_trained_tokens"] <= replies + 4, "replies alone, each with its end"
    assert summary["counts"]["conversations.sft"] == 2, "of three logs two were solved"
    assert summary["counts"]["conversations_too_long.sft"] == 0
    assert json.loads((run.run_dir / "plugins.json").read_text()).keys() == {str(agent_log)}


def test_a_damaged_record_ends_the_run_with_its_line(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, agent_log: Path
) -> None:
    data = logs(tmp_path / "logs.jsonl", True)
    data.write_text(data.read_text() + '{"goal": "Leave.", "solved": true}\n')
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=stage_of(agent_log, data))

    run.start()

    assert run.wait() == 2
    assert run.tail().splitlines()[-1] == (
        f"error: {data}, line 2: no record for the converter agent_log: steps: a list is wanted; it is missing"
    )
