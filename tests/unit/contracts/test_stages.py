"""The stages of a recipe: what they are called, in which order they are carried out, and what they may read."""

from typing import Any, Final

import pytest
from gymfleet_contracts.stages import (
    PlannedStage,
    StageFacts,
    StageSection,
    StagesError,
    check_stages,
    is_path,
    planned,
)
from pydantic import ValidationError

FACTS: Final = {
    "collect": StageFacts(leaves=("episodes",)),
    "filter": StageFacts(reads=True, leaves=("episodes",)),
    "sft": StageFacts(reads=True, starts=True, leaves=("model",)),
    "measure": StageFacts(),
}
COLLECT: Final = {"kind": "collect"}
SFT: Final = {"kind": "sft", "data": "collect"}
MEASURE: Final = {"kind": "measure"}


def plan_of(*tables: dict[str, Any]) -> list[PlannedStage]:
    return planned([StageSection.model_validate(table) for table in tables])


def names(*tables: dict[str, Any]) -> list[str]:
    return [stage.name for stage in plan_of(*tables)]


def repeat(times: int, *stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"repeat": times, "stages": list(stages), **more}


def data_of(plan: list[PlannedStage]) -> list[list[str]]:
    """Of those that name any."""
    return [stage.data() for stage in plan if "data" in stage.options]


# --- names and options


@pytest.mark.parametrize(
    ("table", "name"),
    [
        pytest.param({"kind": "sft"}, "sft", id="its kind"),
        pytest.param({"kind": "sft", "name": "warm-start_1"}, "warm-start_1", id="its name"),
        pytest.param({"kind": "./mine/judged.py"}, "judged", id="its file"),
        pytest.param({"kind": "package.module:Judged", "name": "judged"}, "judged", id="a class has a name"),
    ],
)
def test_what_a_stage_is_called(table: dict[str, Any], name: str) -> None:
    (stage,) = plan_of(table)

    assert (stage.name, stage.kind, stage.table) == (name, table["kind"], f"stages.{name}")


@pytest.mark.parametrize("kind", ["package.module:Judged", "./mine/Judged.py", "./2judged.py", "./" + "x" * 33 + ".py"])
def test_what_gives_no_name_needs_one(kind: str) -> None:
    with pytest.raises(StagesError) as caught:
        plan_of({"kind": kind})

    assert str(caught.value) == f'stages: {kind} needs a name: name = "...", of a-z, 0-9, _ and -'
    assert names({"kind": kind, "name": "mine"}) == ["mine"]


@pytest.mark.parametrize("name", ["", "Judged", "1st", "a.b", "a/b", "x" * 33, "../up", "a\n"])
def test_a_name_is_one_that_files_and_ids_can_have(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        StageSection.model_validate({"kind": "sft", "name": name})


def test_every_other_key_is_an_option() -> None:
    given = {"data": ["a", "b.jsonl"], "epochs": 3, "optimizer": {"betas": [0.9, 0.95], "eps": 1e-8}}

    (stage,) = plan_of({"kind": "sft", "name": "imitate", **given})

    assert stage.options == given
    assert plan_of(MEASURE)[0].options == {}


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(StagesError) as caught:
        plan_of(MEASURE, COLLECT, {"kind": "sft", "name": "measure"})

    assert str(caught.value) == ('stages: two are called measure: give one of them another name, as name = "..."')
    assert names(MEASURE, {**MEASURE, "name": "after"}) == ["measure", "after"]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        pytest.param({}, "give exactly one of kind and repeat", id="neither"),
        pytest.param({"kind": "sft", **repeat(2, SFT)}, "give exactly one of kind and repeat", id="both"),
        pytest.param({"repeat": 2}, r"repeat needs \[\[stages.stages\]\]", id="nothing to repeat"),
        pytest.param({"kind": "sft", "stages": [SFT]}, "a kind has none", id="a kind with stages"),
        pytest.param(
            repeat(2, SFT, epochs=3, data="x"), "epochs, data: unknown; beside repeat stand name and stages",
            id="options of a repeat",
        ),
        pytest.param(repeat(0, SFT), "repeat: Input should be greater than 0|greater_than", id="no round"),
        pytest.param({"kind": ""}, "kind", id="an empty kind"),
    ],
)  # fmt: skip
def test_a_table_is_a_kind_or_a_repeat(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        StageSection.model_validate(table)


# --- repeats


def test_what_is_repeated_is_there_as_often_under_names_of_its_rounds() -> None:
    assert names(MEASURE, repeat(2, COLLECT, SFT), {**MEASURE, "name": "after"}) == [
        "measure", "repeat1.collect", "repeat1.sft", "repeat2.collect", "repeat2.sft", "after",
    ]  # fmt: skip
    assert names(repeat(2, COLLECT, name="round")) == ["round1.collect", "round2.collect"]


def test_repeats_can_be_repeated() -> None:
    inner = repeat(2, SFT, name="again")

    assert names(repeat(2, COLLECT, inner)) == [
        "repeat1.collect", "repeat1.again1.sft", "repeat1.again2.sft",
        "repeat2.collect", "repeat2.again1.sft", "repeat2.again2.sft",
    ]  # fmt: skip


def test_a_stage_knows_itself_in_earlier_rounds_and_what_it_read_there() -> None:
    inner = {"kind": "collect"}, {"kind": "sft", "data": "collect"}
    stages = plan_of({"repeat": 2, "name": "a", "stages": [{"repeat": 2, "name": "b", "stages": list(inner)}]}, *inner)

    found = {stage.name: [(one.name, one.data()) for one in stage.earlier] for stage in stages if stage.kind == "sft"}

    rounds = ["a1.b1", "a1.b2", "a2.b1", "a2.b2"]
    assert found == {
        **{
            f"{name}.sft": [(f"{one}.sft", [f"{one}.collect"]) for one in rounds[:at]] for at, name in enumerate(rounds)
        },
        "sft": [],
    }
    assert all(one.earlier == () for stage in stages for one in stage.earlier)
    assert {stage.title for stage in stages} == {"collect", "sft"}


def test_stages_of_different_repeats_may_have_one_name() -> None:
    assert names(COLLECT, repeat(1, COLLECT, SFT), repeat(1, SFT, name="more")) == [
        "collect", "repeat1.collect", "repeat1.sft", "more1.sft",
    ]  # fmt: skip


def test_two_in_one_round_may_not() -> None:
    with pytest.raises(StagesError, match="two are called collect"):
        plan_of(repeat(2, COLLECT, COLLECT))


@pytest.mark.parametrize("name", ["starting", "done", "failed", "interrupted"])
def test_no_stage_is_called_like_a_state_of_the_run(name: str) -> None:
    with pytest.raises(StagesError, match=f"a stage cannot be called {name}"):
        plan_of({**COLLECT, "name": name})


def test_two_repeats_need_names() -> None:
    with pytest.raises(StagesError, match="two are called repeat: give one of them another name"):
        plan_of(repeat(2, COLLECT), repeat(2, COLLECT))


def test_rounds_of_two_repeats_may_not_come_to_one_name() -> None:
    with pytest.raises(StagesError, match=r"two are called a11\.collect: give one of them another name"):
        plan_of(repeat(11, COLLECT, name="a"), repeat(1, COLLECT, name="a1"))


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param([{**COLLECT, "name": "round1"}, repeat(1, SFT, name="round")], id="before it"),
        pytest.param([repeat(1, SFT, name="round"), {**COLLECT, "name": "round1"}], id="after it"),
        pytest.param([{**COLLECT, "name": "round1"}, repeat(1, repeat(1, SFT), name="round")], id="further up"),
    ],
)
def test_a_stage_is_called_like_no_round(tables: list[dict[str, Any]]) -> None:
    """What a finished stage owns is told by what an id begins with."""
    with pytest.raises(StagesError, match=r"stages: round1\..*sft is no part of the stage round1: rename that"):
        plan_of(*tables)


@pytest.mark.parametrize("times", [1001, 10**15])
def test_too_many_stages_are_refused_before_they_are_made(times: int) -> None:
    assert len(plan_of(repeat(1000, COLLECT))) == 1000

    with pytest.raises(StagesError, match="more than 1000, repeats counted; at most 1000 can be"):
        plan_of(repeat(times, COLLECT))
    with pytest.raises(StagesError, match="more than 1000"):
        plan_of(MEASURE, repeat(1000, COLLECT))


def test_a_name_leaves_room_for_those_of_groups() -> None:
    long = repeat(1, repeat(1, {**COLLECT, "name": "c" * 13}, name="b" * 31), name="a" * 31)
    assert [len(name) for name in names(long)] == [79]

    with pytest.raises(StagesError, match="is longer than 80 characters: give shorter names"):
        plan_of(repeat(1, repeat(1, {**COLLECT, "name": "c" * 15}, name="b" * 31), name="a" * 31))


# --- what a stage reads


def test_a_name_means_the_last_stage_of_that_name_before() -> None:
    plan = plan_of(COLLECT, SFT, repeat(2, {**SFT, "name": "first"}, COLLECT, SFT), {**SFT, "name": "last"})

    assert data_of(plan) == [
        ["collect"],
        ["collect"], ["repeat1.collect"],
        ["repeat1.collect"], ["repeat2.collect"],
        ["repeat2.collect"],
    ]  # fmt: skip


def test_a_full_name_means_that_stage_alone() -> None:
    plan = plan_of(COLLECT, repeat(2, COLLECT), {**SFT, "data": ["repeat1.collect", "collect"]})

    assert data_of(plan) == [["repeat1.collect", "repeat2.collect"]]


def test_a_path_is_taken_as_it_is() -> None:
    assert data_of(plan_of({**SFT, "data": ["runs/a/trajectories/x.jsonl", "y.jsonl"]})) == [
        ["runs/a/trajectories/x.jsonl", "y.jsonl"]
    ]
    assert [is_path(given) for given in ("a/b", "y.jsonl", "z.json", "repeat1.collect")] == [True, True, True, False]


@pytest.mark.parametrize("data", [None, [], "", 3, {}])
def test_data_that_is_missing_is_told(data: Any) -> None:
    (stage,) = plan_of({"kind": "sft", "name": "imitate"} | ({} if data is None else {"data": data}))

    with pytest.raises(StagesError, match=r"^stages\.imitate: data"):
        stage.data()


@pytest.mark.parametrize(
    ("tables", "known"),
    [
        pytest.param([SFT], "none", id="none before it"),
        pytest.param([MEASURE, SFT, COLLECT], "measure", id="it comes later"),
        pytest.param([MEASURE, {"kind": "sft", "name": "collect", "data": "collect"}], "measure", id="itself"),
        pytest.param([repeat(1, MEASURE, SFT)], "measure, repeat1.measure", id="within a round"),
    ],
)
def test_data_of_no_stage_before_it_is_told_with_those_that_are(tables: list[dict[str, Any]], known: str) -> None:
    stage = next(one for one in plan_of(*tables) if one.kind == "sft")

    with pytest.raises(StagesError) as caught:
        check_stages([stage], FACTS)
    assert str(caught.value) == (
        f"{stage.table}: data = 'collect': there is no such stage before it ({known}); a file's name ends in "
        ".jsonl, .json or .parquet"
    )


def test_every_stage_finds_what_it_reads() -> None:
    best = {"kind": "filter", "data": "collect"}
    sft = {**SFT, "data": ["filter", "demonstrations", "other/run.jsonl"]}

    check_stages(plan_of({**COLLECT, "name": "demonstrations"}, repeat(3, COLLECT, best, sft), MEASURE), FACTS)


@pytest.mark.parametrize("data", ["measure", ["collect", "measure"]])
def test_data_of_a_stage_that_leaves_no_episodes_is_told(data: Any) -> None:
    with pytest.raises(StagesError, match=r"^stages\.sft: data = 'measure': that stage leaves no episodes$"):
        check_stages(plan_of(COLLECT, MEASURE, {**SFT, "data": data}), FACTS)


def test_a_stage_starts_from_the_last_model_of_a_name() -> None:
    warm = {**SFT, "name": "warm"}
    plan = plan_of(
        COLLECT, warm, repeat(2, {**SFT, "start_from": "warm"}, {**SFT, "name": "more", "start_from": "sft"}),
        {**SFT, "name": "again", "start_from": "initial"},
    )  # fmt: skip

    check_stages(plan, FACTS)

    assert [stage.start() for stage in plan] == [
        None, None, "warm", "repeat1.sft", "warm", "repeat2.sft", "initial",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("warm", "'warm': there is no such stage before it (initial, collect)"),
        (3, "3: there is no such stage before it (initial, collect)"),
        ("collect", "'collect': that stage leaves no model"),
    ],
)
def test_a_start_that_is_no_model_is_told(start: Any, reason: str) -> None:
    with pytest.raises(StagesError) as caught:
        check_stages(plan_of(COLLECT, {**SFT, "start_from": start}), FACTS)

    assert str(caught.value) == f"stages.sft: start_from = {reason}"


def test_a_stage_that_leaves_a_model_leaves_no_episodes() -> None:
    with pytest.raises(StagesError, match=r"^stages\.more: data = 'repeat1\.sft': that stage leaves no episodes$"):
        check_stages(plan_of(repeat(1, COLLECT, SFT), {**SFT, "name": "more", "data": "sft"}), FACTS)
