"""Gymnasium environments as ours: texts, names of actions, scores, and what cannot be played is refused."""

from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.adapters.gymnasium import from_gymnasium
from gymnasium.spaces import Box, Discrete, Text

MOVES = ("left", "down", "right", "up")
LAKE = """
from gymfleet_envs.adapters.gymnasium import from_gymnasium

ENVIRONMENT = from_gymnasium("FrozenLake-v1", actions=("left", "down", "right", "up"), solved_at=1.0, is_slippery=False)
"""


class Riddle(gymnasium.Env):  # type: ignore[misc]
    """Say the word.

    More of this is not shown.
    """

    observation_space = Text(100, charset="abcdefghijklmnopqrstuvwxyz ")
    action_space = Text(10, charset="abc")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = "abc"[self.np_random.integers(3)]
        return f"not {'abc'.replace(self.word, '')}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "heard", 2.0 if action == self.word else 1.0, action == self.word, action == "cc", {}


class Blind(gymnasium.Env):  # type: ignore[misc]
    observation_space = Box(0, 1)
    action_space = Box(0, 1)


class Drawn(gymnasium.Env):  # type: ignore[misc]
    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own
    observation_space = Discrete(2)
    action_space = Discrete(1)

    def __init__(self, render_mode: str | None = None, drawing: Any = None) -> None:
        self.render_mode = render_mode
        self.drawing = drawing

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def render(self) -> Any:
        return self.drawing


gymnasium.register("gymfleet-tests/Drawn-v0", Drawn, max_episode_steps=5, disable_env_checker=True)
gymnasium.register("gymfleet-tests/Riddle-v0", Riddle, max_episode_steps=5)
gymnasium.register("gymfleet-tests/Blind-v0", Blind)


def lake(**more: Any) -> Any:
    return from_gymnasium("FrozenLake-v1", actions=MOVES, solved_at=1.0, is_slippery=False, **more)


def test_one_line_in_a_file_is_served(tmp_path: Path) -> None:
    (tmp_path / "lake.py").write_text(LAKE)

    entry = load_entry(str(tmp_path / "lake.py"), {})

    assert (entry.spec.name, entry.spec.max_turns) == ("frozenlake_v1", 100)
    assert "left, down, right, up" in entry.spec.instructions
    assert entry.spec.capabilities.admissible_actions
    world = entry.make()
    assert world.reset(entry.tasks.by_index("test", "only", 0).data, 0) == "[S]FFF\nFHFH\nFFFH\nHFFG"


def test_episode_is_gymnasiums_own() -> None:
    world = lake()()
    world.reset(0, 0)

    outcomes = [world.step(move) for move in ("Down", "down", "right", "right", " down", "right")]

    assert [one.terminated for one in outcomes] == [False] * 5 + [True]
    assert (outcomes[-1].reward, outcomes[-1].score) == (1.0, 1.0)
    assert outcomes[0].observation.endswith("SFFF\n[F]HFH\nFFFH\nHFFG")
    assert [one.score for one in outcomes[:-1]] == [0.0] * 5


def test_unknown_action_is_answered_with_those_that_there_are() -> None:
    world = lake()()
    world.reset(0, 0)

    outcome = world.step("jump")

    assert not outcome.action_valid
    assert outcome.observation == "There is no action 'jump'. Take one of: left, down, right, up."


def test_texts_are_taken_as_they_are_and_a_part_of_the_return_is_a_part_of_the_score() -> None:
    kind = from_gymnasium("gymfleet-tests/Riddle-v0", solved_at=4.0)
    world = kind()

    first = world.reset(3, 0)

    assert kind.instructions == "Say the word."
    assert first == kind().reset(3, 1), "the task's seed alone decides"
    assert {kind().reset(seed, 0) for seed in range(20)} == {"not ab", "not ac", "not bc"}
    word = ({*"abc"} - {*first.removeprefix("not ")}).pop()
    assert world.step("no such text").action_valid is False
    assert world.step("aa").score == 0.25
    last = world.step(word)
    assert (last.score, last.terminated) == (0.75, True)


def test_its_own_truncation_ends_the_episode_and_says_so() -> None:
    world = from_gymnasium("gymfleet-tests/Riddle-v0", solved_at=1.0)()
    world.reset(0, 0)

    outcome = world.step("cc")

    assert (outcome.terminated, outcome.info) == (True, {"truncated": True})


def drawn(drawing: Any) -> str:
    world = from_gymnasium("gymfleet-tests/Drawn-v0", solved_at=1.0, actions=("wait",), drawing=drawing)()
    shown: str = world.reset(0, 0)
    return shown


def test_a_rendering_may_be_a_file_of_text() -> None:
    assert drawn(StringIO("#.#")) == "#.#"


def test_a_rendering_that_is_no_text_is_no_observation() -> None:
    with pytest.raises(TypeError, match="renders NoneType, no text: give observe"):
        drawn(None)


def test_observations_that_are_no_texts_are_made_some() -> None:
    world = lake(observe=lambda observation, info: f"tile {observation}, {info['prob']}")()

    assert world.reset(0, 0) == "tile 0, 1"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("FrozenLake-v1", {"solved_at": 1.0, "actions": ("left",)}, "it has 4 actions, and actions names 1"),
        ("FrozenLake-v1", {"solved_at": 1.0, "actions": ("a", "A", "b", "c")}, "name each, all different"),
        ("FrozenLake-v1", {"solved_at": 0.0, "actions": MOVES}, "must be above 0"),
        ("gymfleet-tests/Blind-v0", {"solved_at": 1.0}, "renders no text: give observe"),
        ("gymfleet-tests/Blind-v0", {"solved_at": 1.0, "observe": lambda o, i: ""}, "only texts, and numbers from 0"),
        ("gymfleet-tests/Riddle-v0", {"solved_at": 1.0, "actions": ("a",)}, "leave actions out"),
        ("Blackjack-v1", {"solved_at": 1.0, "actions": ("stick", "hit"), "observe": lambda o, i: str(o)}, "max_turns"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_gymnasium(name, **options)


def test_numbers_that_do_not_begin_at_0_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Riddle, "action_space", Discrete(2, start=1))

    with pytest.raises(ValueError, match="numbers from 0"):
        from_gymnasium("gymfleet-tests/Riddle-v0", solved_at=1.0, actions=("a", "b"))
