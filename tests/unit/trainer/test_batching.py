"""From trajectories to packed micro-batches: bit for bit, aligned, and of near-equal size."""

import random
from dataclasses import replace

import pytest
import torch
from gymfleet_contracts.observation import TextPart
from gymfleet_contracts.trajectory import FinishReason, ScoredTrajectory, StateValue
from gymfleet_trainer.model.batching import TrainSequence, TurnSpan, pack, sequences_from_trajectory

from tests.fixtures.scored import make_scored, make_turn
from tests.fixtures.train_sequences import train_sequence


def two_turns(**changes: object) -> ScoredTrajectory:
    turns = (make_turn((1, 2, 3), (4, 5), version=7, logprob=-0.5), make_turn((6,), (7, 8, 9), version=8, logprob=-2.0))
    scored = make_scored("g1", 3, turns=turns, version=7, version_max=8)
    assert scored.reward is not None
    reward = scored.reward.model_copy(update={"token_rewards": ((0.0, 0.25), (0.0, 0.0, 0.75)), **changes})
    return scored.model_copy(update={"reward": reward})


def of_length(length: int, name: str) -> TrainSequence:
    """A row that begins as no other does."""
    first = int.from_bytes(name.encode())
    return train_sequence([first] + [1] * (length - 1), "." + "x" * (length - 1), name=name)


def test_a_trajectorys_tokens_are_taken_bit_for_bit() -> None:
    (sequence,) = sequences_from_trajectory(two_turns())

    assert sequence.token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert sequence.loss_mask == [False] * 3 + [True] * 2 + [False] + [True] * 3
    assert sequence.behaviour_logprobs == [0.0] * 3 + [-0.5] * 2 + [0.0] + [-2.0] * 3
    assert sequence.token_rewards == [0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.75]
    assert sequence.fields == {}
    assert sequence.trajectory_id == "run-1/g1/3"
    assert sequence.group_id == "run-1/g1"
    assert sequence.num_trained == 5
    assert sequence.total_reward == 1.0


@pytest.mark.parametrize(
    ("reason", "final_prompt"),
    [
        pytest.param(FinishReason.MAX_TURNS, [5, 6], id="the recipe allows no more turns"),
        pytest.param(FinishReason.CONTEXT_LENGTH, [5, 6], id="the recipe allows no more tokens"),
        pytest.param(FinishReason.TERMINATED, None, id="the environment ended it"),
        pytest.param(FinishReason.ENV_TURN_LIMIT, None, id="the environment allows no more turns"),
    ],
)
def test_only_cuts_by_the_recipe_go_on_in_a_final_state(reason: FinishReason, final_prompt: list[int] | None) -> None:
    (sequence,) = sequences_from_trajectory(make_scored(cut=reason, final_prompt=(5, 6)))

    assert sequence.final_prompt_token_ids == final_prompt
    assert sequence.token_ids == [5, 6, 7, 8, 9], "and are no part of what is trained"


def test_an_episode_without_a_turn_has_no_row() -> None:
    assert sequences_from_trajectory(make_scored(turns=(), cut=FinishReason.BUDGET)) == []


def test_a_replaced_context_begins_a_row() -> None:
    cut = two_turns()
    first, second = cut.trajectory.turns
    trajectory = cut.trajectory.model_copy(
        update={
            "turns": (first, second.model_copy(update={"context": "replaced"})),
            "finish_reason": FinishReason.MAX_TURNS,
            "final_prompt_token_ids": (5, 6),
        }
    )

    rows = sequences_from_trajectory(cut.model_copy(update={"trajectory": trajectory}), staleness=2)

    assert [row.token_ids for row in rows] == [[1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert [row.loss_mask for row in rows] == [[False] * 3 + [True] * 2, [False] + [True] * 3]
    assert [row.behaviour_logprobs for row in rows] == [[0.0] * 3 + [-0.5] * 2, [0.0] + [-2.0] * 3]
    assert [row.token_rewards for row in rows] == [[0.0, 0.0, 0.0, 0.0, 0.25], [0.0, 0.0, 0.0, 0.75]]
    assert [row.final_prompt_token_ids for row in rows] == [None, [5, 6]], "the episode goes on in the second"
    assert {(row.trajectory_id, row.staleness) for row in rows} == {("run-1/g1/3", 2)}


def with_roles(scored: ScoredTrajectory, *roles: str) -> ScoredTrajectory:
    turns = tuple(
        turn.model_copy(update={"role": role}) for turn, role in zip(scored.trajectory.turns, roles, strict=True)
    )
    return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"turns": turns})})


def test_tokens_of_other_roles_have_no_loss_and_their_reward_counts_for_those_before_them() -> None:
    scored = with_roles(two_turns(), "planner", "agent")

    (planner,) = sequences_from_trajectory(scored, roles=("planner",))
    (agent,) = sequences_from_trajectory(scored, roles=("agent", "critic"))

    assert planner.token_ids == agent.token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9], "they are its context all the same"
    assert planner.loss_mask == [False] * 3 + [True] * 2 + [False] * 4
    assert planner.token_rewards == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert agent.loss_mask == [False] * 6 + [True] * 3
    assert agent.token_rewards == [0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.75], (
        "what came before it is not its doing"
    )
    assert planner.total_reward == agent.total_reward == 1.0
    assert sequences_from_trajectory(scored, roles=("planner", "agent")) == sequences_from_trajectory(scored)


def test_a_reward_counts_across_a_replaced_context() -> None:
    scored = with_roles(two_turns(), "agent", "summariser")
    first, second = scored.trajectory.turns
    turns = (first, second.model_copy(update={"context": "replaced"}))
    scored = scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"turns": turns})})

    agent, summary = sequences_from_trajectory(scored, roles=("agent",))

    assert (agent.total_reward, summary.total_reward) == (1.0, 0.0)
    assert (agent.num_trained, summary.num_trained) == (2, 0)


def with_turns(scored: ScoredTrajectory, *changes: dict[str, object]) -> ScoredTrajectory:
    turns = tuple(turn.model_copy(update=more) for turn, more in zip(scored.trajectory.turns, changes, strict=True))
    return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"turns": turns})})


def test_a_row_knows_its_turns_and_the_states_in_which_they_were_played() -> None:
    worth = StateValue(mean=0.5, samples=4)
    scored = with_turns(two_turns(), {"state_key": "k1"}, {"state_key": "k2", "value": worth})

    (row,) = sequences_from_trajectory(scored)

    assert row.turns == (TurnSpan(0, 3, 5, "k1"), TurnSpan(1, 6, 9, "k2", worth))
    assert row.with_fields(values=torch.zeros(9)).turns == row.turns
    (planned,) = sequences_from_trajectory(with_roles(scored, "planner", "agent"), roles=("planner",))
    assert planned.turns == row.turns, "which of them is trained the mask says"


def test_turns_are_counted_across_a_replaced_context() -> None:
    rows = sequences_from_trajectory(with_turns(two_turns(), {}, {"context": "replaced"}))

    assert [[(turn.place, turn.start, turn.end) for turn in row.turns] for row in rows] == [[(0, 3, 5)], [(1, 1, 4)]]


def test_without_a_key_a_state_is_what_was_observed() -> None:
    def anchors(*changes: dict[str, object]) -> list[str]:
        return [turn.anchor for turn in sequences_from_trajectory(with_turns(two_turns(), *changes))[0].turns]

    first, second = anchors({}, {})
    assert first == second, "both saw a wall"
    assert anchors({"observation": "A door."}, {})[0] not in (first, "A door.")
    assert anchors({"parts": (TextPart(text="You see a wall."),)}, {})[0] != first
    assert anchors({"state_key": ""}, {})[0] == "", "an empty key is one"


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param((TurnSpan(0, 1, 3, "a"),), id="beyond the end"),
        pytest.param((TurnSpan(0, -1, 1, "a"),), id="before the beginning"),
        pytest.param((TurnSpan(0, 2, 1, "a"),), id="backwards"),
        pytest.param((TurnSpan(0, 0, 2, "a"), TurnSpan(1, 1, 2, "a")), id="one in the other"),
        pytest.param((TurnSpan(1, 0, 1, "a"), TurnSpan(1, 1, 2, "a")), id="one turn twice"),
    ],
)
def test_turns_that_cannot_be_are_refused(turns: tuple[TurnSpan, ...]) -> None:
    row = train_sequence([1, 2], ".x")

    with pytest.raises(ValueError, match=r"run/group/0: turns must follow one another within 2 tokens: \[TurnSpan"):
        replace(row, turns=turns)


def test_an_experts_turn_has_no_log_probabilities() -> None:
    expert = make_turn().model_copy(update={"response_logprobs": None, "policy_versions": ()})

    (sequence,) = sequences_from_trajectory(make_scored(turns=(expert,), strategy="expert"))

    assert sequence.behaviour_logprobs == [0.0] * 5
    assert sequence.loss_mask == [False] * 3 + [True] * 2


def test_rewards_that_do_not_line_up_are_refused() -> None:
    with pytest.raises(ValueError, match="turn 1: 3 response tokens, but 3 log-probabilities and 1 token rewards"):
        sequences_from_trajectory(two_turns(token_rewards=((0.0, 0.0), (1.0,))))
    with pytest.raises(ValueError, match="1 rows of token rewards for 2 turns"):
        sequences_from_trajectory(two_turns(token_rewards=((0.0, 0.0),)))


def test_ragged_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match=r"r/g/0: every per-token list must have 2 entries"):
        TrainSequence([1, 2], [False], [0.0, 0.0], [0.0, 0.0], 0, "r/g/0")
    with pytest.raises(ValueError, match="at least one token"):
        TrainSequence([], [], [], [], 0, "r/g/0")
    with pytest.raises(ValueError, match=r"run/group/0: values has the shape \(3,\), not \(2,\)"):
        train_sequence([1, 2], ".x").with_fields(values=torch.zeros(3))


def test_packed_by_hand() -> None:
    first = train_sequence([10, 11, 12], "x.x", logprobs=[-9.0, 0.0, -1.0]).with_fields(
        advantages=torch.tensor([3.0, 0.0, 3.0]), values=torch.ones(3)
    )
    second = train_sequence([20, 21], ".x", logprobs=[0.0, -2.0], rewards=[0.0, 1.0]).with_fields(
        advantages=torch.tensor([0.0, 7.0])
    )

    (batch,) = pack([first, second], 8)

    assert batch.indices == (0, 1)
    assert batch.lengths == (3, 2)
    assert batch.num_tokens == 5
    assert batch.tokens.tolist() == [10, 11, 12, 20, 21]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.loss_mask.tolist() == [False, False, True, False, True], "a first token has nothing to come from"
    assert batch.trained.tolist() == [2, 4]
    assert batch.behaviour_logprobs.tolist() == [-9.0, 0.0, -1.0, 0.0, -2.0]
    assert {name: values.tolist() for name, values in batch.fields.items()} == {"advantages": [3.0, 0.0, 3.0, 0.0, 7.0]}
    assert batch.to("cpu").fields.keys() == {"advantages"}, "not what only some rows have"


def test_nothing_packs_into_nothing() -> None:
    assert pack([], 100) == []


def test_a_sequence_above_the_limit_stands_alone() -> None:
    batches = pack([of_length(n, str(n)) for n in (3, 12, 4)], 8)

    assert sorted(batch.lengths for batch in batches) == [(3, 4), (12,)]


def test_micro_batches_are_full_and_of_near_equal_size() -> None:
    rng = random.Random(0)
    sequences = [of_length(rng.randint(150, 400), str(index)) for index in range(200)]
    total = sum(len(sequence.token_ids) for sequence in sequences)

    batches = pack(sequences, 4096)

    sizes = [batch.num_tokens for batch in batches]
    assert sum(sizes) == total
    assert max(sizes) <= 4096
    assert len(batches) <= total // 4096 + 2
    assert max(sizes) - min(sizes) < 200, "less than a sequence"
    assert sorted(index for batch in batches for index in batch.indices) == list(range(200))


def test_balance_never_breaks_the_limit() -> None:
    # First-fit needs two, 5 + 3 and 4 + 2 + 2; the emptiest first would give 5 + 2 + 2 = 9 and 4 + 3.
    batches = pack([of_length(n, str(n)) for n in (5, 4, 3, 2, 2)], 8)

    assert sorted(batch.num_tokens for batch in batches) == [5, 5, 6]


def test_the_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        pack([of_length(3, "a")], 0)


def test_pairs_stay_together() -> None:
    rows = [
        replace(of_length(length, f"run/{pair}/{side}"), unit=f"pair {pair}")
        for side in range(2)
        for pair, length in enumerate((3, 9, 5, 2, 7))
    ]

    batches = pack(rows, 20)

    assert max(batch.num_tokens for batch in batches) <= 20
    found = [batch.places_by_unit for batch in batches]
    assert sorted(unit for units in found for unit in units) == [f"pair {pair}" for pair in range(5)]
    assert all(len(places) == 2 for units in found for places in units.values())
    for batch, units in zip(batches, found, strict=True):
        for first, second in units.values():
            assert batch.indices[second] == batch.indices[first] + 5, "the chosen one before the rejected one"
    assert all(batch.places_by_unit == {} for batch in pack([of_length(3, "alone")], 20))


def test_a_pair_above_the_limit_stands_alone() -> None:
    pair = [replace(of_length(12, f"run/0/{side}"), unit="pair") for side in range(2)]

    batches = pack([*pair, of_length(3, "run/1/0")], 16)

    assert sorted(batch.lengths for batch in batches) == [(3,), (12, 12)]
