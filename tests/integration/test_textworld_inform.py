"""TextWorld's games in our words beside the same games compiled by Inform 7 and run by jericho."""

import random
import re
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.textworld import wording
from gymfleet_envs.textworld.engine import State, begin
from gymfleet_envs.textworld.environment import TextWorld
from gymfleet_envs.textworld.files import GameFile
from gymfleet_envs.textworld.package import challenge, generate, package
from gymfleet_envs.textworld.zmachine import Interpreter, ZMachine, ZMachineOptions

pytest.importorskip("textworld")
pytest.importorskip("jericho")

STEPS: Final = 80
GAMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "simple": ("simple", {"rewards": "dense", "goal": "detailed", "test": False}),
    "coins": ("coin_collector", {"level": 105}),
    "treasure": ("treasure_hunter", {"level": 14}),
    "cooking": ("cooking", {"recipe": 2, "take": 1, "go": 6, "open": True, "cook": True, "cut": True, "drop": False,
                            "recipe_seed": 0, "split": None}),
}  # fmt: skip


@pytest.fixture(scope="module", params=GAMES)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated game as .z8, with its JSON beside it."""
    textworld = package()
    name, settings = GAMES[request.param]
    made = []

    def make(options: Any) -> Any:
        made.append(challenge(name).make(dict(settings), options))
        return made[0]

    generate(make, 11, brief=False)
    options = textworld.GameOptions()
    options.path = str(tmp_path_factory.mktemp(request.param) / "game.z8")
    try:
        textworld.generator.compile_game(made[0], options)
    except (OSError, textworld.generator.CouldNotCompileGameError) as error:
        pytest.skip(f"Inform 7 does not run here: {error}")
    return Path(options.path)


def plain(text: str) -> str:
    """Leave out what no two of them share: line breaks, the number of turns, the question at the end."""
    text = re.sub(r", in \d+ turns?\.", ".", re.sub(r"\s+", " ", text)).partition(" Would you like to RESTART")[0]
    return re.sub(r"There is ([^.]*) on the floor\.", lambda found: str(sorted(re.split(", | and ", found[1]))), text)


def test_every_answer_is_that_of_the_compiled_game(compiled: Path) -> None:
    game, interpreter, rng = GameFile(compiled.with_suffix(".json")).game, Interpreter(compiled, 1), random.Random(3)
    state, walkthrough = begin(game), list(game.walkthrough)
    assert plain(interpreter.opening).endswith(plain(wording.opening(state)))

    for turn in range(STEPS):
        command = rng.choice([action for action in state.actions if not action.startswith("eat ")])
        if rng.random() < 0.2 and walkthrough and walkthrough[0] in state.actions:
            command = walkthrough.pop(0)
        answer, state = answered(command, state)
        assert plain(answer) == plain(interpreter.act(command) or ""), f"{turn}: {command}"
        if state.end is not None:
            break


def answered(command: str, state: State) -> tuple[str, State]:
    action = state.actions[command]
    if action.rule.startswith("make/") and (reason := state.unready_meal()) is not None:
        return reason, state
    return wording.feedback(action, state, state.after(action)), state.after(action)


def test_commands_are_those_of_the_packages_own_environment(compiled: Path) -> None:
    textworld = package()
    own = textworld.envs.tw.TextWorldEnv(textworld.EnvInfos(admissible_commands=True))
    own.load(str(compiled.with_suffix(".json")))
    told, rng = own.reset(), random.Random(5)
    environment = TextWorld()
    environment.reset(GameFile(compiled.with_suffix(".json")), 0)

    for _ in range(40):
        actions = environment.admissible_actions()
        assert actions == told["admissible_commands"]
        command = rng.choice([action for action in actions if not action.startswith(("eat ", "prepare "))])
        told, points, done = own.step(command)
        outcome = environment.step(command)
        assert outcome.info["points"] == points
        if done or outcome.terminated:
            break


def test_a_game_whose_score_jericho_does_not_know_is_refused(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZMachine, "options", ZMachineOptions(game_file=compiled))

    with pytest.raises(TaskDataError, match="jericho does not know where this game keeps its score"):
        ZMachine.task_source(None)


def test_the_interpreter_is_not_left_and_takes_no_text_that_is_no_command(compiled: Path) -> None:
    interpreter, other = Interpreter(compiled, 1), Interpreter(compiled, 1)

    for text in ("save", "look. Restore", "quit", "take all then restart", "l\u00f3ok", "a" * 101, "\x00look"):
        assert interpreter.act(text) is None
    assert interpreter.act("inventory") == other.act("inventory"), "sessions have an interpreter each"
    assert (interpreter.score, interpreter.over, interpreter.knows_score) == (0.0, False, False)
