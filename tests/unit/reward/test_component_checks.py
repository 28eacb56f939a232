"""The examination of components: those that come with gymfleet pass, and each broken promise is told."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_reward.component_checks import examine
from gymfleet_reward.plugins import COMPONENTS

from tests.integration.test_component_plugins import GUIDE, of_the_guide

HEAD = """
import math
from gymfleet_reward.component import Component, ComponentError, ComponentOptions
"""
LOOSE = """
class Loose(ComponentOptions):
    model_config = {"extra": "ignore"}


class Mine(Component):
    Options = Loose

    def score(self, episode):
        return 1
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_reward.evaluation._FIRST_PAUSE_S", 0.0)


@pytest.mark.parametrize("name", COMPONENTS.included())
def test_those_that_come_with_gymfleet_are_sound(name: str) -> None:
    assert examine(name) == []


@pytest.mark.parametrize("name", [name for name in GUIDE if name != "judge"])
def test_those_of_the_guide_are_sound(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(of_the_guide(GUIDE[name]))

    assert examine(str(path)) == []
    if name == "answer":
        assert examine(str(path), {"ground_truth_from": "info.answer"}) == []
        assert "ground_truth_from" in str(examine(str(path), {"ground_truth_from": 1}))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("def score(self, episode): return math.nan", "it answered nan, for an episode of 1 turns"),
        ("def score(self, episode): return None", "it answered None"),
        ("def score(self, episode): return episode.success", "it answered True"),
        ("def score(self, episode): return [0.0]", "it answered 1 values for 3 turns"),
        ("def score(self, episode): return 1 / 0", "it raises ZeroDivisionError: division by zero"),
        ("def score(self, episode): return len(episode.turns[-1].text)", ""),
        ("def score(self, episode): return 1 / len(episode.turns)", "for an episode without turns: raise Comp"),
        ("def score(self, episode): return len(episode.turns[0].text)", "IndexError"),
        (
            "def score(self, episode):\n        episode.turns[-1].info['x'] = 1\n        return 1",
            "it changes the episodes",
        ),
        ("def score_batch(self, episodes): return [len(episodes) for _ in episodes]", "it answers other numbers for"),
        ("def score_batch(self, episodes): return sorted(one.score for one in episodes)", "it answers other numbers"),
        ("def score_batch(self, episodes): return [1.0]", "it answered 1 values for 4 episodes"),
        ("def __init__(self, options): raise OSError\n\n    score = None", "it cannot be made: OSError"),
    ],
)
def test_a_broken_promise_is_told(body: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f'{HEAD}\nclass Mine(Component[ComponentOptions]):\n    """Mine."""\n\n    {body}\n')

    told = examine(str(path))

    if fault:
        assert any(fault in line for line in told), told
    else:
        assert any("IndexError" in line and "without turns" in line for line in told), told


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("1 / 0", "cannot be imported"),
        ("class Mine(Component):\n    def score(self, episode): return 1", "it has no docstring"),
        (LOOSE, "its options take keys that they do not know"),
    ],
)
def test_what_can_be_seen_without_scoring(source: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + source)

    told: list[Any] = examine(str(path))

    assert any(fault in line for line in told), told
