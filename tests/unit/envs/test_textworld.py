"""TextWorld's games: hand-checked play, files that are hostile or not its own, and forks that are independent."""

import copy
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import SPLITS, TaskDataError

pytest.importorskip("textworld")

from gymfleet_envs.textworld import zmachine
from gymfleet_envs.textworld.engine import begin
from gymfleet_envs.textworld.environment import TextWorld
from gymfleet_envs.textworld.files import GameFile, saved_games
from gymfleet_envs.textworld.generate import Seeded, _made, generated_tasks
from gymfleet_envs.textworld.options import TextWorldOptions
from gymfleet_envs.textworld.package import generate, logic_for, package
from gymfleet_envs.textworld.zmachine import ZMachine, ZMachineOptions

HOSTILE: Final = (
    "", " ", ".", "take", "take ", "take coin from", "go", "go up", "goal\x00", "take P", "drop I", "{0}", "%s", "[",
    "\ud800", "\u202ego west", "a" * 1_024, "take " * 200, "open {c}", "__import__('os').abort()", "go \u0435ast",
    "examine r_0", "put coin on coin", "insert I into I", "tw-print max_score", "restart", "GO NORTH\n\nGO NORTH",
)  # fmt: skip


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A hall with a box that is locked, its key under the player's feet, and a closed door to the yard; saved as JSON.

    The quest is the lamp that is in the box, for two points; the bun may not be eaten; one point is for the yard.
    """
    textworld = package()
    options = textworld.GameOptions()
    options.seeds = 1
    options.kb = textworld.generator.data.KB
    maker = textworld.GameMaker(options)
    hall, yard = maker.new_room("hall", desc="A bare hall."), maker.new_room("yard", desc="A yard, 'free' of all.")
    door = maker.new_door(maker.connect(hall.east, yard.west), name="red door")
    door.infos.desc = "It is red.[if open] And open.[end if]"
    door.add_property("closed")
    maker.set_player(hall)
    box = maker.new(
        type="c", name="box", desc="[noun]. [if open]It is open.[else if closed]Shut.[otherwise]Never.[end if]"
    )
    key, lamp = maker.new(type="k", name="brass key", desc=""), maker.new(type="o", name="old lamp", desc="A lamp.")
    bun = maker.new(type="f", name="bun", desc="A bun.")
    bun.add_property("edible")
    hall.add(box, key)
    box.add(lamp)
    box.add_property("locked")
    maker.add_fact("match", key, box)
    maker.inventory.add(bun)
    event, quest = textworld.generator.game.Event, textworld.generator.game.Quest
    maker.quests = [
        quest(win_events=[event(conditions={maker.new_fact("in", lamp, maker.inventory)})], reward=2, desc=""),
        quest(win_events=[event(conditions={maker.new_fact("at", maker.player, yard)})], reward=1, desc=""),
        quest(fail_events=[event(conditions={maker.new_fact("eaten", bun)})], desc=""),
    ]
    game = maker.build()
    game.objective = "Get the lamp, and some air."
    game.metadata["walkthrough"] = [
        "take brass key", "unlock box with brass key", "open box", "take old lamp from box", "open red door", "go east",
    ]  # fmt: skip
    path = tmp_path / "games" / "train" / "house.json"
    path.parent.mkdir(parents=True)
    game.save(str(path))
    return path


def begun(path: Path) -> TextWorld:
    environment = TextWorld()
    environment.reset(GameFile(path), 0)
    return environment


def play(environment: TextWorld, *actions: str) -> Outcome:
    for action in actions:
        outcome = environment.step(action)
    return outcome


END: Final = """-= Yard =-
A yard, "free" of all.

Your score has just gone up by one point.

*** The End ***

You scored 3 out of a possible 3."""


def test_a_house_is_played_to_its_end(house: Path) -> None:
    environment = TextWorld()

    first = environment.reset(GameFile(house), 0)

    assert first == ("Get the lamp, and some air.\n\n-= Hall =-\nA bare hall.\n\nThere is a brass key on the floor.")
    told = [
        ("look", "-= Hall =-\nA bare hall.\n\nThere is a brass key on the floor."),
        ("inventory", "You are carrying: a bun."),
        ("examine box", "box. Shut."),
        ("open box", "You have to unlock the box with the brass key first."),
        ("go east", "You have to open the red door first."),
        ("take brass key", "You pick up the brass key from the ground."),
        ("examine brass key", "You see nothing special about the brass key."),
        ("i", "You are carrying: a brass key and a bun."),
        ("unlock box with brass key", "You unlock the box."),
        ("open box", "You open the box, revealing an old lamp."),
        ("examine box", "box. It is open.\n\nIn the box is an old lamp."),
        ("open box", "That's already open."),
        ("insert bun into box", "You put the bun into the box."),
        ("examine box", "box. It is open.\n\nIn the box are a bun and an old lamp."),
        ("Take the old lamp from the box.",
         "You take the old lamp from the box.\n\nYour score has just gone up by two points."),
        ("open red door", "You open red door."),
        ("examine red door", "It is red. And open."),
        ("e", END),
    ]  # fmt: skip
    for action, answer in told:
        outcome = environment.step(action)
        assert outcome.observation == answer, action
    assert (outcome.score, outcome.terminated) == (1.0, True)
    assert outcome.reward == pytest.approx(1 / 3)
    assert outcome.info == {"points": 3, "max_points": 3}
    assert environment.admissible_actions() == []
    assert environment.expert() is None
    after = environment.step("look")
    assert (after.observation, after.terminated, after.action_valid) == ("The game is over.", True, False)


def test_points_are_given_once_and_a_failed_quest_ends_the_game(house: Path) -> None:
    environment = begun(house)

    rewards = [environment.step(action).reward for action in ("open red door", "go east", "go west", "go east")]
    lost = environment.step("eat bun")

    assert rewards == [0.0, pytest.approx(1 / 3), 0.0, 0.0]
    assert lost.observation == "You eat the bun. Not bad.\n\n*** You lost! ***\n\nYou scored 1 out of a possible 3."
    assert (lost.terminated, lost.reward) == (True, 0.0)
    assert lost.score == pytest.approx(1 / 3)


def test_what_cannot_be_done_costs_a_turn_and_changes_nothing(house: Path) -> None:
    environment = begun(house)
    before = environment.state_key()
    answers = {
        "": "I beg your pardon?",
        "dance": "That's not a verb I recognise.",
        "go north": "You can't go that way.",
        "take old lamp": "You can't do that now.",
        "drop sword": "You can't do that now.",
    }

    for action in (*answers, *HOSTILE):
        outcome = environment.step(action)
        assert not outcome.action_valid, action
        assert outcome.observation == answers.get(action, outcome.observation)
        assert environment.state_key() == before


def test_things_are_taken_from_where_they_are_and_the_goal_is_told_again(house: Path) -> None:
    environment = begun(house)

    told = play(environment, "get the brass key", "unlock box with brass key", "open box", "take old lamp").observation

    assert told.startswith("You take the old lamp from the box.")
    assert environment.step("goal") == Outcome(
        "Get the lamp, and some air.", score=2 / 3, info={"points": 2, "max_points": 3}
    )
    assert environment.step("PUT BUN IN BOX").observation == "You put the bun into the box."


def test_the_expert_takes_back_what_led_away(house: Path) -> None:
    environment = begun(house)
    play(environment, "open red door", "drop bun", "take brass key", "drop brass key", "look", "nonsense")
    taken = []

    while (move := environment.expert()) is not None:
        taken.append(move.action)
        outcome = environment.step(move.action)

    assert outcome.score == 1.0
    assert taken[:2] == ["take bun", "close red door"]


def test_forks_are_independent_and_equal_states_have_equal_keys(house: Path) -> None:
    environment = begun(house)
    play(environment, "take brass key")
    fork = environment.snapshot()

    play(fork, "unlock box with brass key")

    assert "unlock box with brass key" in environment.admissible_actions()
    assert environment.state_key() != fork.state_key()
    play(environment, "drop brass key", "take brass key", "unlock box with brass key", "look")
    assert environment.state_key() == fork.state_key()
    assert environment.step("open box") == fork.step("open box")


def test_actions_are_shown_where_they_are_asked_for(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextWorld, "options", TextWorldOptions(show_actions=True))

    last = play(begun(house), "take brass key", "drop bun").observation.splitlines()[-1]

    assert last == (
        "AVAILABLE ACTIONS: drop brass key,examine box,examine brass key,examine bun,examine red door,inventory,look,"
        "open red door,take bun,unlock box with brass key"
    )


def test_saved_games_are_imported_and_keep_their_splits(house: Path, tmp_path: Path) -> None:
    source, target = house.parent.parent, tmp_path / "imported"
    (source / "loose.json").write_bytes(house.read_bytes())
    target.mkdir()

    TextWorld.import_data(source, target)

    tasks = saved_games(target)
    assert (target / "train" / "train" / "house.json").is_file()
    assert tasks.name == "textworld games"
    assert sum(tasks.count(split, "games") for split in SPLITS) == 2
    task = tasks.by_id("train/train/house")
    assert (task.split, begun(task.data.path).step("look").action_valid) == ("train", True)


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def box(data: Any) -> Any:
    return next(value for _, value in data["infos"] if value["name"] == "box")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        pytest.param(lambda data: data.pop("KB"), "lacks 'KB'", id="no game"),
        pytest.param(lambda data: data.update(version=2), "its version is 2", id="version"),
        pytest.param(lambda data: data["KB"].update(logic="type x { }"), "rules are not those of", id="own rules"),
        pytest.param(lambda data: box(data).update(desc="[run paragraph on]"), "[run paragraph on]", id="substitution"),
        pytest.param(lambda data: box(data).update(desc="[if open]x"), "has no [end if]", id="no end if"),
        pytest.param(lambda data: box(data).update(desc="x[end if]"), "has no [if]", id="no if"),
        pytest.param(lambda data: box(data).update(desc="[a list of things in the c_9]"), "'c_9'", id="no thing"),
        pytest.param(lambda data: box(data).update(desc="[if open]" * 900), "more than 8 [if]", id="deep"),
        pytest.param(lambda data: box(data).update(desc="[noun]" * 1_001), "2000 parts", id="many parts"),
        pytest.param(lambda data: box(data).update(desc="a" * 20_001), "20000 characters", id="long text"),
        pytest.param(lambda data: box(data).update(name="{0.__class__}"), "without brackets", id="braces"),
        pytest.param(lambda data: box(data).update(type="exploit"), "which its rules lack", id="type"),
        pytest.param(lambda data: data["world"].append({"name": "in", "arguments": [{"name": "x", "type": "o"}]}),
                     "something that 'infos' lacks", id="fact about nothing"),
        pytest.param(lambda data: data["world"][0]["arguments"].append(data["world"][0]["arguments"][0]),
                     "is about 3 things; in its rules it is about 2", id="fact about too many"),
        pytest.param(lambda data: data.update(world=data["world"] * 1_000), "5000 is the limit", id="many facts"),
        pytest.param(lambda data: data.update(quests=[]), "no quest of it can be won", id="no quest"),
        pytest.param(lambda data: data["quests"][0].update(repeatable=True), "repeated without end", id="repeatable"),
        pytest.param(lambda data: data["quests"][0].update(reward=-1), "the reward -1", id="negative reward"),
        pytest.param(lambda data: data["quests"][0].update(reward=1e9), "a whole number", id="reward is no integer"),
        pytest.param(lambda data: data["metadata"].update(walkthrough=["look"] * 501), "500 commands", id="long"),
        pytest.param(lambda data: data.update(infos=[]), "the player 'P'", id="no player"),
    ],
)  # fmt: skip
def test_a_damaged_game_is_refused_with_its_fault(house: Path, change: Callable[[Any], None], fault: str) -> None:
    path = changed(house, change)

    with pytest.raises(TaskDataError) as refused:
        _ = GameFile(path).game

    assert str(path) in str(refused.value)
    assert fault in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_game_is_refused(house: Path, content: bytes) -> None:
    house.write_bytes(content)

    with pytest.raises(TaskDataError, match=r"house\.json"):
        _ = GameFile(house).game


def test_every_level_is_won_by_its_expert_and_its_score_rises_to_one() -> None:
    tasks = generated_tasks()
    for level in tasks.levels:
        environment = TextWorld()
        environment.reset(tasks.by_index("test", level, 0).data, 0)
        scores = []
        while (move := environment.expert()) is not None:
            outcome = environment.step(move.action)
            scores.append(outcome.score)

        assert scores == sorted(scores), level
        assert (scores[-1], outcome.terminated) == (1.0, True)
        assert len(scores) <= (environment.turn_limit or 0) / 2, "there is time to look around"


def test_no_text_breaks_a_generated_game() -> None:
    rng = random.Random(0)
    for level in ("simple", "cooking_house"):
        environment = TextWorld()
        environment.reset(Seeded(level, 7), 0)
        for _ in range(100):
            actions = environment.admissible_actions()
            action = rng.choice([*actions, *HOSTILE]) if rng.random() < 0.5 else rng.choice(actions)
            if environment.step(action[: rng.randrange(1, 200)]).terminated:
                break


def test_sessions_of_a_task_share_its_game_however_many_others_were_made() -> None:
    task, first, second = Seeded("coin_collector", 5), TextWorld(), TextWorld()
    first.reset(task, 0)
    _made.cache_clear()

    second.reset(Seeded("coin_collector", 5), 0)

    assert second._state.game is first._state.game
    assert second._state.game is not Seeded("coin_collector", 6).game


def test_actions_by_their_verbs_are_all_that_the_rules_allow() -> None:
    state = begin(generated_tasks().by_index("train", "cooking", 0).data.game)
    game = state.game
    for _ in range(6):
        parts = [state.actions_of(verb) for verb in game.logic.verbs]
        assert sum(map(len, parts)) == len(state.actions), "no command has two verbs"
        for command, action in state.actions.items():
            assert action == state.action(command)
            assert action.removed <= state.facts
        assert state.actions_of("fly") == state.actions_of("") == {}
        state = state.after(state.actions[max(state.actions)])


def test_games_of_different_seeds_differ() -> None:
    for level in ("coin_collector", "treasure_hunter", "simple"):
        drawn = generated_tasks()
        first = [TextWorld().reset(drawn.by_index("train", level, index).data, 0) for index in range(30)]
        assert len(set(first)) == 30, level


def test_a_meal_is_not_prepared_from_raw_things() -> None:
    environment = TextWorld()
    environment.reset(Seeded("cooking", 5), 0)
    commands = []
    while (move := copy.copy(environment).expert()) is not None and not move.action.startswith(
        ("cook", "slice", "dice", "chop")
    ):
        commands.append(move.action)
        environment.step(move.action)

    refused = environment.step("prepare meal")

    assert refused.observation in {"Something still needs to be cooked.", "Something still needs to be cut."}
    assert (refused.terminated, refused.action_valid) == (False, True)


def test_a_generated_game_is_the_packages_own(tmp_path: Path) -> None:
    """Made with the package's compiler, as `tw-make` does, it has the same facts, names and objective."""
    textworld = package()
    challenge = "coin_collector"
    make = textworld.challenges.CHALLENGES[f"tw-{challenge}"][1]
    options = textworld.GameOptions()
    options.seeds = 3
    try:
        with warnings.catch_warnings():  # jericho's, of a game that it does not know
            warnings.simplefilter("ignore")
            own = make({"level": 4}, options).serialize()
    except (OSError, textworld.generator.CouldNotCompileGameError):
        pytest.skip("Inform 7 does not run here")

    ours = generate(lambda options: make({"level": 4}, options), 3, brief=False)

    for part in ("world", "infos", "objective", "metadata"):
        assert json.dumps(ours[part]) == json.dumps(own[part]), part
    assert logic_for(own["KB"]["logic"]) is logic_for(ours["KB"]["logic"])


def test_the_catalogue_knows_it() -> None:
    entry = load_entry("textworld", {})

    assert entry.spec.capabilities.fork == "native"
    assert entry.spec.capabilities.expert
    assert begin(entry.tasks.by_index("train", "coin_collector", 0).data.game).end is None


class TestZMachine:
    """Games for the Z-machine: refused in a line where they cannot be scored."""

    def test_a_file_is_needed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with pytest.raises(TaskDataError, match="game_file must name a game"):
            ZMachine.task_source(None)

        monkeypatch.setattr(ZMachine, "options", ZMachineOptions(game_file=tmp_path / "zork1.z5"))
        with pytest.raises(TaskDataError, match="no such game file"):
            ZMachine.task_source(None)

    @pytest.mark.parametrize(
        "command", ["save", "Restore the game", "scripting", "unscripted", "restarx", "look. quit"]
    )
    def test_commands_that_reach_for_files_are_not_passed_on(
        self, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        """Games of version 3 read six letters of a word."""
        frotz = SimpleNamespace(is_fully_supported=True, reset=lambda: ("A house.", {}), step=lambda said: (said, 0))
        monkeypatch.setattr(zmachine, "_frotz", lambda *_: frotz)
        interpreter = zmachine.Interpreter(Path("zork1.z3"), 0)

        assert interpreter.act(command) is None
        assert interpreter.act("open the mailbox") == "open the mailbox"
