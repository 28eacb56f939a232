"""How a stage gets at what earlier ones left."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_trainer.errors import RunDirectoryError
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.stages.filter import Filter, FilterOptions

from tests.fixtures.scored import make_recipe, make_scored, make_turn

VOCAB_SIZE = 100


def context(directory: RunDirectory, *data: str, before: dict[str, str] | None = None) -> RunContext:
    """A run whose current stage reads `data`."""
    planned = PlannedStage("best", "filter", "stages.best", {"data": list(data)}, before or {})
    learner: Any = SimpleNamespace(vocab_size=VOCAB_SIZE)
    nothing: Any = None
    return RunContext(
        make_recipe(), nothing, directory, nothing, nothing, learner, nothing, nothing, nothing, nothing, nothing,
        nothing, nothing, Filter(planned, FilterOptions(data=data)),
    )  # fmt: skip


def test_data_are_episodes_of_stages_and_of_files_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    directory, other = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "other")
    mine, theirs = [make_scored("collect.t000000")], [make_scored("collect.t000000", run_id="other")]
    directory.trajectories("round2.collect", mine)
    other.trajectories("shown", theirs)

    path = str(other.episodes("shown"))
    run = context(directory, path, "collect", before={"collect": "round2.collect"})

    assert run.episodes() == [*theirs, *mine]


@pytest.mark.parametrize(
    "turn", [make_turn(prompt=(5, VOCAB_SIZE)), make_turn(response=(5, VOCAB_SIZE))], ids=["read", "written"]
)
def test_episodes_of_a_model_with_more_tokens_are_refused(tmp_path: Path, turn: Any) -> None:
    directory = RunDirectory(tmp_path)
    directory.trajectories("sound", [make_scored(turns=(make_turn(response=(5, VOCAB_SIZE - 1)),))])
    directory.trajectories("strange", [make_scored(turns=(turn,))])
    names = {"sound": "sound", "strange": "strange"}

    assert len(context(directory, "sound", before=names).episodes()) == 1
    with pytest.raises(RunDirectoryError, match="strange has token 100, which is beyond the model's 100: its episodes"):
        context(directory, "strange", before=names).episodes()


def test_episodes_of_a_model_whose_tokens_are_not_known_are_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    played = make_scored(sample=1)
    trajectory = played.trajectory.model_copy(update={"turns": (make_turn((), ()),) * 2})
    directory.trajectories("collected", [make_scored(), ScoredTrajectory(trajectory=trajectory, reward=None)])

    with pytest.raises(RunDirectoryError, match=r"collected has an episode without tokens \(run-1/.*/1\), which .* "):
        context(directory, "collected", before={"collected": "collected"}).episodes()


def test_held_out_episodes_of_another_run_are_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    measured = make_scored("after.t000000")
    trajectory = measured.trajectory.model_copy(update={"purpose": "eval"})
    directory.trajectories("after", [make_scored(), measured.model_copy(update={"trajectory": trajectory})])

    with pytest.raises(
        RunDirectoryError, match=r"after\.jsonl holds held-out episodes \(run-1/after\.t000000/0\): what"
    ):
        context(directory, str(directory.episodes("after"))).episodes()


def test_what_is_left_is_written_and_taken_once(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    run, episodes = context(directory, "x.jsonl"), [make_scored(sample=sample) for sample in range(2)]
    assert run.taken() is None

    run.leave(episodes)

    assert directory.read_records(directory.episodes("best")) == episodes
    assert run.taken() == episodes
    assert run.taken() is None
