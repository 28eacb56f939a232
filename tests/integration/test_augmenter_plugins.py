"""Augmenters of somebody's own: the guide's in a whole run, and replays that do not succeed."""

import json
import re
from pathlib import Path

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from gymfleet_kit.data.augmenter_checks import examine

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs/adding-an-augmenter.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STAGES: str = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[[stages]]" in block)
COLLECT = """
[[stages]]
kind = "collect"
name = "demonstrations"
strategy = "expert"
num_tasks = 8
"""
BOTH_WAYS = '''
from gymfleet_kit.data.augmenter import Augmenter, move_of


class BothWays(Augmenter):
    """The same once more, and without its end."""

    def augment(self, episode):
        moves = [move_of(turn) for turn in episode.turns]
        return [one for one in (moves, moves[:-1]) if one]
'''


@pytest.fixture
def brief(tmp_path: Path) -> Path:
    path = tmp_path / "brief.py"
    path.write_text(SOURCE)
    return path


def episodes(run: TrainerRun, name: str) -> list[Trajectory]:
    text = (run.run_dir / "trajectories" / f"{name}.jsonl").read_text()
    return [ScoredTrajectory.model_validate_json(line).trajectory for line in text.splitlines()]


def test_it_is_short_and_sound(brief: Path) -> None:
    assert len(SOURCE.splitlines()) < 60
    assert examine(str(brief)) == []


def test_it_is_part_of_a_run_that_is_killed(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, brief: Path) -> None:
    stages = STAGES.replace("./brief.py", str(brief))
    assert str(brief) in stages
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=COLLECT + stages)
    run.start()
    run.wait_until(lambda: (state := run.state()) is not None and len(state.left) == 1)
    run.kill()

    summary = run.finish()

    shown, changed = episodes(run, "demonstrations"), episodes(run, "augment")
    assert len(changed) == len(shown) > 0
    for one, other in zip(shown, changed, strict=True):
        assert (other.task, other.success, other.strategy) == (one.task, True, "script")
        assert [turn.action for turn in other.turns] == [turn.action for turn in one.turns]
        assert [turn.prompt_token_ids for turn in other.turns] == [turn.prompt_token_ids for turn in one.turns]
        assert [turn.thought for turn in other.turns] == [" ".join(turn.thought.split()[:2]) for turn in one.turns]
        assert all(
            len(b.response_token_ids) < len(a.response_token_ids) for a, b in zip(one.turns, other.turns, strict=True)
        )
    assert summary["counts"]["replays.augment"] == len(shown)
    assert summary["counts"]["replays_failed.augment"] == 0
    assert json.loads((run.run_dir / "plugins.json").read_text()).keys() == {str(brief)}


def test_what_no_longer_solves_its_task_is_not_left(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "both_ways.py"
    plugin.write_text(BOTH_WAYS)
    stage = f'[[stages]]\nkind = "augment"\ndata = "demonstrations"\naugmenter = "{plugin}"\n'
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=COLLECT + stage)

    summary = run.finish()

    shown, same = episodes(run, "demonstrations"), episodes(run, "augment")

    def tokens(given: list[Trajectory]) -> list[object]:
        return [[(turn.prompt_token_ids, turn.response_token_ids) for turn in one.turns] for one in given]

    assert tokens(same) == tokens(shown), "the same moves are the same tokens as the expert's"
    assert summary["counts"]["replays.augment"] > len(shown)
    assert summary["counts"]["replays_failed.augment"] == 0
