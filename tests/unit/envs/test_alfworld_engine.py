import importlib.util
import random
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import textworld
from gymfleet_envs.alfworld import engine as engine_module
from gymfleet_envs.alfworld.engine import Engine, compile_game, demangled
from gymfleet_envs.alfworld.game import Game, Goal
from gymfleet_envs.alfworld.generate import generated_tasks
from gymfleet_envs.alfworld.household import Household, Thing
from gymfleet_envs.alfworld.library import PlannerPool
from gymfleet_envs.alfworld.pddl import check_pddl, ground
from gymfleet_envs.alfworld.textgen import Grammar
from gymfleet_envs.alfworld.wording import DOMAIN, Wording, grammar_text
from gymfleet_envs.tasks import TaskDataError
from textworld.envs.pddl import PddlEnv

from tests.fixtures.paths import SHARED_DATA

SHARED = SHARED_DATA / "alfworld" / "data"
UPSTREAM = [
    folder
    for folder in (
        SHARED,
        *(
            Path(place) / "data"
            for spec in [importlib.util.find_spec("alfworld")]
            if spec is not None
            for place in spec.submodule_search_locations or ()
        ),
    )
    if (folder / "alfred.twl2").is_file()
][:1]
"""Upstream's domain and grammar, where they are at hand."""
KITCHEN = Household(
    receptacles=("Fridge", "Microwave", "SinkBasin", "CounterTop", "Cabinet", "Cabinet", "SideTable"),
    things=(
        Thing("Apple", 0),
        Thing("Apple", 3),
        Thing("Knife", 3),
        Thing("Mug", 4),
        Thing("Plate", 3),
        Thing("DeskLamp", 6),
    ),
    goal=Goal("pick_heat_then_place_in_recep", "Apple", "SideTable"),
    sentence="heat some apple and put it in sidetable",
)
SMALL = Household(
    receptacles=("Desk", "Drawer", "Bed"),
    things=(Thing("Mug", 0), Thing("Pen", 1)),
    goal=Goal("pick_and_place_simple", "Mug", "Bed"),
    sentence="put a mug in bed",
)


def stock(game: Game) -> Any:
    """textworld's own environment with alfworld's names, as alfworld plays a game."""
    environment = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
    environment.load({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem})
    names = demangled((fact.name, tuple(v.name for v in fact.arguments)) for fact in environment._pddl_state.facts)
    for info in environment._entity_infos.values():
        info.name = names[info.id]
    return environment


def upstream_game(household: Household, folder: Path) -> Game:
    """The household in upstream's domain, with upstream's grammar."""
    game = household.game("current")
    constants = "SinkBasinType MicrowaveType FridgeType - rtype KnifeType ButterKnifeType - otype"
    problem = game.problem.replace("(:domain household)", "(:domain alfred)")
    problem = problem.replace("(:objects agent1 - agent", f"(:objects agent1 - agent {constants}")
    grammar = (folder / "alfred.twl2").read_text().replace("UNKNOWN GOAL", household.sentence)
    return Game((folder / "alfred.pddl").read_text(), grammar, problem)


def play(engine: Engine, rng: random.Random, turns: int) -> list[tuple[str, str, bool]]:
    """Random play that prefers what changes something."""
    moves = []
    for _ in range(turns):
        doing = [command for command in engine.commands if not command.startswith(("examine", "help", "go", "look"))]
        command = rng.choice(doing if doing and rng.random() < 0.6 else engine.commands)
        moves.append((command, engine.step(command), engine.won))
    return moves


@pytest.mark.parametrize("wording", ["classic", "current"])
def test_texts_commands_and_goal_are_those_of_textworlds_own_environment(wording: Wording) -> None:
    game = KITCHEN.game(wording)
    ours, theirs = Engine(game), stock(game)
    state = theirs.reset()
    rng = random.Random(3)

    assert ours.intro == state.feedback
    for _ in range(25):
        assert ours.commands == state["admissible_commands"]
        ((command, observation, won),) = play(ours, rng, 1)
        state, score, _ = theirs.step(command)
        assert (observation, won) == (state.feedback, bool(score)), command


@pytest.mark.parametrize("folder", UPSTREAM, ids=lambda _: "upstream")
def test_our_domain_and_grammar_say_what_upstreams_say(folder: Path) -> None:
    ours, theirs = Engine(KITCHEN.game("current")), Engine(upstream_game(KITCHEN, folder))

    assert ours.intro == theirs.intro
    rng = random.Random(1)
    for _ in range(500):
        assert theirs.commands == ours.commands
        ((command, observation, won),) = play(ours, rng, 1)
        assert (theirs.step(command), theirs.won) == (observation, won), command


@pytest.mark.parametrize("folder", UPSTREAM, ids=lambda _: "upstream")
def test_upstreams_grammar_is_played_as_textworld_plays_it(folder: Path) -> None:
    game = upstream_game(KITCHEN, folder)
    ours, theirs = Engine(game), stock(game)
    state = theirs.reset()

    rng = random.Random(8)
    assert ours.intro == state.feedback
    for _ in range(20):
        assert ours.commands == state["admissible_commands"]
        ((command, observation, won),) = play(ours, rng, 1)
        state, score, _ = theirs.step(command)
        assert (observation, won) == (state.feedback, bool(score)), command


def test_an_episode_by_hand() -> None:
    engine = Engine(SMALL.game("classic"))

    assert engine.intro == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, and a drawer 1.\n\n"
        "Your task is to: put a mug in bed."
    )
    for command, observation in [
        ("take mug 1 from desk 1", "Nothing happens."),
        ("inventory", "You are not carrying anything."),
        ("go to drawer 1", "You arrive at loc 3. The drawer 1 is closed."),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1."),
        ("close drawer 1", "You close the drawer 1."),
        ("go to desk 1", "You arrive at loc 4. On the desk 1, you see a mug 1."),
        ("take mug 1 from desk 1", "You pick up the mug 1 from the desk 1."),
        ("examine mug 1", "There's nothing special about mug 1."),
        ("inventory", "You are carrying: a mug 1."),
        ("look", "You are facing the desk 1. Next to it, you see nothing."),
        ("go to bed 1", "You arrive at loc 2. On the bed 1, you see nothing."),
        ("put mug 1 in/on bed 1", "You put the mug 1 in/on the bed 1."),
    ]:
        assert not engine.won
        assert re.sub(r"loc \d", "loc", engine.step(command)) == re.sub(r"loc \d", "loc", observation), command
    assert engine.won


def test_states_are_described_and_heat_drives_out_cold() -> None:
    engine = Engine(KITCHEN.game("classic"))
    said = {}
    for command in (
        "go to countertop 1", "take apple 1 from countertop 1", "go to fridge 1", "cool apple 1 with fridge 1",
        "examine apple 1", "go to sinkbasin 1", "clean apple 1 with sinkbasin 1", "go to microwave 1",
        "heat apple 1 with microwave 1", "inventory",
    ):  # fmt: skip
        said[command] = engine.step(command)
    assert said["cool apple 1 with fridge 1"] == "You cool the apple 1 using the fridge 1."
    assert said["examine apple 1"] == "This is a cold apple 1."
    assert said["clean apple 1 with sinkbasin 1"] == "You clean the apple 1 using the sinkbasin 1."
    assert said["heat apple 1 with microwave 1"] == "You heat the apple 1 using the microwave 1."
    assert engine.step("examine apple 1") == "This is a hot and clean apple 1."
    engine.step("go to sidetable 1")
    assert engine.step("use desklamp 1") == "You turn on the desklamp 1."
    assert engine.step("examine desklamp 1") == "Nothing happens.", "only what is held is examined, as in ALFWorld"
    assert not engine.won
    engine.step("put apple 1 in/on sidetable 1")
    assert engine.won


def test_episodes_that_take_turns_in_one_process_are_independent() -> None:
    tasks = generated_tasks()
    games = [tasks.by_index("train", level, 5).data.game("classic") for level in ("tiny", "small", "room")]
    games = [*games, games[1], games[1]]
    alone = []
    for number, game in enumerate(games):
        engine = Engine(game)
        alone.append(play(engine, random.Random(number), 20))
        engine.close()

    engines = [Engine(game) for game in games]
    rngs = [random.Random(number) for number in range(len(games))]
    together: list[list[Any]] = [[] for _ in games]
    for _ in range(20):
        for engine, rng, moves in zip(engines, rngs, together, strict=True):
            moves.extend(play(engine, rng, 1))

    assert together == alone


def test_hundreds_of_episodes_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PlannerPool()
    monkeypatch.setattr(engine_module, "_POOL", pool)
    game = SMALL.game("classic")

    this = psutil.Process()

    def held() -> tuple[int, int]:
        return this.num_fds(), Path("/proc/self/maps").read_text().count("downward-")

    Engine(game).close()
    before, resident = held(), this.memory_info().rss
    for number in range(400):
        engine = Engine(game)
        engine.step("go to desk 1")
        if number % 2:
            engine.close()
        del engine  # an episode that was never closed gives its copy back, too

    assert held() == before
    assert len(pool._idle) == 1
    assert this.memory_info().rss - resident < 8 << 20


def test_closing_twice_gives_the_copy_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PlannerPool()
    monkeypatch.setattr(engine_module, "_POOL", pool)
    engine = Engine(SMALL.game("classic"))

    engine.close()
    engine.close()

    assert len(pool._idle) == 1


def test_a_game_is_grounded_once_for_all_its_episodes() -> None:
    first = Engine(SMALL.game("classic"))

    hits = compile_game.cache_info().hits
    second = Engine(SMALL.game("classic"))

    assert compile_game.cache_info().hits == hits + 1
    first.step("go to desk 1")
    assert "take mug 1 from desk 1" in first.commands
    assert "take mug 1 from desk 1" not in second.commands


GOOD = SMALL.game("classic")
BAD_PDDL = {
    "truncated": (DOMAIN, GOOD.problem[: len(GOOD.problem) // 2]),
    "truncated domain": (DOMAIN[:900], GOOD.problem),
    "closed too often": (DOMAIN, GOOD.problem + ")"),
    "empty": (DOMAIN, " ; nothing"),
    "no list": (DOMAIN, "hello"),
    "deep": (DOMAIN, "(" * 5_000 + ")" * 5_000),
    "undeclared predicate": (DOMAIN, GOOD.problem.replace("(openable", "(lovable")),
    "wrong arity": (DOMAIN, GOOD.problem.replace("(openable", "(openable agent1")),
    "undeclared object": (DOMAIN, GOOD.problem.replace("(atLocation agent1", "(atLocation agent9")),
    "no goal": (DOMAIN, GOOD.problem.replace("(:goal", "(:gaol")),
    "no domain": ("(define (domain x))", GOOD.problem),
    "not ASCII": (DOMAIN, GOOD.problem.replace("agent1", "agent\u00e9")),
    "NUL": (DOMAIN, GOOD.problem.replace("agent1", "agent\x00(")),
    "name beyond the planner's buffer": (DOMAIN, GOOD.problem.replace("agent1", "a" * 2_000)),
    "many names beyond the planner's buffer": (DOMAIN, GOOD.problem.replace("loc_bar", "l" * 400)),
    "too many words": (DOMAIN, GOOD.problem.replace("(:init", "(:init " + "(openable agent1)" * 110_000)),
}


@pytest.mark.parametrize(("domain", "problem"), BAD_PDDL.values(), ids=BAD_PDDL)
def test_damaged_pddl_is_refused_and_the_process_lives(domain: str, problem: str) -> None:
    with pytest.raises(TaskDataError):
        ground(domain, problem)

    assert ground(GOOD.domain, GOOD.problem).sas


def test_sound_pddl_passes_the_check_in_milliseconds() -> None:
    house = generated_tasks().by_index("train", "house", 0).data.game("classic")

    check_pddl(house.domain, house.problem)


def test_an_unsolvable_goal_plays_on() -> None:
    problem = GOOD.problem.replace("(canContain BedType MugType)", "")
    engine = Engine(Game(GOOD.domain, GOOD.grammar, problem))

    for command in ("go to desk 1", "take mug 1 from desk 1", "go to bed 1", "put mug 1 in/on bed 1"):
        engine.step(command)

    assert not engine.won


BAD_GRAMMARS = {
    "empty": "",
    "no grammar": "hello {",
    "truncated": GOOD.grammar[: len(GOOD.grammar) // 2],
    "broken JSON": GOOD.grammar.replace('"rhs":', '"rhs"', 1),
    "code": GOOD.grammar.replace("{o.name}", "{__import__('os').system('true')}", 1),
    "attributes of Python's": GOOD.grammar.replace("{o.name}", "{o.__class__}", 1),
    "call": GOOD.grammar.replace("{o.name}", "{o.name.upper()}", 1),
    "condition": GOOD.grammar.replace("holds(a:agent, o:object)", "holds a o", 1),
    "no text for an action": GOOD.grammar.replace("action HeatObject", "action FreezeObject"),
}


@pytest.mark.parametrize("grammar", BAD_GRAMMARS.values(), ids=BAD_GRAMMARS)
def test_a_damaged_or_hostile_grammar_is_refused(grammar: str) -> None:
    with pytest.raises(TaskDataError):
        Engine(Game(GOOD.domain, grammar, GOOD.problem))


def test_rules_that_never_end_are_refused() -> None:
    grammar = GOOD.grammar.replace("You are not carrying anything.", "#inventory.feedback#")
    engine = Engine(Game(GOOD.domain, grammar, GOOD.problem))

    with pytest.raises(TaskDataError, match="do not come to an end"):
        engine.step("inventory")


def test_games_share_the_grammars_parse_and_keep_their_own_task() -> None:
    engine_module._grammar.cache_clear()
    intros = [
        Engine(Game(GOOD.domain, grammar_text("classic", sentence), GOOD.problem)).intro for sentence in ("a b", "c d")
    ]

    assert [intro.rpartition("\n")[2] for intro in intros] == ["Your task is to: a b.", "Your task is to: c d."]
    assert engine_module._grammar.cache_info().misses == 1


def test_names_count_down_in_the_order_of_ids_and_basins_are_basins() -> None:
    ids = ["cabinet_bar__minus_01", "cabinet_bar__plus_02", "sink_bar_01_bar_sinkbasin", "agent1", "loc_bar_3"]

    assert demangled([("any", tuple(ids))]) == {
        "agent1": "agent1 ",
        "cabinet_bar__minus_01": "cabinet 2",
        "cabinet_bar__plus_02": "cabinet 1",
        "loc_bar_3": "loc 1",
        "sink_bar_01_bar_sinkbasin": "sinkbasin 1",
    }


def test_expressions_are_joined_names_and_texts() -> None:
    grammar = Grammar(GOOD.grammar)

    assert set(grammar.actions) == {name.lower() for name in re.findall(r"\(:action (\w+)", DOMAIN)}


def test_at_least_twice_textworlds_steps_in_the_same_time() -> None:
    """By processor time, and by a margin that no busy machine eats up: it is some hundredfold."""
    game = KITCHEN.game("classic")
    ours, theirs = Engine(game), stock(game)
    theirs.reset()

    def cpu_s(step: Any, turns: int) -> float:
        began = time.process_time()
        for turn in range(turns):
            step(("go to fridge 1", "go to cabinet 1")[turn % 2])
        return (time.process_time() - began) / turns

    assert cpu_s(ours.step, 20) < cpu_s(theirs.step, 4) / 2
