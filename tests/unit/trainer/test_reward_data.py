"""What a reward model learns from: transcripts, pairs of one task, held-out tasks and labels of turns."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.chat.transcripts import Transcript, Transcripts
from gymfleet_trainer.learning.options import BradleyTerryOptions, ProcessRewardOptions
from gymfleet_trainer.learning.reward_data import (
    Example,
    held_out_tasks,
    pairs_of,
    read_examples,
    turn_labels,
    value_labels,
    values_of_nodes,
)
from gymfleet_trainer.learning.reward_update import LABELS
from gymfleet_trainer.run.plan import stages_of
from transformers import AutoTokenizer

from tests.fixtures.paths import ROOT
from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.models import build_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), tie_embeddings=True, seed=0)


def of_task(task: int, sample: int, total: float | None = 0.0, num_turns: int = 1) -> ScoredTrajectory:
    turns = tuple(make_turn() for _ in range(num_turns))
    scored = make_scored(f"collect.t{task:06d}", sample, total=total or 0.0, turns=turns, success=(total or 0) > 0)
    trajectory = scored.trajectory
    named = trajectory.model_copy(
        update={
            "task": trajectory.task.model_copy(update={"task_id": f"{task}"}),
            "final_observation": "You have reached the goal.",
        }
    )
    return scored.model_copy(update={"trajectory": named, "reward": None if total is None else scored.reward})


def example(sample: int, reward: float, length: int = 10) -> Example:
    return Example(of_task(0, sample, reward), Transcript([1] * length), reward)


def test_it_reads_what_was_said_up_to_the_last_reply(model: Path) -> None:
    scored = of_task(0, 0, 1.0, num_turns=2)
    messages = [
        {"role": role, "content": content}
        for _ in range(2)
        for role, content in (("user", "You see a wall."), ("assistant", "Thought: go. Action: up"))
    ]
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    found = read_examples([scored], Transcripts(model), BradleyTerryOptions(), 1000)

    ((one,),) = found.tasks.values()
    assert one.transcript.ids == ids
    assert "goal" not in tokenizer.decode(ids), "the last observation would tell"
    row = one.row(unit="pair")
    assert [place for place, read in enumerate(row.loss_mask) if read] == [len(ids) - 1]
    assert row.unit == "pair"


def test_turns_are_read_at_their_ends(model: Path) -> None:
    scored = of_task(0, 0, 1.0, num_turns=2)
    tokenizer = AutoTokenizer.from_pretrained(model)

    found = read_examples([scored], Transcripts(model), ProcessRewardOptions(), 1000)

    ((one,),) = found.tasks.values()
    row = one.row(labels=[0.25, 1.0])
    ends = [place for place, token in enumerate(row.token_ids) if token == tokenizer.eos_token_id][1::2]
    assert [place for place, read in enumerate(row.loss_mask) if read] == ends
    assert {place: value for place, value in enumerate(row.fields[LABELS].tolist()) if value} == {
        ends[0]: 0.25, ends[1]: 1.0,
    }  # fmt: skip


def test_what_cannot_be_learned_from_is_left_out_and_counted(model: Path) -> None:
    given = [of_task(0, 0), of_task(0, 1, None), of_task(1, 0, num_turns=9), of_task(1, 1, num_turns=0)]

    found = read_examples(given, Transcripts(model), BradleyTerryOptions(), 200)

    assert [len(examples) for examples in found.tasks.values()] == [1]
    assert found.left_out == {"unscored": 1, "too_long": 1, "unreadable": 1}
    assert found.unread == given[2:], "how they ended is known"


def test_an_episode_that_the_data_names_twice_is_learned_from_once(model: Path) -> None:
    good, bad = of_task(0, 0, 1.0), of_task(0, 1)

    found = read_examples([good, bad, good], Transcripts(model), BradleyTerryOptions(), 1000)

    ((*examples,),) = found.tasks.values()
    assert [one.name for one in examples] == ["run-1/collect.t000000/0", "run-1/collect.t000000/1"]
    assert found.left_out == {"repeated": 1}
    assert len(pairs_of(examples, BradleyTerryOptions())) == 1


def named(examples: list[Example], **options: Any) -> set[tuple[int, int]]:
    """The samples of the pairs, the better one first."""
    pairs = pairs_of(examples, BradleyTerryOptions.model_validate(options))
    return {(pair.chosen.scored.trajectory.sample, pair.rejected.scored.trajectory.sample) for pair in pairs}


def test_pairs_are_two_episodes_of_which_one_has_the_higher_reward() -> None:
    examples = [example(0, 0.0), example(1, 1.0), example(2, 1.0), example(3, 0.5)]

    assert named(examples) == {(1, 0), (2, 0), (3, 0), (1, 3), (2, 3)}
    assert named(examples, min_gap=0.6) == {(1, 0), (2, 0)}


def test_lengths_can_be_matched() -> None:
    examples = [example(0, 0.0, 10), example(1, 1.0, 11), example(2, 1.0, 12), example(3, 1.0, 9)]

    assert named(examples, max_length_ratio=1.1) == {(1, 0)}
    assert named(examples, max_length_ratio=1.2) == {(1, 0), (2, 0), (3, 0)}


def test_of_many_pairs_some_are_drawn_whatever_the_order_of_the_episodes() -> None:
    examples = [example(sample, float(sample)) for sample in range(6)]

    drawn = named(examples, max_pairs_per_task=4)

    assert len(drawn) == 4
    assert drawn == named(examples[::-1], max_pairs_per_task=4)
    assert drawn < named(examples)


def test_the_rows_of_a_pair_are_one_unit_with_the_better_one_first() -> None:
    (pair,) = pairs_of([example(0, 0.0, 4), example(1, 1.0, 6)], BradleyTerryOptions())

    rows = pair.rows()

    assert [len(row.token_ids) for row in rows] == [6, 4]
    assert len({row.unit for row in rows}) == 1


def test_held_out_tasks_are_always_the_same() -> None:
    tasks = [f"task {number}" for number in range(20)]

    held_out = held_out_tasks(tasks, 0.25)

    assert len(held_out) == 5
    assert held_out == held_out_tasks(tasks[::-1], 0.25)
    assert held_out < held_out_tasks(tasks, 0.5)
    assert held_out_tasks(tasks, 0.0) == set()
    assert len(held_out_tasks(tasks[:2], 0.1)) == 1
    assert held_out_tasks(tasks[:1], 0.1) == set(), "there would be nothing to train on"


def forked(leaf: str, sample: int, *, success: bool) -> ScoredTrajectory:
    turns = tuple(
        make_turn().model_copy(update={"node": leaf[: depth + 1], "parent": leaf[:depth] or None})
        for depth in range(len(leaf))
    )
    return make_scored("collect.t000000", sample, turns=turns, success=success)


def test_a_turn_is_worth_what_became_of_those_that_went_on_from_it() -> None:
    """Of a: 1 of 3; of ab: 1 of 2; its leaves and aa are what they are."""
    episodes = [
        forked("aa", 0, success=False), forked("aba", 1, success=True), forked("abb", 2, success=False),
    ]  # fmt: skip
    nodes = values_of_nodes(episodes)

    assert [turn_labels(one, "soft", nodes) for one in episodes] == [
        pytest.approx([1 / 3, 0.0]), pytest.approx([1 / 3, 0.5, 1.0]), pytest.approx([1 / 3, 0.5, 0.0]),
    ]  # fmt: skip
    assert [turn_labels(one, "hard", nodes) for one in episodes] == [[1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
    assert [turn_labels(one, "outcome", nodes) for one in episodes] == [[0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]


def test_a_turn_is_labelled_by_what_a_search_said_of_the_node_behind_it() -> None:
    values = (None, -0.5, 1.0)
    turns = tuple(make_turn().model_copy(update={"node_value": value}) for value in values)

    assert value_labels(make_scored(turns=turns), -1.0, 1.0) == [None, 0.25, 1.0]
    assert value_labels(make_scored(turns=turns[:1]), 0.0, 1.0) == [None]
    with pytest.raises(ValueError, match=r"^run-1/reinforce.s000001-g00/0: node None has the value -0\.5$"):
        value_labels(make_scored(turns=turns), 0.0, 1.0)


def test_turns_without_a_label_have_no_number() -> None:
    row = example(0, 0.0).row(labels=[0.75])
    assert (row.num_trained, row.fields["labels"].tolist()[-1]) == (1, 0.75)
    assert example(0, 0.0).row(labels=[None]).num_trained == 0


def test_nodes_of_other_groups_are_others() -> None:
    one, other = (
        forked("a", 0, success=True),
        make_scored("collect.t000001", turns=forked("a", 0, success=False).trajectory.turns),
    )

    assert turn_labels(one, "soft", values_of_nodes([one, other])) == [1.0]


def test_so_are_those_of_groups_of_the_same_name_in_other_runs() -> None:
    one = forked("a", 0, success=True)
    other = make_scored("collect.t000000", run_id="run-2", turns=one.trajectory.turns, success=False)

    assert turn_labels(one, "soft", values_of_nodes([one, other])) == [1.0]


def test_the_recipes_of_the_page_are_recipes() -> None:
    page = (ROOT / "docs/reward-models.md").read_text(encoding="utf-8")
    first, second, third = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[1:])

    names = [stage.name for stage in stages_of(make_recipe(**first))][-2:]
    rewarded = make_recipe(**second)
    *_, last = stages_of(make_recipe(**third))

    assert names == ["bradley_terry", "process_reward"]
    assert [set(reward.used) for reward in rewarded.rewards().values()] == [{"goal", "process_reward_model"}]
    assert page.count("runs/first/models/process_reward") == 1
    assert last.name == "loop3.reinforce"
