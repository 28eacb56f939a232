"""What the command line says: one line for what went wrong, readable output for the rest."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.commands import envs, fleet
from gymfleet_cli.commands.evaluate import Target, measurement, resolve
from gymfleet_cli.commands.train import clear_run
from gymfleet_cli.console import out, printable
from gymfleet_cli.main import run
from gymfleet_cli.outcome import print_outcome, success_line
from gymfleet_cli.progress import RunDisplay, describe, duration
from gymfleet_cli.report.data import Success
from gymfleet_cli.run_directory import RunFiles
from gymfleet_cli.running import lock_run
from gymfleet_contracts.run import Place, RunProgress
from gymfleet_env_server import catalogue
from gymfleet_kit.run_events import EventLog
from rich.console import Console

from tests.fixtures.run_directory import RECIPE, write_run
from tests.fixtures.scored import make_recipe
from tests.fixtures.trajectories import make_search_tree

pytestmark = pytest.mark.usefixtures("plugins_are_known")

Capture = pytest.CaptureFixture[str]

NOBODY = "http://127.0.0.1:9"
COLLECT = ["collect", "maze", "out.jsonl", "--model-url", "http://127.0.0.1:9/v1", "--model", "wise"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Not COLUMNS alone: a console that was made while it was set keeps its width.
    monkeypatch.setattr(out, "width", 160)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        pytest.param(["trian"], 2, "Did you mean 'train'?", id="misspelt command"),
        pytest.param(["train"], 2, "recipe", id="missing argument"),
        pytest.param(["train", "nowhere.toml"], 2, "no recipe at nowhere.toml", id="no recipe"),
        pytest.param(["train", "wrong.toml"], 2, "stages.reinforce.stepz", id="misspelt key"),
        pytest.param(["train", "walk.toml", "--set", "inference.dtyp=x"], 2, "inference.dtyp", id="misspelt override"),
        pytest.param(["train", "walk.toml", "--set", "stages.rl.steps=2"], 2, "it has: before, re", id="no such stage"),
        pytest.param(["train", "two.toml", "--env", "my.py"], 2, "the recipe has maze, babyai", id="one for two"),
        pytest.param(["train", "walk.toml", "--run-dir", "full"], 2, "holds no run", id="somebody's directory"),
        pytest.param(["train", "walk.toml", "--run-dir", "full", "--fresh"], 2, "holds no run", id="nor is it emptied"),
        pytest.param(["up", "--model", "nowhere"], 2, "nowhere", id="no model"),
        pytest.param(["up", "--ports-from", "70000"], 1, "70000", id="impossible ports"),
        pytest.param(["up", "--env", "a.py", "--env", "b/a.py"], 1, "share a name", id="two of one name"),
        pytest.param(["report", "nowhere"], 2, "no run directory nowhere", id="no run directory"),
        pytest.param(["report", "full"], 2, "full is not a run directory", id="another directory"),
        pytest.param(["trajectories", "list", "nowhere"], 2, "no run directory nowhere", id="no run to list"),
        pytest.param(["trajectories", "list", "run", "--stage", "rl"], 2, "this run has before, after", id="no stage"),
        pytest.param(["trajectories", "show", "run", "x/9"], 1, "no trajectory 'x/9'", id="no such episode"),
        pytest.param(["trajectories", "list", "run", "--failed", "--success"], 2, "not both", id="contradiction"),
        pytest.param(["eval", "nowhere"], 2, "nowhere", id="nothing to measure"),
        pytest.param(["eval", "full"], 2, "not inside a run directory", id="not a checkpoint"),
        pytest.param(["keys", "new"], 2, "--tenant", id="a key for nobody"),
        pytest.param(["keys", "new", "--tenant", "The Lab"], 2, "a name is 1 to 64 of", id="no name"),
        pytest.param(["keys", "new", "--tenant", "lab", "--id", "k_1"], 2, "a key's id is 1 to 32 of", id="no id"),
        pytest.param(["keys", "new", "--tenant", "lab", "--scope", "fly"], 2, "'read', 'play'", id="no scope"),
        pytest.param(["envs", "list", "--url", NOBODY], 1, f"{NOBODY} gives no answer: GET", id="nobody listens"),
        pytest.param([*COLLECT, "--url", NOBODY], 1, f"{NOBODY} gives no answer: GET", id="nobody to play with"),
    ],
)
def test_expected_failure_is_one_line(arguments: list[str], code: int, line: str, capsys: Capture) -> None:
    Path("walk.toml").write_text(RECIPE)
    Path("wrong.toml").write_text(RECIPE.replace('kind = "reinforce"', 'kind = "reinforce"\nstepz = 3'))
    Path("two.toml").write_text(f'{RECIPE}\n[[environments]]\nname = "babyai"\n')
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("years of work")
    write_run(Path("run"))

    assert run(arguments) == code

    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert line in said
    assert Path("full/thesis.txt").read_text() == "years of work"


def test_finished_run_says_so_and_succeeds(capsys: Capture) -> None:
    Path("walk.toml").write_text(RECIPE)
    write_run(Path("runs/walk"))

    assert run(["train", "walk.toml"]) == 0

    said = capsys.readouterr().out
    assert "this run is finished" in said
    before, after = (line for line in said.splitlines() if "success" in line)
    assert re.match(r"before +25\.0 % success \(95 % interval 4\.6 to 69\.9 %, 4 episodes\)", before)
    assert re.match(r"after +75\.0 % success \(95 % interval 30\.1 to 95\.4 %, 4 episodes\)", after)


def test_the_only_measurement_is_neither_before_nor_after(capsys: Capture) -> None:
    directory = write_run(Path("run"))
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    parts = {"maze": {"num_episodes": 2, "success": 0.5, "interval": [0.1, 0.9]}}
    (directory / "metrics.jsonl").write_text(json.dumps({**lines[-1], "environments": parts}) + "\n")

    print_outcome(directory)

    said = [re.split(" {2,}", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert said[:2] == [
        ["success", "75.0 % success (95 % interval 30.1 to 95.4 %, 4 episodes)"],
        ["maze", "50.0 % success (95 % interval 10.0 to 90.0 %, 2 episodes)"],
    ]


def test_the_chance_that_all_episodes_of_a_task_succeed_follows_the_interval() -> None:
    one: Any = {"num_episodes": 4, "success": 0.75, "interval": (0.3, 0.95)}

    assert success_line(Success(**one, pass_hat=(0.75, 0.5))) == (
        "75.0 % success (95 % interval 30.0 to 95.0 %, 4 episodes), pass^2 50.0 %"
    )
    assert success_line(Success(**one, pass_hat=(0.75,))) == "75.0 % success (95 % interval 30.0 to 95.0 %, 4 episodes)"


def test_episodes_of_eval_reach_the_trainer() -> None:
    found = Target(recipe=Path("walk.toml"), run_dir=Path("run"), checkpoint=None)

    few, usual = (measurement(found, make_recipe(), episodes, Path("result.json")) for episodes in (20, None))

    assert few.command[:2] == ("eval", "walk.toml")
    assert few.command == (*usual.command, "--num-tasks", "20")


@pytest.mark.parametrize("adapted", [False, True])
def test_engines_that_measure_an_adapter_have_the_model_that_the_run_began_with(adapted: bool) -> None:
    checkpoint = write_run(Path("run")) / "checkpoints" / "checkpoint-000002"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "model" / ("adapter_config.json" if adapted else "config.json")).touch()
    (checkpoint / "tokenizer.json").touch()
    (Path("run") / "recipe.toml").write_text(RECIPE)
    model = {"path": "some/model", **({"lora": {}} if adapted else {})}

    found = resolve(checkpoint, None)
    work = measurement(found, make_recipe(model=model), None, Path("result.json"))

    assert str(checkpoint) in work.command
    assert work.model == (None if adapted else str(checkpoint.resolve()))


def test_stages_with_episodes_are_in_the_order_of_the_run() -> None:
    files = RunFiles(write_run(Path("run"), finished=False))
    for name in ("round1.sft", "aside"):
        (files.path / "trajectories" / f"{name}.jsonl").touch()
    left = [{"name": name} for name in ("round1.sft", "reinforce", "before")]
    (files.path / "stages.json").write_text(json.dumps(left))

    assert files.recorded() == ["round1.sft", "before", "after", "aside"]


def test_finished_run_of_another_recipe_is_not_touched(capsys: Capture) -> None:
    Path("walk.toml").write_text(RECIPE)
    write_run(Path("runs/walk"))

    assert run(["train", "walk.toml", "--seed", "7"]) == 2

    assert "finished run of another recipe" in capsys.readouterr().err
    assert Path("runs/walk/summary.json").exists()


def test_two_commands_do_not_share_a_run(capsys: Capture) -> None:
    Path("walk.toml").write_text(RECIPE)

    with lock_run(Path("runs/walk"), Path("runs/walk/.fleet")):
        assert run(["train", "walk.toml"]) == 1

    assert "another gymfleet command works in runs/walk" in capsys.readouterr().err


def test_fresh_leaves_only_the_lock() -> None:
    directory = write_run(Path("run"))
    (directory / ".fleet" / "redis").mkdir(parents=True)
    (directory / ".fleet" / "lock").touch()
    (directory / "link").symlink_to("/")

    clear_run(directory)

    assert [str(path) for path in directory.rglob("*")] == ["run/.fleet", "run/.fleet/lock"]


def test_down_and_status_without_services(capsys: Capture) -> None:
    assert run(["down"]) == 0
    assert run(["status"]) == 0

    assert capsys.readouterr().out == "no services run\nno services run\n"


def test_trajectories_are_listed_and_filtered(capsys: Capture) -> None:
    write_run(Path("run"))

    assert run(["trajectories", "list", "run", "--stage", "after", "--failed"]) == 0

    said = capsys.readouterr().out
    assert "after.3/0" in said
    assert "after.0/0" not in said


def test_conversations_that_a_stage_left_are_passed_over(capsys: Capture) -> None:
    path = write_run(Path("run")) / "trajectories/kept.jsonl"
    (episode,) = [one for one in RunFiles(Path("run")).trajectories("after") if one.trajectory.group_id == "after.3"]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_text(f"{json.dumps({'messages': messages})}\n{episode.model_dump_json()}\n")

    assert run(["trajectories", "list", "run", "--stage", "kept"]) == 0

    assert "after.3/0" in capsys.readouterr().out


def test_episode_is_shown_turn_by_turn_without_control_characters(capsys: Capture) -> None:
    write_run(Path("run"), hostile="[bold]look[/bold] \x1b]0;owned\x07 here")

    assert run(["trajectories", "show", "run", "1/0", "--stage", "after"]) == 0

    said = capsys.readouterr().out
    assert "turn 2" in said
    assert "[bold]look[/bold]" in said, "text of an episode is no markup"
    assert "\x1b" not in said
    assert "the environment did not understand the action" in said
    assert "reward 1 = goal 1" in said


def test_an_episode_of_a_game_says_whose_it_is(capsys: Capture) -> None:
    write_run(Path("run"))
    path = Path("run/trajectories/after.jsonl")
    path.write_text(path.read_text().replace('"group_id":', '"seat":"second","group_id":'))

    assert run(["trajectories", "show", "run", "1/0", "--stage", "after"]) == 0
    assert "maze tiny.test.1 as second" in capsys.readouterr().out
    assert run(["report", "run"]) == 0
    assert "as second" in Path("run/report.html").read_text()


def test_events_are_told_from_any_on(capsys: Capture) -> None:
    write_run(Path("run"))
    log = EventLog(Path("run"))
    log.append("run_started", data={"run_id": "r-1"})
    log.append("rl_step", stage="reinforce", data={"loss": 0.123456, "words": "[bold]\x1b[31m"})
    log.append("done", data={"message": "all is done"})

    assert run(["events", "run", "--after", "1", "--follow"]) == 0
    said = capsys.readouterr().out
    assert run(["events", "run", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [line.split()[0] for line in said.splitlines()] == ["2", "3"]
    assert "rl_step reinforce loss=0.1235 words=[bold][31m" in said
    assert [event["kind"] for event in told] == ["run_started", "rl_step", "done"]
    assert run(["events", "nowhere"]) == 2


def test_an_episode_is_found_by_the_events(capsys: Capture) -> None:
    write_run(Path("run"))
    path = Path("run/trajectories/after.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    name = json.loads(lines[1])["trajectory"]["trajectory_id"]
    place = Place(file="trajectories/after.jsonl", offset=len(lines[0]), length=len(lines[1]))
    EventLog(Path("run")).append("episodes", stage="after", places={name: place})
    path.write_bytes(b"#" * (len(lines[0]) - 1) + b"\n" + lines[1])  # what stands before is not read

    assert run(["trajectories", "show", "run", name]) == 0
    assert name.partition("/")[2] in capsys.readouterr().out
    assert run(["trajectories", "show", "run", name, "--stage", "before"]) == 1


def test_a_search_is_drawn_with_what_it_rejected(capsys: Capture) -> None:
    trees = write_run(Path("run")) / "trees"
    trees.mkdir()
    first, second = make_search_tree("reinforce.s000001-g00"), make_search_tree("reinforce.s000002-g00")
    hostile = second.nodes[1].model_copy(update={"action": "[bold]go\x1b[31m"})
    second = second.model_copy(update={"nodes": (second.nodes[0], hostile, second.nodes[2]), "num_left_out": 7})
    lines = [one.model_dump_json() for one in (first, second)]
    (trees / "reinforce.jsonl").write_text("\n".join(lines) + "\n")

    assert run(["trajectories", "tree", "run"]) == 0
    drawn = capsys.readouterr().out
    assert run(["trajectories", "tree", "run", "s000002-g00", "--stage", "reinforce"]) == 0
    other = capsys.readouterr().out
    assert run(["trajectories", "tree", "run", "g09"]) == 1
    assert run(["trajectories", "tree", "run", "--stage", "rl"]) == 2

    assert [line.rstrip() for line in drawn.splitlines()] == [
        "run/reinforce.s000001-g00",
        "textcraft easy.train.0 · ./branch.py · attempt 1",
        "0  score 0 · visits 2",
        "├── 1 go left  score 0 · value 0.25 · visits 2",
        "└── 1-0.1 open door  score 1 · value 1 · visits 2 · terminated · sample 0 · selected",
        "spent 2 steps, 2 replies, 40 tokens, 0 evaluations, 1.5 s",
    ]
    assert "1 [bold]go[31m  score" in other, "an action is no markup"
    assert "and 7 nodes of which there is no record" in other
    said = capsys.readouterr().err
    assert "no search of a group 'g09'" in said
    assert "this run has searches of reinforce" in said


def test_report_is_written(capsys: Capture) -> None:
    write_run(Path("run"))

    assert run(["report", "run"]) == 0

    assert "run/report.html" in capsys.readouterr().out
    assert Path("run/report.html").stat().st_size > 5000


def test_printable_keeps_lines_and_letters() -> None:
    assert printable("é\n\t漢\x1b[31m\x9b\r\x00") == "é\n\t漢[31m"


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "7 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_progress_in_one_line() -> None:
    progress = RunProgress(
        run_id="r",
        phase="reinforce",
        step=3,
        total=10,
        unit="steps",
        rate=0.05,
        eta_s=140,
        metrics={"success": 0.5},
        message="2 of 4 groups",
    )

    line = "reinforce · 3/10 steps · 20 s each · 2 min 20 s left · success 0.5 · 2 of 4 groups"
    assert describe(progress) == line


def test_plain_display_speaks_when_the_phase_changes() -> None:
    told = StringIO()
    moments = iter(
        [None]
        + [
            RunProgress(run_id="r", phase=phase, step=step, updated_at=4e9)
            for phase, step in (("starting", 0), ("sft", 1), ("sft", 2), ("round2.rl", 3))
        ]
        + [RunProgress(run_id="r", phase="old", updated_at=1.0)]
    )
    display = RunDisplay(Console(file=told, width=100), lambda: next(moments))

    with display:
        for _ in range(6):
            display.refresh()

    assert [line.partition("] ")[2] for line in told.getvalue().splitlines()] == [
        "start",
        "sft",
        "round2.rl",
    ]


def test_progress_of_a_newer_trainer_is_still_read(tmp_path: Path) -> None:
    fields = {"run_id": "r", "phase": "reinforce", "step": 1, "weather": "fine"}

    assert RunProgress.model_validate_json(json.dumps(fields)).step == 1


def test_the_command_line_knows_every_environment_of_the_catalogue() -> None:
    assert envs.ENVIRONMENTS == catalogue.ENVIRONMENTS
    assert set(fleet.DEFAULT_ENVIRONMENTS) < set(catalogue.ENVIRONMENTS)
