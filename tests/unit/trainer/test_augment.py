"""The stage `augment`: what it asks for, what it keeps, and what it counts."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from gymfleet_kit.data import samples
from gymfleet_kit.plugins import PluginError
from gymfleet_trainer.errors import PluginFailed, RunDirectoryError, TooManyFailures
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.plan import stages_of
from gymfleet_trainer.stages import augment
from gymfleet_trainer.stages.augment import Augment, AugmentOptions

from tests.fixtures.scored import make_recipe, make_scored

WITHOUT_LAST = """
from gymfleet_kit.data.augmenter import Augmenter, move_of


class WithoutLast(Augmenter):
    def augment(self, episode):
        moves = [move for turn in episode.turns if (move := move_of(turn))]
        return [moves[:-1], moves] if len(moves) > 1 else []
"""


class Rollout:
    """Plays what it is asked for at once, last asked first; what becomes of each replay is given by its number."""

    def __init__(self, outcomes: Sequence[str]) -> None:
        self.outcomes = outcomes
        self.asked: list[GroupRequest] = []
        self.open: list[GroupRequest] = []
        self.settled: list[str] = []
        self.most_open = 0

    async def ask(self, requests: Iterable[GroupRequest]) -> None:
        for request in requests:
            self.asked.append(request)
            self.open.append(request)
        self.most_open = max(self.most_open, len(self.open))

    async def next_group(self, wanted: Callable[[str], bool]) -> Group:
        request = self.open.pop()
        assert wanted(request.group_id)
        outcome = self.outcomes[int(request.group_id[-6:]) % len(self.outcomes)]
        group = Group(request)
        if outcome != "lost":
            status = Status.ENV_ERROR if outcome == "failed" else Status.COMPLETED
            scored = make_scored(request.group_id, success=outcome == "solved", status=status, error=outcome)
            group.samples[0] = scored.model_copy(update={"reward": None}) if outcome == "unscored" else scored
        return group

    def settle(self, group_id: str) -> None:
        self.settled.append(group_id)


class Thread:
    """The caller's own."""

    async def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


class Run:
    """A run, as far as the stage sees it."""

    def __init__(self, outcomes: Sequence[str], episodes: list[ScoredTrajectory] | None = None, **recipe: Any) -> None:
        self.collector = Rollout(outcomes)
        self.recipe = make_recipe(**recipe)
        names = {env.name for env in self.recipe.environments}
        self.planner = GroupPlanner(self.recipe, "run-1", {name: {"train": 9, "test": 9} for name in names})
        self.reporter = SimpleNamespace(begin=lambda *_, **__: None, advance=lambda *_, **__: None)
        self.state = SimpleNamespace(counts={})
        self.worker = Thread()
        self.left: list[str] = []
        self._episodes = samples.episodes() if episodes is None else episodes

    def episodes(self) -> list[ScoredTrajectory]:
        return self._episodes

    def leave(self, records: list[ScoredTrajectory]) -> None:
        self.left = [record.trajectory.group_id for record in records]


def augmented(run: Run, **options: Any) -> Augment:
    stage = Augment(
        PlannedStage("more", "augment", "stages.more", {"data": "collect"}, {"collect": "collect"}),
        AugmentOptions(data="collect", **options),
    )
    context: Any = run
    asyncio.run(stage.run(context))
    return stage


@pytest.fixture
def without_last(tmp_path: Path) -> str:
    path = tmp_path / "without_last.py"
    path.write_text(WITHOUT_LAST)
    return str(path)


def test_the_moves_are_replayed_in_a_new_episode_of_the_same_task() -> None:
    run = Run(["solved"], rollout={"format": "tags", "limits": {"max_turns": 7}})

    augmented(run)

    (request,) = run.collector.asked
    task = samples.episodes()[1].trajectory.task
    assert (request.group_id, request.run_id, request.num_samples) == ("more.a000000", "run-1", 1)
    assert (request.task.env, request.task.split, request.task.level) == (task.env, "train", task.level)
    assert (request.task.task_id, request.task.seed) == (task.task_id, task.seed)
    assert request.purpose == "demonstration"
    assert request.strategy.use == "script"
    assert [move["action"] for move in request.strategy.options["moves"]] == ["go left", "take key"]  # type: ignore[index,union-attr,call-overload]
    assert (request.format.use, request.limits.max_turns) == ("tags", 7)
    assert run.left == run.collector.settled == ["more.a000000"]


@pytest.mark.parametrize(
    ("outcomes", "left", "num_failed"),
    [
        (["solved"], [0, 1, 2, 3, 4, 5], 0),
        (["solved", "unsolved"], [0, 2, 4], 0),
        (["failed", "solved"], [1, 3, 5], 3),
        (["unscored", "lost", "unsolved", "solved"], [3], 4),
        (["unsolved"], [], 0),
        (["failed", "unsolved"], [], 3),
    ],
)
def test_what_solves_its_task_is_left_in_order_and_failures_are_counted(
    without_last: str, outcomes: list[str], left: list[int], num_failed: int
) -> None:
    run = Run(outcomes)

    augmented(run, augmenter=without_last)

    assert len(run.collector.asked) == 6, "the first and the last episode are the same"
    assert run.left == [f"more.a{number:06d}" for number in left]
    assert run.state.counts == {
        "replays.more": 6, "replays_failed.more": num_failed, "replays_solved.more.without_last": len(left),
    }  # fmt: skip


@pytest.mark.parametrize("outcome", ["failed", "unscored", "lost"])
def test_if_every_replay_fails_the_run_ends(without_last: str, outcome: str) -> None:
    with pytest.raises(TooManyFailures, match=r"^stages\.more: every one of 6 replays failed for technical reasons: "):
        augmented(Run([outcome]), augmenter=without_last)


def test_without_a_proposal_nothing_is_asked_for_and_nothing_left() -> None:
    run = Run(["solved"], [samples.episodes()[0]])

    augmented(run)

    assert (run.collector.asked, run.left, run.state.counts["replays.more"]) == ([], [], 0)


def test_only_so_many_are_replayed_and_open_at_once(without_last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "_WINDOW", 2)
    run = Run(["solved"])

    augmented(run, augmenter=without_last, max_replays=5)

    assert len(run.collector.asked) == 5
    assert run.collector.most_open == 2
    assert run.left == [f"more.a{number:06d}" for number in range(5)]


def test_of_several_augmenters_each_is_asked_and_what_they_propose_alike_is_replayed_once(without_last: str) -> None:
    run = Run(["solved"], samples.episodes()[1:2])

    augmented(run, augmenter=["shortened", {"use": "shortened", "loops": False}, without_last])

    asked: list[Any] = [request.strategy.options["moves"] for request in run.collector.asked]
    assert [[move["action"] for move in moves] for moves in asked] == [
        ["go left", "take key"], ["go left", "!jump", "!jump"], ["go left", "!jump", "!jump", "take key"],
    ]  # fmt: skip
    solved = {key: count for key, count in run.state.counts.items() if "solved" in key}
    assert solved == {"replays_solved.more.0.shortened": 1, "replays_solved.more.2.without_last": 2}


def test_an_augmenter_draws_from_the_episodes_behind_the_first_one() -> None:
    run = Run(["solved"], samples.episodes()[:2])

    augmented(run, augmenter={"use": "distractor", "actions": ["take key"], "copies": 1, "turns": 9})

    moves: Any = run.collector.asked[0].strategy.options["moves"]
    assert [move["action"] for move in moves] == ["take key", "look", "take key", "go left", "take key"]


def test_a_stage_that_is_begun_again_knows_the_same_requests(without_last: str) -> None:
    one, other = Run(["solved"]), Run(["solved"])
    stage, again = (augmented(run, augmenter=without_last) for run in (one, other))
    context: Any = other

    assert one.collector.asked == other.collector.asked
    assert stage.request(context, "more.a000003") == again.request(context, "more.a000003") == one.collector.asked[3]
    assert stage.request(context, "more.a000009") is None
    assert stage.request(context, "collect.t000000") is None


def test_of_several_tables_of_the_environment_that_with_the_level_counts() -> None:
    tables = [
        {"name": "maze", "label": "large", "level": "large", "limits": {"max_turns": 3}},
        {"name": "maze", "label": "small", "level": "small", "limits": {"max_turns": 5}},
    ]
    run = Run(["solved"], environments=tables)

    augmented(run)

    assert run.collector.asked[0].limits.max_turns == 5


def test_episodes_of_another_environment_are_refused() -> None:
    with pytest.raises(
        RunDirectoryError, match=r"^stages\.more: sample/\S+ was played in maze, which is no environment of"
    ):
        augmented(Run(["solved"], environments=[{"name": "wordle"}]))


def test_an_augmenter_that_fails_is_a_plug_in_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text(WITHOUT_LAST.replace("return [moves[:-1], moves]", "return 3"))

    with pytest.raises(PluginFailed, match="instead of lists of moves; its traceback is in the log"):
        augmented(Run(["solved"], samples.episodes()[:1]), augmenter=str(path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"augmenter": "shorter"},
            "there is no augmenter 'shorter'; known: distractor, paraphrase, recovery, shortened;",
        ),
        (
            {"augmenter": {"use": "shortened", "by": 3}},
            r"stages\.augment\.augmenter\.by: Extra inputs are not permitted",
        ),
        (
            {"augmenter": ["shortened", {"use": "recovery", "copies": 0}]},
            r"stages\.augment\.augmenter\.1\.copies: Input should be greater than 0",
        ),
        ({"max_replays": 8001}, r"stages\.augment\.max_replays: Input should be less than or equal to 8000"),
    ],
)
def test_it_is_checked_before_anything_is_started(options: dict[str, Any], told: str) -> None:
    with pytest.raises(PluginError, match=f"^{told}"):
        stages_of(make_recipe(stages=[{"kind": "collect"}, {"kind": "augment", "data": "collect", **options}]))
