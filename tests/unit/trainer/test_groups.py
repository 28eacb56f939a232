import itertools

import pytest
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import FinishReason, Status, VersionSpan
from gymfleet_trainer.run.batch import (
    batch_metrics,
    book_batch,
    contradiction,
    has_signal,
    refusal,
    staleness_shares,
    wait_shares,
)
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.run.groups import Group, GroupBook
from gymfleet_trainer.run.state import RunState

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, training_plan

REQUEST = make_planner(make_recipe()).train(training_plan(make_recipe()), PlannedGroup(0))


def make_group(*totals: float, version: int = 1) -> Group:
    group = Group(REQUEST)
    for sample, total in enumerate(totals):
        group.samples[sample] = make_scored(sample=sample, total=total, version=version)
        group.waited_s[sample] = 0.0
    return group


def make_state(**fields: object) -> RunState:
    return RunState.model_validate({"run_id": RUN_ID, "recipe_hash": "h", **fields})


def test_a_group_is_complete_with_its_last_sample_and_only_then() -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)

    assert book.place(make_scored(sample=1)) is None
    group = book.place(make_scored(sample=0))

    assert group is not None
    assert [s.trajectory.sample for s in group.trajectories] == [0, 1], "by sample, not by arrival"


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param(make_scored(sample=0, total=9.0), id="a sample that is there already"),
        pytest.param(make_scored(sample=2), id="a sample beyond the group"),
        pytest.param(make_scored(sample=1, run_id="other"), id="another run's"),
    ],
)
def test_what_was_not_asked_for_changes_nothing(stranger: object) -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)
    book.place(make_scored(sample=0, total=1.0))

    assert book.place(stranger) is None  # type: ignore[arg-type]
    group = book.place(make_scored(sample=1, total=2.0))

    assert group is not None
    assert [s.reward.total for s in group.trajectories if s.reward] == [1.0, 2.0]


def test_what_was_played_again_takes_the_place_of_the_failure() -> None:
    book = GroupBook(lambda _: False)
    for scored in (make_scored(sample=0, status=Status.TIMEOUT), make_scored(sample=1), make_scored(sample=0, total=2)):
        book.place(scored)  # a restarted trainer gets them before it asks

    group = book.add(REQUEST)

    assert group is not None
    assert group.failed == []
    assert book.place(make_scored(sample=0, status=Status.TIMEOUT)) is None, "delivered once more"
    assert group.failed == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_group_has_as_many_samples_as_they_say_in_whichever_order_they_come(order: tuple[int, ...]) -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)

    first, second, last = (book.place(make_scored(sample=sample, group_size=3)) for sample in order)

    assert (first, second) == (None, None), "two were asked for"
    assert last is not None
    assert [s.trajectory.sample for s in last.trajectories] == [0, 1, 2]
    assert book.place(make_scored(sample=1, group_size=3, total=9.0)) is None, "delivered once more"


def test_a_group_may_be_smaller_than_it_was_asked_for() -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)

    assert book.place(make_scored(sample=0, group_size=1)) is not None


def test_a_sample_that_is_played_again_does_not_change_the_groups_size() -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)
    book.place(make_scored(sample=0, group_size=3, status=Status.TIMEOUT))
    group = book.get("reinforce.s000001-g00")
    assert group is not None
    book.reopen(group, 0, 1)
    again = group.again((0,), 1)
    GroupRequest.model_validate(again.model_dump())
    assert (again.num_samples, again.samples) == (3, (0,)), "one that the rollout may be asked for"

    for sample, size in ((1, 3), (0, 5), (4, 5)):
        assert book.place(make_scored(sample=sample, group_size=size)) is None
    assert group.missing == [2]
    assert book.place(make_scored(sample=2, group_size=3)) is group


def test_a_group_that_is_complete_does_not_grow() -> None:
    book = GroupBook(lambda _: False)
    group = book.add(REQUEST)
    for sample in range(2):
        group = book.place(make_scored(sample=sample))

    assert book.place(make_scored(sample=2, group_size=4)) is None
    assert group is not None
    assert group.complete


def test_a_group_of_fewer_episodes_than_are_compared_is_refused() -> None:
    group = make_group(1.0)
    group.size = 1
    state = make_state(ages={"1": 0}, age=1, version=1)

    assert refusal(group, state, 1) == ""
    assert refusal(group, state, 1, min_group_size=2) == (
        "failed: independent exported 1 of the 2 episodes that are compared"
    )


@pytest.mark.parametrize(
    ("changes", "contradicts"),
    [
        pytest.param({}, False, id="the same record twice"),
        pytest.param({"observation": "Later.", "generate_s": 9.0}, False, id="what nothing is computed from"),
        pytest.param({"parent": "root"}, True, id="another way there"),
        pytest.param({"prompt_token_ids": (5, 6, 8)}, True, id="another prompt"),
        pytest.param({"response_token_ids": (8, 8)}, True, id="another reply"),
        pytest.param({"response_logprobs": (-1.0, -2.0)}, True, id="other odds"),
        pytest.param({"node": "b", "response_token_ids": (8, 8)}, False, id="another node"),
        pytest.param({"node": None, "response_token_ids": (8, 8)}, False, id="no node"),
    ],
)
def test_episodes_that_share_a_node_have_the_same_record_of_it(changes: dict[str, object], contradicts: bool) -> None:
    turn = make_turn().model_copy(update={"node": "a"})
    group = Group(REQUEST)
    for sample, turns in enumerate([(turn,), (turn.model_copy(update=changes), make_turn())]):
        group.samples[sample] = make_scored(sample=sample, turns=turns)

    assert contradiction(group) == (
        "failed: run-1/reinforce.s000001-g00/0 and run-1/reinforce.s000001-g00/1 contradict each other about node 'a'"
        if contradicts else ""
    )  # fmt: skip


def test_all_that_was_played_for_a_group_counts_and_a_shared_node_once() -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)
    two = (make_turn(), make_turn())
    for scored in (
        make_scored(sample=0, turns=two, status=Status.TIMEOUT),
        make_scored(sample=0),
        make_scored(sample=0),
    ):
        book.place(scored)  # a failure of two turns, what was played in its place, and the same delivered once more
    group = book.place(make_scored(sample=1))
    branched = Group(REQUEST)
    for sample, leaf in enumerate(("b", "c")):
        turns = tuple(make_turn().model_copy(update={"node": node}) for node in ("a", leaf))
        branched.samples[sample] = make_scored(sample=sample, turns=turns)

    assert group is not None
    assert group.env_steps == 3, "replays have other numbers, or else the same turns"
    assert branched.env_steps == 3, "the node above both is one step"


def test_a_failure_that_is_played_again_counts_beside_what_takes_its_place() -> None:
    book = GroupBook(lambda _: False)
    group = make_group(1.0, 1.0)
    group.samples[0] = make_scored(sample=0, status=Status.TIMEOUT, turns=(make_turn(), make_turn()))

    book.reopen(group, 0, replay=1)
    again = make_scored(sample=0)
    group.samples[0] = again.model_copy(update={"trajectory": again.trajectory.model_copy(update={"replay": 1})})

    assert group.env_steps == 4


def test_a_reply_that_asks_for_nothing_is_no_step() -> None:
    group = make_group(1.0)
    silent = make_turn().model_copy(update={"action": None})
    group.samples[0] = make_scored(sample=0, turns=(make_turn(), silent, make_turn()))

    assert group.env_steps == 2


def test_a_settled_group_takes_no_more_samples() -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)
    book.settle("reinforce.s000001-g00")

    assert book.place(make_scored(sample=0)) is None
    assert "reinforce.s000001-g00" not in book


def test_samples_of_a_group_that_was_not_asked_for_yet_wait_for_it() -> None:
    book = GroupBook(lambda _: False)
    for sample in (0, 1, 1):
        assert book.place(make_scored(sample=sample)) is None
    assert book.needs("reinforce.s000001-g00"), "not to be acknowledged: they are never produced again"
    assert "reinforce.s000001-g00" not in book

    group = book.add(REQUEST)

    assert group is not None
    assert len(group.trajectories) == 2


def test_what_an_earlier_life_settled_is_not_waited_for() -> None:
    book = GroupBook({"before.t000001", "reinforce.s000001-g00"}.__contains__)

    for group_id in ("before.t000001", "reinforce.s000001-g00", "reinforce.s000001-g00-r1"):
        book.place(make_scored(group_id))

    assert not book.needs("before.t000001")
    assert not book.needs("reinforce.s000001-g00")
    assert book.needs("reinforce.s000001-g00-r1")


def test_asking_again_keeps_what_has_arrived() -> None:
    book = GroupBook(lambda _: False)
    book.add(REQUEST)
    book.place(make_scored(sample=0))
    book.add(REQUEST)

    assert book.place(make_scored(sample=1)) is not None


@pytest.mark.parametrize("status", [status for status in Status if not status.trainable])
def test_a_technical_failure_is_never_trained_as_a_reward_of_zero(status: Status) -> None:
    group = make_group(1.0)
    group.samples[1] = make_scored(sample=1, status=status, error="the shard died")

    reason = refusal(group, make_state(ages={1: 0}), max_staleness=0)

    assert reason == f"failed: {status.value}: the shard died"


def test_an_episode_without_a_turn_has_nothing_to_train_on() -> None:
    group = make_group(0.0)
    group.samples[1] = make_scored(sample=1, turns=(), cut=FinishReason.BUDGET)

    reason = refusal(group, make_state(ages={1: 0}), 0)

    assert reason == f"failed: {group.samples[1].trajectory.trajectory_id} ended before its first turn"


def test_an_episode_without_a_reward_is_a_failure() -> None:
    group = make_group(1.0, 0.0)
    update = {"reward": None, "reward_error": "judge: RuntimeError: the judge is away"}
    group.samples[1] = group.samples[1].model_copy(update=update)

    reason = refusal(group, make_state(ages={1: 0}), max_staleness=0)

    assert reason == "failed: completed: no reward: judge: RuntimeError: the judge is away"


def test_a_cut_that_a_critic_cannot_value_is_never_trained_as_an_end() -> None:
    group = make_group(1.0)
    group.samples[1] = make_scored(sample=1, cut=FinishReason.MAX_TURNS)

    reason = refusal(group, make_state(ages={1: 0}), max_staleness=0, bootstraps=True)

    assert reason.startswith(
        "failed: run-1/reinforce.s000001-g00/1 was cut (max_turns) and has no final_prompt_token_ids"
    )
    assert refusal(group, make_state(ages={1: 0}), max_staleness=0) == "", "grpo has no use for them"
    group.samples[1] = make_scored(sample=1, cut=FinishReason.MAX_TURNS, final_prompt=(5, 6))
    assert refusal(group, make_state(ages={1: 0}), max_staleness=0, bootstraps=True) == ""


@pytest.mark.parametrize(
    ("age", "max_staleness", "refused"),
    [
        pytest.param(0, 0, False, id="written by the current weights"),
        pytest.param(1, 0, True, id="one change of weights too old"),
        pytest.param(1, 1, False, id="as old as allowed"),
        pytest.param(3, 2, True, id="older than allowed"),
    ],
)
def test_staleness_counts_changes_of_weights(age: int, max_staleness: int, refused: bool) -> None:
    reason = refusal(make_group(1.0, 0.0, version=4), make_state(ages={4: 0}, age=age), max_staleness)

    assert reason.startswith("stale") is refused


def test_the_oldest_token_decides() -> None:
    group = make_group(1.0, 0.0, version=5)
    group.samples[1] = make_scored(sample=1, version=4, version_max=5)

    assert refusal(group, make_state(ages={4: 0, 5: 1}, age=1), max_staleness=0).startswith("stale: 1 versions")


def test_after_a_restart_the_same_weights_under_a_new_number_are_not_stale() -> None:
    state = make_state(ages={4: 2, 7: 2}, age=2, version=7)

    assert refusal(make_group(1.0, 0.0, version=4), state, max_staleness=0) == ""


def test_a_version_whose_weights_were_lost_is_stale_however_new() -> None:
    reason = refusal(make_group(1.0, 0.0, version=9), make_state(ages={4: 0}), max_staleness=100)

    assert "were lost" in reason


def test_equal_returns_carry_no_signal() -> None:
    assert has_signal(make_group(1.0, -1.0))
    assert not has_signal(make_group(-1.0, -1.0))


def test_the_wait_is_shared_out_by_what_episodes_spent() -> None:
    group = make_group()
    turns = (make_turn(generate_s=2.0, environment_s=1.0), make_turn(generate_s=4.0, environment_s=0.0))
    group.samples[0] = make_scored(turns=turns)
    group.waited_s[0] = 1.0

    assert wait_shares([group], 4.0) == pytest.approx({"generation": 3.0, "environment": 0.5, "reward": 0.5})
    assert wait_shares([make_group(1.0)], 4.0)["generation"] == 4.0


def test_a_trained_batch_is_booked() -> None:
    state = make_state(ages={1: 0}, age=1, step=1)
    groups = [make_group(1.0, -1.0), make_group(1.0, 1.0)]

    book_batch(state, groups, wait_s=2.0, update_s=3.0)
    metrics = batch_metrics(state, groups, wait_s=2.0, update_s=3.0)

    assert state.counts == {
        "groups_trained": 2, "groups_zero_variance": 1, "episodes_trained": 4, "tokens_trained": 8,
        "status.completed": 4,
    }  # fmt: skip
    assert (state.seconds["step_wait"], state.seconds["step_update"]) == (2.0, 3.0)
    assert (metrics["reward_mean"], metrics["staleness_max"], metrics["tokens"]) == (0.5, 0, 8)
    assert metrics["staleness_share_0"] == 1.0


def test_staleness_is_counted_per_token() -> None:
    continued = make_turn(response=(8, 9, 10, 11)).model_copy(update={"policy_versions": spans((4, 1), (5, 2), (6, 1))})
    lost = make_turn(response=(8, 9, 10, 11), version=3)
    expert = make_turn().model_copy(update={"response_logprobs": None, "policy_versions": ()})

    shares = staleness_shares(make_state(ages={4: 0, 5: 1, 6: 2}, age=3), (continued, lost, expert))

    assert shares == {
        "staleness_share_0": 0.125, "staleness_share_1": 0.25, "staleness_share_2": 0.125, "staleness_share_lost": 0.5,
    }  # fmt: skip


def spans(*given: tuple[int, int]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(version=version, num_tokens=count) for version, count in given)
