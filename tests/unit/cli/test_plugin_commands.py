"""`gymfleet plugins` and `gymfleet check`, with the services themselves."""

from pathlib import Path

import pytest
from gymfleet_cli import plugins
from gymfleet_cli.commands import plugins as plugins_command
from gymfleet_cli.console import CliError, UsageProblem
from gymfleet_cli.main import run
from gymfleet_cli.plugins import KINDS, kind_of
from rich.console import Console

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(plugins_command, "out", Console(width=200, highlight=False))


def test_all_plug_ins_are_listed_with_what_they_are(capsys: Capture) -> None:
    assert run(["plugins", "list"]) == 0

    shown = capsys.readouterr().out
    known = (("environment", "babyai"), ("strategy", "expert"), ("format", "react"), ("component", "goal"),
             ("algorithm", "ppo"), ("stage", "reinforce"), ("backend", "embedded"),
             ("converter", "sharegpt"), ("filter", "duplicates"),
             ("augmenter", "shortened"))  # fmt: skip
    for kind, name in known:
        assert any(kind in line and f" {name} " in line and len(line.split()) > 6 for line in shown.splitlines()), name
    assert set(KINDS) <= set(shown.split())


def test_a_service_that_is_not_installed_is_said_so(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(program: str) -> str:
        raise CliError(f"{program} is not installed")

    monkeypatch.setattr(plugins, "console_script", gone)

    assert run(["plugins", "list", "algorithm"]) == 0

    assert "not here: gymfleet-trainer is not installed" in " ".join(capsys.readouterr().err.split())


def test_options_are_shown_with_defaults_and_meanings(capsys: Capture) -> None:
    assert run(["plugins", "show", "algorithm", "ppo"]) == 0

    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    found = {row[0]: row[1:] for row in rows if len(row) == 4}
    assert found["clip_low"][:2] == ["number", "0.2"]
    assert found["dual_clip"][:2] == ["number or null", "null"]
    assert found["kl.estimator"][0].startswith('"k1", "k2"')
    assert found["critic.gamma"][1] == "1.0"
    assert all(what for option, (what, _, _) in found.items() if option)


def test_a_stage_says_that_further_keys_are_its_algorithms(capsys: Capture) -> None:
    assert run(["plugins", "show", "stage", "reinforce"]) == 0
    reinforce = capsys.readouterr().out
    assert run(["plugins", "show", "stage", "sft"]) == 0

    assert "│ optimizer.learning_rate" in reinforce
    assert reinforce.endswith("further keys are options of what algorithm names\n")
    assert "further keys" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plugins", "show", "algorithm", "grop"], "there is no algorithm 'grop'; known: "),
        (["plugins", "list", "algorithms"], "'algorithms' is no kind of plug-in; known: environment, strategy, format"),
        (["check", "--kind", "thing", "x.py"], "--kind 'thing': known are environment, strategy, format"),
        (["check", "nowhere.py"], "there is no file nowhere.py"),
        (["check", "--kind", "algorithm", "nowhere.py"], "there is no file nowhere.py"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], told: str, capsys: Capture) -> None:
    assert run(arguments) == 2

    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("from gymfleet_trainer.learning.algorithm import Algorithm", "algorithm"),
        ("import gymfleet_trainer.learning.policy_gradient as p", "algorithm"),
        ("from gymfleet_trainer.stage import Stage", "stage"),
        ("from gymfleet_rollout.backend import InferenceBackend", "backend"),
        (
            "from gymfleet_trainer.learning.options import SupervisedOptions\nfrom gymfleet_trainer.stage import Stage",
            "stage",
        ),
        ("from gymfleet_rollout.strategy import PlayContext, Strategy", "strategy"),
        (
            "from gymfleet_contracts.conversation import Message\nfrom gymfleet_kit.data.converter import Converter",
            "converter",
        ),
        (
            "from gymfleet_contracts.conversation import Record\nfrom gymfleet_kit.data.filter import Filter",
            "filter",
        ),
        (
            "from gymfleet_contracts.rollout import Move\nfrom gymfleet_kit.data.augmenter import Augmenter",
            "augmenter",
        ),
        ("from gymfleet_contracts.reply_format import ReplyFormat", "format"),
        (
            "from gymfleet_contracts.trajectory import Trajectory\nfrom gymfleet_reward.component import Component",
            "component",
        ),
        ("def compute_score(solution_str, ground_truth):\n    return 1.0", "component"),
        (
            "from gymfleet_envs.environment import Environment\nfrom gymfleet_contracts.session import Task",
            "environment",
        ),
    ],
)
def test_the_kind_is_told_by_what_is_imported(tmp_path: Path, source: str, kind: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)

    assert kind_of(str(path)) == kind


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import os", "imports the base class of no kind: give --kind with one of"),
        ("import gymfleet_envs.environment, gymfleet_trainer.learning", "of environment and of algorithm: give --kind"),
        ("import gymfleet_rollout.strategy, gymfleet_trainer.stage", "of strategy and of stage: give --kind"),
        ("def", "is no Python source: "),
        ("\0", "is no Python source: "),
    ],
)
def test_a_kind_that_cannot_be_told_is_asked_for(tmp_path: Path, source: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)

    with pytest.raises(UsageProblem, match=told):
        kind_of(str(path))


def test_a_backend_is_made_and_checked(tmp_path: Path, capsys: Capture) -> None:
    assert run(["new", "backend", "slow_one", "--in", str(tmp_path)]) == 0
    path = tmp_path / "slow_one.py"

    assert run(["check", str(path)]) == 0
    path.write_text(path.read_text().replace("load_model(self.model, file)", "del file"))
    assert run(["check", str(path)]) == 1

    shown = " ".join(capsys.readouterr().out.split())
    assert "slow_one.py: a sound backend" in shown
    assert "- with new weights its log-probabilities differ from the model's by" in shown


def test_an_algorithm_is_checked(tmp_path: Path, capsys: Capture) -> None:
    run(["new", "algorithm", "mine", "--in", str(tmp_path)])
    path = tmp_path / "mine.py"

    assert run(["check", str(path)]) == 0
    path.write_text(path.read_text().replace("returns - self", "0 * returns - self"))
    path.write_text(path.read_text().replace("self.options.margin", "self.options.margin * 0"))
    assert run(["check", str(path)]) == 1

    shown = " ".join(capsys.readouterr().out.split())
    assert "mine.py: a sound algorithm" in shown
    assert "- an update changes no weight" in shown
    assert shown.endswith("no sound algorithm")


def test_a_converter_is_checked(tmp_path: Path, capsys: Capture) -> None:
    run(["new", "converter", "mine", "--in", str(tmp_path)])
    path = tmp_path / "mine.py"

    assert run(["check", str(path)]) == 0
    path.write_text(path.read_text().replace('field(record, "mark", float)', 'record["mark"]'))
    assert run(["check", str(path)]) == 1

    shown = " ".join(capsys.readouterr().out.split())
    assert "mine.py: a sound converter" in shown
    assert "- examples[0] with None as mark: the converter mine failed: TypeError: " in shown


def test_a_filter_is_checked(tmp_path: Path, capsys: Capture) -> None:
    run(["new", "filter", "mine", "--in", str(tmp_path)])
    path = tmp_path / "mine.py"

    assert run(["check", str(path)]) == 0
    path.write_text(path.read_text().replace("return not any(", "return sum("))
    assert run(["check", str(path)]) == 1

    shown = " ".join(capsys.readouterr().out.split())
    assert "mine.py: a sound filter" in shown
    assert "- the filter mine: keep returns 0 instead of True or False" in shown


def test_an_augmenter_is_checked(tmp_path: Path, capsys: Capture) -> None:
    run(["new", "augmenter", "mine", "--in", str(tmp_path)])
    path = tmp_path / "mine.py"

    assert run(["check", str(path)]) == 0
    path.write_text(path.read_text().replace("yield shorter", "yield [move.action for move in shorter]"))
    assert run(["check", str(path)]) == 1

    shown = " ".join(capsys.readouterr().out.split())
    assert "mine.py: a sound augmenter" in shown
    assert "- the augmenter mine, for sample/sample.t000000/0, yields a list with str among the moves" in shown


def test_an_environment_is_served_and_checked(tmp_path: Path, capsys: Capture) -> None:
    run(["new", "environment", "mine", "--in", str(tmp_path)])
    path = tmp_path / "mine.py"

    assert run(["check", str(path)]) == 0
    path.write_text(path.read_text().replace("self._task = task", "import random; self._task = task").replace(
        'return f"The number lies between 1', 'return f"{random.random()} The number lies between 1'
    ))  # fmt: skip
    assert run(["check", str(path)]) == 1

    assert "mine.py: a sound environment" in " ".join(capsys.readouterr().out.split())
