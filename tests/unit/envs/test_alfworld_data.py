import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_envs.alfworld.environment import ENVIRONMENT, Alfworld
from gymfleet_envs.alfworld.files import GameFile
from gymfleet_envs.alfworld.game import MAX_GAME_BYTES, Goal, parse_game
from gymfleet_envs.alfworld.generate import generated_tasks
from gymfleet_envs.alfworld.household import Household
from gymfleet_envs.alfworld.names import NamedHousehold
from gymfleet_envs.tasks import TaskDataError, UnknownTask

from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA / "alfworld"
GENERATED = generated_tasks()
HOUSEHOLDS = [GENERATED.by_index("train", "small", index).data for index in range(4)]


def write_game(folder: Path, household: Household, *, solvable: bool = True, **changes: Any) -> Path:
    """A game as ALFWorld lays it out: game.tw-pddl and traj_data.json in SPLIT/TASK/TRIAL."""
    game, goal = household.game("classic"), household.goal
    folder.mkdir(parents=True)
    data = {
        "pddl_domain": game.domain,
        "grammar": game.grammar,
        "pddl_problem": game.problem,
        "walkthrough": ["look"],
        "solvable": solvable,
        **changes,
    }
    (folder / "game.tw-pddl").write_text(json.dumps(data))
    light = goal.task_type == "look_at_obj_in_light"
    parameters = {
        "object_target": goal.thing,
        "parent_target": "" if light else goal.receptacle,
        "toggle_target": goal.receptacle if light else "",
        "mrecep_target": "",
        "object_sliced": False,
    }
    (folder / "traj_data.json").write_text(json.dumps({"task_type": goal.task_type, "pddl_params": parameters}))
    return folder / "game.tw-pddl"


def name_of(goal: Goal, scene: int = 7) -> str:
    return f"{goal.task_type}-{goal.thing}-None-{goal.receptacle}-{scene}"


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for number, (split, household) in enumerate(
        zip(("train", "train", "valid_seen", "valid_unseen"), HOUSEHOLDS, strict=True)
    ):
        write_game(root / "json_2.1.1" / split / name_of(household.goal) / f"trial_T{number}", household)
    return root


def solve(environment: Alfworld) -> float:
    for _ in range(50):
        move = environment.expert()
        assert move is not None
        outcome = environment.step(move.action)
        if outcome.terminated:
            return outcome.score
    return 0.0


def imported(source: Path, target: Path) -> Path:
    target.mkdir()
    ENVIRONMENT.import_data(source, target)
    return target


@pytest.mark.parametrize("through_import", [False, True], ids=["as it lies", "imported"])
def test_game_files_are_found_by_split_and_solved(layout: Path, tmp_path: Path, through_import: bool) -> None:
    data = imported(layout, tmp_path / "imported") if through_import else layout
    tasks = ENVIRONMENT.task_source(data)

    assert tasks.name == "alfworld games"
    assert [tasks.count(split, "games") for split in ("train", "validation", "test")] == [2, 1, 1]
    assert [tasks.by_index("train", "games", index).task_id for index in range(2)] == ["trial_T0", "trial_T1"]
    for number, household in enumerate(HOUSEHOLDS):
        environment = ENVIRONMENT()
        first = environment.reset(tasks.by_id(f"trial_T{number}").data, 0)
        assert f"Your task is to: {household.sentence}." in first
        assert solve(environment) == 1


@pytest.mark.parametrize("through_import", [False, True], ids=["as it lies", "imported"])
def test_agentgym_s_test_games_are_no_training_games(layout: Path, tmp_path: Path, through_import: bool) -> None:
    """AgentGym's server takes numbers 2420 to 2619 from `valid_train`."""
    goal = HOUSEHOLDS[0].goal
    write_game(layout / "json_2.1.1" / "valid_train" / name_of(goal) / "trial_T9", HOUSEHOLDS[0])
    held_out = [{"item_id": 2420, "task_type": name_of(goal), "task_id": "trial_T9"}]
    (layout / "mappings_test.json").write_text(json.dumps(held_out))

    tasks = ENVIRONMENT.task_source(imported(layout, tmp_path / "imported") if through_import else layout)

    assert (tasks.by_id("2420").task_id, tasks.by_id("2420").split) == ("trial_T9", "test")
    assert [tasks.count(split, "games") for split in ("train", "validation", "test")] == [2, 1, 1]
    assert [tasks.count(split, "valid_train") for split in ("train", "validation", "test")] == [0, 0, 1]
    assert tasks.default_level == "games"


def test_import_copies_games_and_index_and_nothing_else(layout: Path, tmp_path: Path) -> None:
    (layout / "notes.txt").write_text("hello")

    target = imported(layout, tmp_path / "imported")

    assert Counter(path.name for path in target.rglob("*") if path.is_file()) == {"game.tw-pddl": 4, "games.json": 1}


def test_games_that_alfworld_leaves_out_are_left_out(layout: Path) -> None:
    train = layout / "json_2.1.1" / "train"
    write_game(train / name_of(HOUSEHOLDS[0].goal, 9) / "trial_unsolvable", HOUSEHOLDS[0], solvable=False)
    sliced = write_game(train / "pick_and_place_simple-PotatoSliced-None-Fridge-3" / "trial_sliced", HOUSEHOLDS[0])
    parameters = {"object_sliced": True, "object_target": "Potato", "parent_target": "Fridge"}
    (sliced.parent / "traj_data.json").write_text(
        json.dumps({"task_type": "pick_and_place_simple", "pddl_params": parameters})
    )

    assert ENVIRONMENT.task_source(layout).count("train", "games") == 2


def test_without_trajectory_file_the_folder_names_the_goal(layout: Path) -> None:
    for path in layout.rglob("traj_data.json"):
        path.unlink()

    tasks = ENVIRONMENT.task_source(layout)

    data = tasks.by_id("trial_T1").data
    assert isinstance(data, GameFile)
    assert data.goal == HOUSEHOLDS[1].goal


def damaged(game: dict[str, Any], **changes: Any) -> str:
    return json.dumps({key: value for key, value in {**game, **changes}.items() if value is not ...})


DAMAGES = {
    "truncated": (lambda text, _: text[: len(text) // 2], "is not JSON"),
    "empty": (lambda _, __: "", "is not JSON"),
    "a list": (lambda _, __: "[]", "must be a JSON object"),
    "deep": (lambda _, __: "[" * 100_000, "is not JSON"),
    "no domain": (lambda _, game: damaged(game, pddl_domain=...), "lacks 'pddl_domain'"),
    "no grammar": (lambda _, game: damaged(game, grammar=None), "lacks 'grammar'"),
    "problem is no text": (lambda _, game: damaged(game, pddl_problem=[1]), "lacks 'pddl_problem'"),
    "walkthrough is no list": (lambda _, game: damaged(game, walkthrough="go"), "'walkthrough' must be"),
    "huge": (lambda _, game: damaged(game, extra="x" * MAX_GAME_BYTES), "is the limit"),
    "huge grammar": (lambda _, game: damaged(game, grammar="x" * 300_000), "'grammar' has 300000"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_game_file_is_refused_with_its_name(layout: Path, damage: Any, message: str) -> None:
    path = min(layout.rglob("game.tw-pddl"))
    text = path.read_text()
    path.write_text(damage(text, json.loads(text)))

    with pytest.raises(EnvironmentUnavailable, match=message) as error:
        load_entry("alfworld", {"alfworld": layout})
    assert str(path) in str(error.value)


def test_bad_pddl_is_refused_at_import_and_at_reset(layout: Path, tmp_path: Path) -> None:
    path = layout / "json_2.1.1" / "train" / name_of(HOUSEHOLDS[0].goal) / "trial_T0" / "game.tw-pddl"
    game = json.loads(path.read_text())
    path.write_text(json.dumps({**game, "pddl_problem": game["pddl_problem"][:-200]}))

    with pytest.raises(TaskDataError, match=r"trial_T0/game\.tw-pddl: the PDDL cannot be played"):
        imported(layout, tmp_path / "imported")
    tasks = ENVIRONMENT.task_source(layout)
    with pytest.raises(TaskDataError, match="the PDDL cannot be played"):
        ENVIRONMENT().reset(tasks.by_id("trial_T0").data, 0)
    neighbour = ENVIRONMENT()
    neighbour.reset(tasks.by_id("trial_T1").data, 0)
    assert solve(neighbour) == 1


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[", "is not JSON"),
        ('[{"path": "gone/game.tw-pddl", "folder": "train", "goal": ["a", "b", "c"]}]', "is not there"),
        ('[{"path": "../../../etc/passwd", "folder": "train", "goal": ["a", "b", "c"]}]', "outside"),
        ('[{"folder": "train"}]', "damaged"),
        ("[7]", "damaged"),
        ('{"a": 1}', "damaged"),
    ],
)
def test_damaged_index_is_refused(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "games.json").write_text(index)

    with pytest.raises(TaskDataError, match=message):
        ENVIRONMENT.task_source(tmp_path)


@pytest.mark.parametrize("entry", [{"split": "train"}, {"folder": "elsewhere"}, {"folder": []}])
def test_an_index_without_the_games_folders_is_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    (tmp_path / "game.tw-pddl").write_text("{}")
    (tmp_path / "games.json").write_text(json.dumps([{"path": "game.tw-pddl", "goal": ["a", "b", "c"], **entry}]))

    with pytest.raises(TaskDataError, match="import the games again"):
        ENVIRONMENT.task_source(tmp_path)


def test_trajectory_file_without_parameters_is_refused(layout: Path) -> None:
    path = min(layout.rglob("traj_data.json"))
    path.write_text("{}")

    with pytest.raises(TaskDataError, match="lacks 'task_type'"):
        ENVIRONMENT.task_source(layout)


def test_game_outside_of_a_splits_folder_is_refused(tmp_path: Path) -> None:
    write_game(tmp_path / "games" / "a" / "b", HOUSEHOLDS[0])

    with pytest.raises(TaskDataError, match="none of the folders"):
        ENVIRONMENT.task_source(tmp_path)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_text("x"), lambda _: None])
def test_directory_without_tasks_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "data")

    with pytest.raises(TaskDataError):
        ENVIRONMENT.task_source(tmp_path / "data")


def test_game_is_read_as_it_is_written(layout: Path) -> None:
    path = min(layout.rglob("game.tw-pddl"))

    game = parse_game(path.read_bytes(), "here")

    assert game.walkthrough == ("look",)
    assert game.problem.startswith("(define (problem")


NAMES = [
    "look_at_obj_in_light-Book-None-DeskLamp-301",
    "pick_clean_then_place_in_recep-SoapBar-None-Toilet-410",
    "pick_heat_then_place_in_recep-Egg-None-SideTable-21",
    "pick_cool_then_place_in_recep-Pan-None-StoveBurner-5",
    "pick_two_obj_and_place-Newspaper-None-Drawer-224",
    "pick_and_place_simple-Thingamajig-None-Whatnot-30",
]


def write_mappings(folder: Path, names: list[str]) -> None:
    entries = [
        {"item_id": number, "task_type": name, "task_id": f"trial_T{number:03}"} for number, name in enumerate(names)
    ]
    (folder / "mappings_train.json").write_text(json.dumps(entries[:-2][::-1]))
    (folder / "mappings_test.json").write_text(json.dumps(entries[-2:]))


def test_listed_names_become_games_with_the_named_goal(tmp_path: Path) -> None:
    write_mappings(tmp_path, NAMES)

    tasks = ENVIRONMENT.task_source(tmp_path)

    assert tasks.name == "alfworld names"
    assert (tasks.count("train", "agentgym"), tasks.count("test", "agentgym")) == (4, 2)
    for number, name in enumerate(NAMES):
        task = tasks.by_id(str(number))
        assert task.task_id == f"trial_T{number:03}", "AgentGym's number stands for the trial"
        assert task == tasks.by_index("train" if number < 4 else "test", "agentgym", number % 4)
        environment = ENVIRONMENT()
        first = environment.reset(task.data, 0)
        kind, thing, _, place, _ = name.split("-")
        assert environment.start_info["task_type"] == kind
        assert thing.lower() in first
        assert place.lower() in first
        assert solve(environment) == 1
        again = ENVIRONMENT()
        assert again.reset(task.data, 99) == first


def test_a_floor_plans_files_furnish_the_scene(tmp_path: Path) -> None:
    write_mappings(tmp_path, NAMES)
    layouts = tmp_path / "gen" / "layouts"
    layouts.mkdir(parents=True)
    places = {"Sink|1|2": [0, 0, 0, 0], "Cabinet|1|1": [0, 0, 0, 0], "Cabinet|2|2": [0, 0, 0, 0]}
    (layouts / "FloorPlan21-openable.json").write_text(json.dumps(places))
    (layouts / "FloorPlan21-objects.json").write_text(json.dumps(["Egg", "Mug", "CounterTop", "Chair"]))

    first = ENVIRONMENT().reset(ENVIRONMENT.task_source(tmp_path).by_id("trial_T002").data, 0)

    assert (
        "you see a cabinet 2, a cabinet 1, a countertop 1, a microwave 1, a sidetable 1, and a sinkbasin 1." in first
    ), "the plan's furniture, and what the task cannot do without"


def test_paths_of_game_files_become_games_and_what_alfworld_skips_is_skipped(tmp_path: Path) -> None:
    paths = [
        f"json_2.1.1/{split}/{name}/trial_{number}/game.tw-pddl"
        for number, (split, name) in enumerate(
            [
                ("train", NAMES[0]),
                ("train", "pick_and_place_simple-PotatoSliced-None-Fridge-3"),
                ("train", "pick_and_place_with_movable_recep-Spoon-Mug-SinkBasin-3"),
                ("valid_seen", NAMES[1]),
                ("valid_unseen", NAMES[2]),
            ]
        )
    ]
    (tmp_path / "train_valid.json").write_text(json.dumps({"some": paths[:3], "more": paths[3:]}))
    (tmp_path / "dev.json").write_text(json.dumps({"some": paths[4:]}))

    tasks = ENVIRONMENT.task_source(tmp_path)

    assert [tasks.count(split, "agentbench") for split in ("train", "validation", "test")] == [1, 1, 1]
    assert tasks.by_id("trial_4").split == "test"
    with pytest.raises(UnknownTask):
        tasks.by_id("trial_1")


BAD_LISTS = {
    "no JSON": ("mappings_train.json", "[", "is not JSON"),
    "no list": ("mappings_train.json", "7", "lacks item_id"),
    "no task": ("mappings_train.json", '[{"item_id": 1, "task_id": "trial_1"}]', "lacks item_id"),
    "odd name": ("mappings_train.json", '[{"item_id": 1, "task_id": "trial_1", "task_type": "x-y"}]', "is not like"),
    "odd trial": (
        "mappings_train.json",
        json.dumps([{"item_id": 1, "task_id": "../x", "task_type": NAMES[0]}]),
        "is not like",
    ),
    "no such scene": (
        "mappings_train.json",
        json.dumps([{"item_id": 1, "task_id": "trial_1", "task_type": "pick_and_place_simple-Mug-None-Desk-199"}]),
        "no floor plan",
    ),
    "PDDL in a name": (
        "mappings_train.json",
        json.dumps([{"item_id": 1, "task_id": "trial_1", "task_type": "pick_and_place_simple-Mug)(-None-Desk-1"}]),
        "is not like",
    ),
    "odd path": ("dev.json", '{"a": ["game.tw-pddl"]}', "is not like"),
    "no groups": ("dev.json", "[]", "must be an object"),
    "groups of numbers": ("dev.json", '{"a": 7}', "must be an object of lists"),
}


@pytest.mark.parametrize(("file", "text", "message"), BAD_LISTS.values(), ids=BAD_LISTS)
def test_damaged_list_is_refused(tmp_path: Path, file: str, text: str, message: str) -> None:
    (tmp_path / file).write_text(text)

    with pytest.raises(TaskDataError, match=message):
        ENVIRONMENT.task_source(tmp_path)


def test_import_of_lists_copies_lists_and_plans(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "gen" / "layouts").mkdir(parents=True)
    write_mappings(source, NAMES)
    (source / "gen" / "layouts" / "FloorPlan1-objects.json").write_text("[]")
    (source / "prompts.json").write_text("{}")

    target = imported(source, tmp_path / "target")

    assert sorted(path.name for path in target.rglob("*.json")) == [
        "FloorPlan1-objects.json",
        "mappings_test.json",
        "mappings_train.json",
    ]


@pytest.mark.parametrize("data", [DATA] if DATA.is_dir() else [], ids=lambda _: "published lists")
def test_published_names_have_their_numbers_and_are_solved(data: Path) -> None:
    tasks = ENVIRONMENT.task_source(data)

    assert (tasks.count("train", "agentgym"), tasks.count("test", "agentgym")) == (2420, 200)
    for number in range(0, 2620, 328):
        task = tasks.by_id(str(number))
        assert task == (
            tasks.by_index("train", "agentgym", number)
            if number < 2420
            else tasks.by_index("test", "agentgym", number - 2420)
        )
        assert isinstance(task.data, NamedHousehold)
        environment = ENVIRONMENT()
        environment.reset(task.data, 0)
        assert solve(environment) == 1
