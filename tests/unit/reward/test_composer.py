"""Composite rewards worked out by hand."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.reward import RewardSpec, ScoreRequest
from gymfleet_contracts.trajectory import Status
from gymfleet_reward.composer import Scorer
from gymfleet_reward.errors import Unscorable

from tests.fixtures.rewards import make_spec, reward_of, scored
from tests.fixtures.trajectories import make_trajectory, make_turn


@pytest.mark.parametrize(
    ("goal", "episode", "value"),
    [
        pytest.param({}, {"success": True}, 1.0, id="solved"),
        pytest.param({}, {"success": False, "score": 0.9}, -1.0, id="not solved: the score is not looked at"),
        pytest.param({"weight": 2.0, "success": 3.0}, {"success": True}, 6.0, id="weight times raw"),
        pytest.param({"partial": True}, {"success": False, "score": 0.25}, -0.5, id="a quarter of the way up"),
        pytest.param({"partial": True}, {"success": False, "score": 0.0}, -1.0, id="nowhere"),
        pytest.param({"partial": True}, {"success": True, "score": 1.0}, 1.0, id="all the way"),
        pytest.param({"partial": True, "failure": 0.0}, {"score": 0.7}, 0.7, id="from 0 to 1: the score itself"),
    ],
)
def test_goal(goal: dict[str, Any], episode: dict[str, Any], value: float) -> None:
    reward = reward_of(make_trajectory(**episode), make_spec(goal=goal))

    assert reward.total == pytest.approx(value)
    assert reward.components["goal"].value == pytest.approx(value)
    assert set(reward.components) == {"goal"}, "what is switched off is not computed"


def test_format_is_the_share_of_replies_that_the_environment_could_use() -> None:
    turns = (
        make_turn(2),
        make_turn(2, format_valid=False),
        make_turn(2, action_valid=False),
        make_turn(2, format_valid=False, action_valid=False),
    )

    reward = reward_of(make_trajectory(turns=turns), make_spec(format={}))

    assert reward.components["format"].raw == 0.25
    assert reward.total == pytest.approx(1.0 + 0.05)


@pytest.mark.parametrize(
    ("shape", "raw"),
    [  # bounds 3 to 5; replies of 1, 4 and 9 tokens: 2 short, within, 4 over
        pytest.param("linear", (2 + 0 + 4) / 3, id="linear"),
        pytest.param("quadratic", (4 + 0 + 16) / 3, id="quadratic"),
        pytest.param("log", (math.log(3) + math.log(5)) / 3, id="log(1 + excess)"),
    ],
)
def test_length_costs_by_the_token(shape: Any, raw: float) -> None:
    length = {"weight": -0.1, "min_tokens": 3, "max_tokens": 5, "shape": shape}

    reward = reward_of(make_trajectory((1, 4, 9)), make_spec(length=length))

    assert reward.components["length"].raw == pytest.approx(raw)
    assert reward.total == pytest.approx(1.0 - 0.1 * raw)


def test_everything_together_with_its_breakdown_and_its_tokens() -> None:
    spec = make_spec(
        goal={"success": 1.0},
        format={"weight": 0.5},
        length={"weight": -0.25, "min_tokens": 0, "max_tokens": 1},
        allocation="uniform_positive",
    )

    reward = reward_of(make_trajectory((3, 2)), spec)

    # 1 + 0.5 * 1 - 0.25 * (2 + 1) / 2 = 1.125, over five tokens 0.225 each
    assert {name: term.value for name, term in reward.components.items()} == {
        "goal": 1.0, "format": 0.5, "length": -0.375,
    }  # fmt: skip
    assert reward.total == pytest.approx(1.125)
    assert [len(turn) for turn in reward.token_rewards] == [3, 2]
    assert all(token == pytest.approx(0.225) for turn in reward.token_rewards for token in turn)
    assert reward.allocation == "uniform_positive"
    assert reward.scorers == {"goal": "1", "format": "1", "length": "1"}


JUDGE = """
from gymfleet_reward.component import Component, ComponentError, ComponentOptions


class Options(ComponentOptions):
    script: list[float | str]


class Judge(Component[Options]):
    Options = Options
    calls = 0

    def score(self, episode):
        type(self).calls += 1
        script = self.options.script
        answer = script[min(self.calls, len(script)) - 1]
        if isinstance(answer, str):
            raise (ComponentError if answer.startswith("never") else RuntimeError)(answer)
        return answer
"""


@pytest.fixture
def judge(tmp_path: Path) -> str:
    """A component that answers the script's values in order, the last one for ever; texts are raised."""
    path = tmp_path / "judge.py"
    path.write_text(JUDGE)
    return str(path)


@pytest.fixture
def scorer(judge: str) -> Iterator[Scorer]:
    scorer = Scorer([judge])
    yield scorer
    scorer.close()


def judged(judge: str, *script: float | str, **options: Any) -> RewardSpec:
    return make_spec(judge={"use": judge, "weight": 3.0, "script": list(script), **options})


def calls(scorer: Scorer, spec: RewardSpec) -> int:
    """How often the judge of a spec was asked."""
    return int(type(scorer.terms(spec)[-1].component).calls)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_reward.evaluation._FIRST_PAUSE_S", 0.0)


def test_a_component_that_keeps_failing_leaves_no_reward_at_all(scorer: Scorer, judge: str) -> None:
    spec = judged(judge, "the judge\nis away")

    (one,) = scorer.score([ScoreRequest(trajectory=make_trajectory(success=False), reward=spec)])

    assert one.reward is None, "with 0 for the judge a broken scorer would be worth more than a failing policy"
    assert one.reward_error == "judge: RuntimeError: the judge is away"
    assert calls(scorer, spec) == 3


def test_a_component_that_fails_once_is_asked_again(scorer: Scorer, judge: str) -> None:
    spec = judged(judge, "connection reset", 0.5)

    (one,) = scorer.score([ScoreRequest(trajectory=make_trajectory(), reward=spec)])

    assert one.reward is not None
    assert (one.reward.total, one.reward.components["judge"].error) == (2.5, None)
    assert calls(scorer, spec) == 2


def test_a_component_that_cannot_judge_is_not_asked_again(scorer: Scorer, judge: str) -> None:
    spec = judged(judge, "never: no such rubric", 0.5)

    (one,) = scorer.score([ScoreRequest(trajectory=make_trajectory(), reward=spec)])

    assert one.reward_error == "judge: ComponentError: never: no such rubric"
    assert calls(scorer, spec) == 1


def test_a_component_may_be_told_to_count_nothing_when_it_fails(judge: str) -> None:
    reward = reward_of(make_trajectory(), judged(judge, "the judge is away", on_error="zero"), [judge])

    assert reward.components["judge"].value == 0.0
    assert reward.components["judge"].error == "RuntimeError: the judge is away"
    assert reward.components["goal"].error is None
    assert reward.total == 1.0


def test_a_value_whose_weight_makes_it_infinite_is_a_failure(judge: str) -> None:
    assert "3.0 * 1e+308 is not finite" in str(scored(make_trajectory(), judged(judge, 1e308), [judge]).reward_error)


def test_a_total_that_is_no_number_is_a_failure() -> None:
    goal = {"success": 1e308}

    one = scored(make_trajectory(), make_spec(goal=goal, other={"use": "goal", **goal}))

    assert (one.reward, one.reward_error) == (None, "the sum of the components is not finite")


def test_two_labels_may_have_the_same_component_with_other_options() -> None:
    reward = reward_of(make_trajectory((4,)), make_spec(
        goal={"enabled": False},
        short={"use": "length", "min_tokens": 0, "max_tokens": 1, "weight": -1},
        long={"use": "length", "min_tokens": 10, "weight": -0.5},
    ))  # fmt: skip

    assert {label: term.value for label, term in reward.components.items()} == {"short": -3.0, "long": -3.0}
    assert reward.scorers == {"short": "1", "long": "1"}
    assert reward.total == -6.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.5, -0.1])
def test_a_score_that_is_none_is_no_reward(bad: float) -> None:
    # As a stream would never let it in: the contract knows finite scores alone.
    trajectory = make_trajectory().model_copy(update={"score": bad})

    (one,) = Scorer().score(
        [ScoreRequest.model_construct(trajectory=trajectory, reward=make_spec(goal={"partial": True}))]
    )

    assert one.reward is None
    assert str(one.reward_error).startswith("goal: ComponentError: ")


@pytest.mark.parametrize("section", ["format", "length"])
def test_without_turns_there_are_no_replies_to_judge(section: str) -> None:
    spec = make_spec(**{section: {"weight": 1.0, "on_error": "zero"}})

    reward = reward_of(make_trajectory(()), spec)

    assert reward.components[section].error == "ComponentError: the trajectory has no turns"
    assert reward.total == 1.0
    assert reward.token_rewards == ()


# --- the environment's own rewards

STEPS = (make_turn(2, reward=0.5), make_turn(1, reward=-0.25), make_turn(3, reward=0.0))


def environment_scoring(**changes: Any) -> RewardSpec:
    return make_spec(environment={"weight": 2.0, **changes.pop("environment", {})}, **changes)


def test_the_environments_own_rewards_join_the_total() -> None:
    reward = reward_of(make_trajectory(turns=STEPS), environment_scoring())

    assert reward.components["environment"].raw == 0.25
    assert reward.components["environment"].value == 0.5
    assert reward.total == 1.5
    assert reward.token_rewards == ((0.0, 0.0), (0.0,), (0.0, 0.0, 1.5))


def test_an_episode_may_have_hundreds_of_turns() -> None:
    turns = (make_turn(1, reward=0.25),) * 300

    reward = reward_of(make_trajectory(turns=turns), environment_scoring(environment={"credit": "per_turn"}))

    assert reward.components["environment"].raw == 75.0
    assert reward.token_rewards[:2] == ((0.5,), (0.5,))


@pytest.mark.parametrize(
    ("allocation", "success", "gamma", "expected"),
    [  # the environment gives 1, -0.5 and 0 on the last tokens; the goal's 1 or -1 is allocated
        pytest.param("last_token", True, 1.0, ((0, 1), (-0.5,), (0, 0, 1)), id="last token"),
        pytest.param("uniform_positive", True, 1.0, ((1 / 6, 7 / 6), (-1 / 3,), (1 / 6,) * 3), id="a gain by parts"),
        pytest.param("uniform_positive", False, 1.0, ((0, 1), (-0.5,), (0, 0, -1)), id="a loss on the last token"),
        # weights 0.5^4, 0.5^3, 1 for turns of 2, 1 and 3 tokens
        pytest.param("discounted", True, 0.5, ((1 / 32, 1 + 1 / 32), (1 / 8 - 0.5,), (1 / 3,) * 3), id="discounted"),
        pytest.param(
            "discounted_normalised", True, 1.0, ((1 / 6, 7 / 6), (1 / 3 - 0.5,), (1 / 9,) * 3), id="normalised"
        ),
    ],
)
def test_each_turns_reward_lands_on_its_own_last_token(
    allocation: str, success: bool, gamma: float, expected: tuple[tuple[float, ...], ...]
) -> None:
    spec = environment_scoring(environment={"credit": "per_turn"}, allocation=allocation, gamma=gamma)

    reward = reward_of(make_trajectory(turns=STEPS, success=success), spec)

    assert reward.total == (1.0 if success else -1.0) + 0.5
    for tokens, wanted in zip(reward.token_rewards, expected, strict=True):
        assert tokens == pytest.approx(wanted)
    if allocation != "discounted":
        assert math.fsum(token for tokens in reward.token_rewards for token in tokens) == pytest.approx(reward.total)


def test_what_an_empty_reply_earned_goes_to_the_nearest_reply_before_it() -> None:
    turns = (make_turn(0, reward=1.0), make_turn(2, reward=2.0), make_turn(0, reward=4.0), make_turn(1, reward=8.0))
    spec = make_spec(goal={"enabled": False}, environment={"credit": "per_turn"})

    reward = reward_of(make_trajectory(turns=turns), spec)

    assert reward.token_rewards == ((), (0.0, 7.0), (), (8.0,))
    assert reward.total == 15.0


def test_an_episode_without_tokens_has_nothing_to_put_a_turns_reward_on() -> None:
    spec = make_spec(environment={"credit": "per_turn"})

    reward = reward_of(make_trajectory(turns=(make_turn(0, reward=1.0),)), spec)

    assert (reward.total, reward.token_rewards) == (2.0, ((),))


@pytest.mark.parametrize("on_error", ["fail", "zero"])
def test_an_environments_reward_that_is_no_number_is_a_failure(on_error: str) -> None:
    turns = (make_turn(1).model_copy(update={"reward": math.nan}), make_turn(1, reward=1.0))
    spec = environment_scoring(environment={"credit": "per_turn", "on_error": on_error})

    one = scored(make_trajectory(turns=turns), spec)

    if on_error == "fail":
        assert one.reward is None
    else:
        assert one.reward is not None
        assert one.reward.token_rewards == ((0.0,), (1.0,)), "the goal alone"


@pytest.mark.parametrize("status", list(Status))
def test_only_what_says_something_about_the_policy_is_rewarded(status: Status) -> None:
    trajectory = make_trajectory(status=status, success=False, score=0.0)

    one = scored(trajectory)

    assert one.trajectory == trajectory
    if status in (Status.COMPLETED, Status.TRUNCATED):
        assert one.reward is not None
        assert one.reward.total == -1.0
    else:
        assert one.reward is None, "a failure of the machinery is no reward, not even 0"


def test_components_are_made_once_whatever_else_is_scored_between(scorer: Scorer) -> None:
    first, second = make_spec(), make_spec(goal={"weight": 2.0})
    terms = scorer.terms(first)
    scorer.terms(second)

    assert scorer.terms(first) is terms


@pytest.mark.parametrize(
    ("samples", "sizes", "lack"),
    [
        ((0, 1), (2, 2), None),
        ((0, 1), (3, 3), "it has 3 episodes, here are the samples [0, 1]"),
        ((0, 1), (2, 3), "all its records must give the same num_samples"),
    ],
)
def test_a_request_that_scores_a_group_holds_all_of_it(
    scorer: Scorer, samples: tuple[int, ...], sizes: tuple[int, ...], lack: str | None
) -> None:
    spec = make_spec(group_length={})
    requests = [
        ScoreRequest(trajectory=make_trajectory(sample=sample), reward=spec, num_samples=size)
        for sample, size in zip(samples, sizes, strict=True)
    ]
    if lack is None:
        scorer.check(requests)
        return
    with pytest.raises(Unscorable, match=re.escape(lack)):
        scorer.check(requests)
