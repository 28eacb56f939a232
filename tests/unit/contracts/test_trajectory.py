"""What no reader of a trajectory has to check again, because the contract refuses it."""

import math
from typing import Any, Final

import pytest
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.trajectory import Reward, ScoredTrajectory, Status
from pydantic import ValidationError

from tests.fixtures.trajectories import make_trajectory, make_turn


def scored(**changes: Any) -> dict[str, Any]:
    """A good record of turns of 3 and 2 tokens, as JSON would hold it."""
    reward = Reward(
        total=1.0, components={}, allocation="last_token", token_rewards=((0.0,) * 3, (0.0, 1.0)), scorers={}
    )
    good = ScoredTrajectory(trajectory=make_trajectory((3, 2)), reward=reward)
    return good.model_dump(mode="json") | changes


def turn(**changes: Any) -> dict[str, Any]:
    """A record whose second turn is other than the good one."""
    record = scored()
    record["trajectory"]["turns"][1] |= changes
    return record


def episode(**changes: Any) -> dict[str, Any]:
    record = scored()
    record["trajectory"] |= changes
    return record


def reward(**changes: Any) -> dict[str, Any]:
    record = scored()
    record["reward"] |= changes
    return record


UNSAMPLED: Final[dict[str, Any]] = {"response_logprobs": None, "policy_versions": []}


def spans(*given: tuple[int, int]) -> list[dict[str, int]]:
    return [{"version": version, "num_tokens": count} for version, count in given]


def test_a_good_record_is_read() -> None:
    assert ScoredTrajectory.model_validate(scored()).reward is not None


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        pytest.param(turn(response_logprobs=[-1.0]), "2 response tokens have 1 log-prob", id="too few log-probs"),
        pytest.param(turn(response_logprobs=[-1.0] * 3), "2 response tokens have 3", id="too many log-probs"),
        pytest.param(turn(**UNSAMPLED), "turns.1: the policy's replies have", id="no log-probs"),
        pytest.param(turn(response_logprobs=None), "0 sampled tokens have .* for 2", id="versions and no log-probs"),
        pytest.param(turn(response_logprobs=[-1.0, math.nan]), "finite number", id="a log-prob that is nan"),
        pytest.param(turn(response_logprobs=[-1.0, -math.inf]), "finite number", id="an impossible token"),
        pytest.param(turn(response_logprobs=[-1.0, 0.1]), "less than or equal", id="a probability above 1"),
        pytest.param(turn(response_token_ids=[4, -1]), "greater than or equal", id="a negative token"),
        pytest.param(turn(prompt_token_ids=[-1]), "greater than or equal", id="a negative token in the prompt"),
        pytest.param(turn(response_token_ids=[4, True]), "item 1 must be a number", id="a truth for a token"),
        pytest.param(turn(response_token_ids=["4", 5]), "item 0 must be a number", id="text for a token"),
        pytest.param(turn(response_token_ids=[4, None]), "valid integer", id="nothing for a token"),
        pytest.param(turn(response_token_ids=[4, 5.5]), "valid integer", id="half a token"),
        pytest.param(turn(reward=math.nan), "finite number", id="a step's reward that is nan"),
        pytest.param(turn(policy_versions=spans((0, 1))), "2 sampled tokens have .* for 1", id="a version too few"),
        pytest.param(turn(policy_versions=[]), "2 sampled tokens have policy_versions for 0", id="no versions"),
        pytest.param(turn(policy_versions=spans((1, 1), (0, 1))), r"ascend .* \[1, 0\]", id="versions that go down"),
        pytest.param(turn(policy_versions=spans((0, 1), (0, 1))), r"ascend .* \[0, 0\]", id="a span in two"),
        pytest.param(turn(policy_versions=spans((0, 2), (1, 0))), "greater than or equal", id="a span of nothing"),
        pytest.param(turn(policy_versions=spans((0, 1), (9, 1))), "outside the trajectory's", id="other weights"),
        pytest.param(episode(policy={"model": "m", "version_min": 2, "version_max": 1}), "above", id="disorder"),
        pytest.param(episode(policy={"model": "m", "version_min": -1, "version_max": 1}), "greater", id="version -1"),
        pytest.param(turn(role="The Planner"), "should match pattern", id="a role that is no name"),
        pytest.param(turn(context="dropped"), "'continued' or 'replaced'", id="an unknown context"),
        pytest.param(
            episode(turns=[dict(scored()["trajectory"]["turns"][0], context="replaced")]),
            "no context before the first turn",
            id="nothing to replace",
        ),
        pytest.param(episode(trajectory_id="run/g0/7"), "its parts make 'run/g0/0'", id="another one's id"),
        pytest.param(episode(sample=-1), "greater than or equal", id="a negative sample"),
        pytest.param(episode(score=math.inf), "finite number", id="an infinite score"),
        pytest.param(episode(final_prompt_token_ids=[-5]), "greater than or equal", id="a negative final token"),
        pytest.param(episode(status="timeout"), "status timeout has no reward", id="a reward for a failure"),
        pytest.param(reward(token_rewards=[[0.0] * 3]), r"\[3, 2\] response tokens have \[3\]", id="a turn too few"),
        pytest.param(reward(token_rewards=[[0.0] * 3, [1.0]]), r"have \[3, 1\] token rewards", id="a token too few"),
        pytest.param(reward(token_rewards=[[0.0] * 3, [0.0, math.nan]]), "finite number", id="a reward that is nan"),
        pytest.param(reward(total=math.inf), "finite number", id="an infinite total"),
        pytest.param(scored(reward_error="judge: away"), "a reward and an error", id="both reward and error"),
    ],
)
def test_what_does_not_fit_together_is_refused(record: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ScoredTrajectory.model_validate(record)


def test_certainty_may_be_rounded_up() -> None:
    ScoredTrajectory.model_validate(turn(response_logprobs=[0.0, 1e-6]))


def test_a_reply_may_be_continued_by_newer_weights() -> None:
    record = turn(policy_versions=spans((0, 1), (2, 1)))
    record["trajectory"]["policy"] |= {"version_max": 2}

    read = ScoredTrajectory.model_validate(record)

    assert read.model_dump(mode="json") == record, "bit for bit, and in one form only"


def test_a_turn_that_replaces_the_context_begins_a_sequence() -> None:
    first, second, third = (make_turn(length) for length in (1, 2, 3))
    replaced = second.model_copy(update={"context": "replaced"})

    assert make_trajectory(turns=(first, replaced, third)).sequences() == [(first,), (replaced, third)]
    assert make_trajectory(turns=(first, second)).sequences() == [(first, second)]
    assert make_trajectory(turns=()).sequences() == []
    assert not {"context", "role"} & first.model_dump().keys(), "a record that says neither has the same bytes"


def test_an_expert_needs_no_log_probabilities() -> None:
    record = turn(**UNSAMPLED)
    record["trajectory"]["policy"] |= {"model": "expert"}

    assert ScoredTrajectory.model_validate(record).trajectory.turns[1].response_logprobs is None


def test_a_failure_and_an_episode_without_a_reward_are_read() -> None:
    failure = episode(status=Status.TIMEOUT.value) | {"reward": None}

    assert ScoredTrajectory.model_validate(failure).reward is None
    assert ScoredTrajectory.model_validate(scored(reward=None, reward_error="judge: away")).reward is None


def test_the_raw_stream_holds_no_worse() -> None:
    trajectory = make_trajectory(turns=(make_turn(3),)).model_dump(mode="json")
    trajectory["turns"][0]["response_logprobs"] = [-1.0]

    with pytest.raises(ValidationError, match="3 response tokens have 1 log-probabilities"):
        ScoreRequest.model_validate({"trajectory": trajectory})
