"""Components of somebody's own: what they may be, and what becomes of bad ones."""

import re
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from gymfleet_kit.plugins import PluginError, described
from gymfleet_reward.component import Component
from gymfleet_reward.composer import Scorer
from gymfleet_reward.plugins import COMPONENTS

from tests.fixtures.rewards import make_spec, reward_of, scored, scored_together
from tests.fixtures.trajectories import make_trajectory, make_turn

HEAD = """
import asyncio, math, time
from gymfleet_reward.component import Component, ComponentError, ComponentOptions
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(source: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(HEAD + source)
        return str(path)

    return write


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_reward.evaluation._FIRST_PAUSE_S", 0.0)


def alone(path: str, **options: Any) -> Any:
    return make_spec(goal={"enabled": False}, mine={"use": path, **options})


def test_those_that_come_with_gymfleet() -> None:
    assert COMPONENTS.included() == [
        "accuracy", "action_path", "action_use", "bleu", "cosine_length", "efficiency", "environment", "exact_match",
        "f1", "format", "goal", "group_diversity", "group_length", "invalid_action", "judge", "judge_pairs",
        "judge_ranking", "length", "numeric_match", "prediction", "process_reward_model", "reasoning_steps", "recovery",
        "repetition", "reward_model", "rouge", "set_match", "tag_order", "think_format", "thought_length",
    ]  # fmt: skip
    for name in COMPONENTS.included():
        kind = COMPONENTS.find(name)
        assert issubclass(kind, Component)
        assert kind.version
        assert kind.Options.model_fields["enabled"].default is True
        assert set(described("component", name, kind).options) >= {"properties"}


@pytest.mark.parametrize("head", ["def", "async def"])
def test_one_that_scores_an_episode_is_one_method(write: Write, head: str) -> None:
    path = write(f"""
class Mine(Component[ComponentOptions]):
    {head} score(self, episode):
        return len(episode.turns)
""")

    reward = reward_of(make_trajectory((1, 1, 1)), alone(path, weight=0.5), [path])

    assert (reward.total, reward.components["mine"].raw) == (1.5, 3.0)
    assert reward.scorers == {"mine": sha256(Path(path).read_bytes()).hexdigest()[:12]}


@pytest.mark.parametrize("head", ["def", "async def"])
def test_one_that_wants_batches_gets_them(write: Write, head: str) -> None:
    path = write(f"""
class Mine(Component[ComponentOptions]):
    {head} score_batch(self, episodes):
        return [100 * len(episodes) + len(one.turns) for one in episodes]
""")
    episodes = [make_trajectory((1,) * count, sample=count) for count in (1, 2, 3)]

    answers = scored_together(episodes, alone(path), [path])

    assert [one.reward and one.reward.total for one in answers] == [301, 302, 303]
    assert [one.trajectory.sample for one in answers] == [1, 2, 3]


def test_numbers_for_turns_stand_on_their_last_tokens_and_the_rest_is_spread(write: Write) -> None:
    path = write("""
class Mine(Component[ComponentOptions]):
    def score(self, episode):
        return [number + 1 for number, _ in enumerate(episode.turns)]
""")
    spec = make_spec(
        goal={"success": 6.0}, mine={"use": path, "weight": 10}, again={"use": path}, allocation="uniform_positive"
    )

    reward = reward_of(make_trajectory((2, 1)), spec, [path])

    assert reward.total == 6 + 30 + 3
    assert reward.token_rewards == ((2.0, 2.0 + 10 + 1), (2.0 + 20 + 2,))


RANK = """
class Mine(Component[ComponentOptions]):
    per = "group"

    def score_batch(self, episodes):
        return [one.sample if one.sample else [0.5] * len(one.turns) for one in episodes]
"""


def test_groups_are_scored_together_each_by_itself(write: Write) -> None:
    path = write(RANK.replace("one.sample if", "len(episodes) if"))
    a = [make_trajectory((1,), sample=sample, group_id="a") for sample in (1, 0)]
    b = [make_trajectory((1,), sample=sample, group_id="b") for sample in (0, 1)]

    answers = scored_together([a[0], b[0], a[1], b[1]], alone(path), [path], num_samples=2)

    assert [one.reward and one.reward.total for one in answers] == [2.0, 0.5, 0.5, 2.0]
    assert [one.trajectory.group_id for one in answers] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("samples", "changes", "reason"),
    [
        ((0, 2), {"num_samples": 3}, r"has 3 episodes, here are the samples \[0, 2\]"),
        ((0, 0), {"num_samples": 2}, r"here are the samples \[0, 0\]"),
        ((0, 1), {}, "must give the same num_samples"),
    ],
)
def test_a_group_that_is_not_whole_is_not_scored(
    write: Write, samples: tuple[int, ...], changes: dict[str, Any], reason: str
) -> None:
    path = write(RANK)

    answers = scored_together([make_trajectory(sample=sample) for sample in samples], alone(path), [path], **changes)

    assert all(one.reward is None and re.search(reason, str(one.reward_error)) for one in answers)


def test_one_bad_episode_fails_its_groups_term(write: Write) -> None:
    path = write(RANK.replace("one.sample if", "math.nan if"))
    good, bad = ([make_trajectory(sample=n, group_id=name) for n in range(size)] for name, size in (("g", 1), ("b", 2)))

    answers = [
        *scored_together(good, alone(path), [path], num_samples=1),
        *scored_together(bad, alone(path), [path], num_samples=2),
    ]

    assert [one.reward is None for one in answers] == [False, True, True]
    assert {one.reward_error for one in answers[1:]} == {"mine: ComponentError: it answered nan"}


def test_a_group_whose_episode_failed_technically_is_not_scored(write: Write) -> None:
    path = write(RANK)
    episodes = [make_trajectory(sample=0), make_trajectory((), sample=1, status=Status.ENV_ERROR)]

    played, failed = scored_together(episodes, alone(path), [path], num_samples=2)

    assert "here are the samples [0]" in str(played.reward_error)
    assert (failed.reward, failed.reward_error) == (None, None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", "it answered None"),
        ("return True", "it answered True"),
        ("return '1.0'", "it answered '1.0'"),
        ("return math.nan", "it answered nan"),
        ("return -math.inf", "it answered -inf"),
        ("return 10**400", "it answered 1000"),
        ("return [1.0, 10**400]", "it answered 1000"),
        ("return [1.0]", "it answered 1 values for 2 turns"),
        ("return [1.0, None]", "it answered None for a turn"),
        ("return [1e308, 1e308]", "the sum over its turns is not finite"),
        ("return 'x' * 100_000", "it answered 'xxx"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("raise ComponentError('never')", "ComponentError: never"),
        ("raise SystemExit(3)", "it raised SystemExit(3)"),
        ("raise RuntimeError('\\ud800')", "RuntimeError: ?"),
    ],
)
@pytest.mark.parametrize("head", ["def", "async def"])
def test_nonsense_is_one_line_that_names_the_component(write: Write, head: str, body: str, reason: str) -> None:
    path = write(f"class Mine(Component[ComponentOptions]):\n    {head} score(self, episode):\n        {body}\n")

    one = scored(make_trajectory(), alone(path), [path])

    assert one.reward is None
    told = str(one.reward_error)
    assert told.startswith("mine: ")
    assert reason in told
    assert "\n" not in told
    assert len(told) < 300
    ScoredTrajectory.model_validate_json(one.model_dump_json())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return [1.0]", "it answered 1 values for 2 episodes"),
        ("return 1.0", "it answered 1.0 for 2 episodes"),
        ("return {one.sample: 1.0 for one in episodes}", "for 2 episodes"),
        ("return None", "it answered None for 2 episodes"),
    ],
)
@pytest.mark.parametrize("head", ["def", "async def"])
def test_a_batch_with_the_wrong_number_of_values_is_refused(write: Write, head: str, body: str, reason: str) -> None:
    path = write(f"class Mine(Component[ComponentOptions]):\n    {head} score_batch(self, episodes):\n        {body}\n")

    for one in scored_together([make_trajectory(sample=0), make_trajectory(sample=1)], alone(path), [path]):
        assert one.reward is None
        assert reason in str(one.reward_error)


def test_in_a_batch_an_exception_fails_its_own_episode_and_only_that_is_asked_for_again(write: Write) -> None:
    path = write("""
SIZES = []

class Mine(Component[ComponentOptions]):
    async def score_batch(self, episodes):
        SIZES.append(len(episodes))
        return [OSError("away") if one.sample == 1 else float(len(SIZES)) for one in episodes]
""")

    first, second = scored_together([make_trajectory(sample=0), make_trajectory(sample=1)], alone(path), [path])

    assert first.reward is not None
    assert first.reward.total == 1.0, "scored once"
    assert second.reward_error == "mine: OSError: away"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("async def score(self, episode):\n        await asyncio.sleep(60)", "TimeoutError: no answer within 0.3 s"),
        ("async def score(self, episode):\n        time.sleep(40)", "a component blocks the event loop"),
        ("def score(self, episode):\n        time.sleep(40)", "it did not return within 0.3 s"),
    ],
)
def test_one_that_takes_too_long_is_given_up(
    write: Write, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    monkeypatch.setattr("gymfleet_reward.user_code._GRACE_S", 0.3)
    path = write(f"class Mine(Component[ComponentOptions]):\n    {source}\n")
    scorer = Scorer([path], timeout_s=0.3)
    request = ScoreRequest(trajectory=make_trajectory(), reward=alone(path))
    started = time.monotonic()

    (one,) = scorer.score([request])

    assert reason in str(one.reward_error)
    assert time.monotonic() - started < 20
    scorer.close()


def test_many_that_wait_do_so_together(write: Write) -> None:
    path = write("""
class Mine(Component[ComponentOptions]):
    async def score(self, episode):
        await asyncio.sleep(0.5)
        return 1
""")
    started = time.monotonic()

    answers = scored_together([make_trajectory(sample=n) for n in range(50)], alone(path), [path])

    assert all(one.reward is not None for one in answers)
    assert time.monotonic() - started < 20


SCORE = "\n    def score(self, episode): return 1"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("raise SystemExit", "cannot be imported: SystemExit"),
        ("x = 1", "must say COMPONENT = <its Component subclass>"),
        ("class Mine(Component): pass", "must define score or score_batch"),
        (f"class Mine(Component):\n    per = 'group'{SCORE}", "must define score_batch"),
        (f"class Mine(Component):\n    per = 'gruop'{SCORE}", "per is 'gruop', it must be 'episode' or 'group'"),
        (f"class Mine(Component):\n    Options = dict{SCORE}", "Options is not a pydantic model"),
        (
            f"class Mine(Component):\n    def __init__(self, options): raise OSError('no model'){SCORE}",
            "cannot be made: OSError: no model",
        ),
    ],
)
def test_one_that_cannot_be_used_is_one_line(write: Write, source: str, reason: str) -> None:
    path = write(source)

    one = scored(make_trajectory(), alone(path), [path])

    assert one.reward is None
    assert re.search(reason, str(one.reward_error))
    assert "\n" not in str(one.reward_error)


def test_what_the_wire_may_name(write: Write) -> None:
    path = write("class Mine(Component[ComponentOptions]):\n    def score(self, episode): return 1")

    refused = scored(make_trajectory(), alone(path))
    unknown = scored(make_trajectory(), make_spec(gaol={}))
    misspelt = scored(make_trajectory(), make_spec(goal={"sucess": 2}))
    off = scored(make_trajectory(), make_spec(gaol={"enabled": False}))

    assert "was not given the component" in str(refused.reward_error)
    assert "there is no component 'gaol'; known: accuracy, action_path, action_use, bleu," in str(unknown.reward_error)
    assert "reward.goal.sucess: Extra inputs" in str(misspelt.reward_error)
    assert off.reward is not None


# --- functions

TASK = TaskRef(env="textcraft", split="train", level="easy", task_id="easy.train.0")


@pytest.mark.parametrize(
    ("source", "options", "total"),
    [
        pytest.param(
            "def compute_score(solution_str, ground_truth, **kwargs):\n    return solution_str == ground_truth",
            {"ground_truth_from": "info.answer"},
            1.0,
            id="keywords",
        ),
        pytest.param(
            "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
            "    assert data_source == 'textcraft' and extra_info['task_id'] == ground_truth\n"
            "    return {'score': 0.25, 'acc': 1}",
            {"ground_truth_from": "task.task_id"},
            0.25,
            id="the older signature, a table with a score",
        ),
        pytest.param(
            "from gymfleet_reward.component import Component\n"
            "class Helper:\n    worth = 0.75\n"
            "def compute_score(solution_str):\n    return Helper.worth",
            {},
            0.75,
            id="beside classes that are no component of its own",
        ),
        pytest.param(
            "async def compute_score(solution_str, bonus=0.0):\n    return len(solution_str) + bonus",
            {"reward_kwargs": {"bonus": 0.5}},
            2.5,
            id="a coroutine without a ground truth",
        ),
        pytest.param(
            "def compute_score(solution_str, ground_truth=None, extra_info=None):\n"
            "    return [ground_truth is None, extra_info['num_turns']][1]",
            {},
            2.0,
            id="a ground truth that may be left out",
        ),
    ],
)
def test_a_function_of_verl_is_a_component(tmp_path: Path, source: str, options: dict[str, Any], total: float) -> None:
    path = tmp_path / "reward.py"
    path.write_text(source)
    turns = (make_turn(2, text="no"), make_turn(2, text="42", info={"answer": "42"}))

    reward = reward_of(make_trajectory(turns=turns, task=TASK), alone(str(path), **options), [str(path)])

    assert reward.total == total
    assert reward.scorers == {"mine": sha256(source.encode()).hexdigest()[:12]}


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("def compute_score(ground_truth): return 1", {"ground_truth_from": "info.a.b"}, "episode has no info.a.b"),
        ("def compute_score(ground_truth): return 1", {}, "reward.mine.ground_truth_from: Field required"),
        ("def compute_score(ground_truth): return 1", {"ground_truth_from": "answer"}, "should match pattern"),
        ("def compute_score(): return {'acc': 1}", {}, "it returned a table without `score`: acc"),
        ("def compute_score(): return 'good'", {}, "it answered 'good'"),
        ("def compute_score(answer): return 1", {}, "it takes answer: give them in reward_kwargs"),
    ],
)
def test_a_function_without_what_it_needs(tmp_path: Path, source: str, options: dict[str, Any], reason: str) -> None:
    path = tmp_path / "reward.py"
    path.write_text(source)

    one = scored(make_trajectory(), alone(str(path), **options), [str(path)])

    assert one.reward is None
    assert reason in str(one.reward_error)


def test_a_class_that_uses_such_a_function_is_the_component(write: Write) -> None:
    path = write("""
def compute_score(solution_str):
    return 0.25

class Mine(Component[ComponentOptions]):
    def score(self, episode):
        return 2 * compute_score("")
""")

    assert reward_of(make_trajectory(), alone(path), [path]).total == 0.5


def test_any_function_of_a_module_may_be_named() -> None:
    kind = COMPONENTS.find("tests.unit.reward.test_component_plugins:length_of_the_last_reply")

    found = described("component", "mine", kind)

    assert found.summary == "Its characters."
    assert __file__ in found.sources
    with pytest.raises(PluginError, match="is not a subclass of"):
        COMPONENTS.find("tests.unit.reward.test_component_plugins:HEAD")


def length_of_the_last_reply(solution_str: str) -> int:
    """Its characters."""
    return len(solution_str)
