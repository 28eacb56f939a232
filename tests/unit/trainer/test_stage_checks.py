"""The conformance suite of stages: ours keep every promise, and each promise that is broken is named."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gymfleet_kit.plugins import PluginError
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.plan import STAGES
from gymfleet_trainer.stage_checks import examine

HEAD = '''
import random
from gymfleet_contracts.stages import StageFacts
from gymfleet_trainer.learning.options import SupervisedOptions
from gymfleet_trainer.stage import Plays, Stage, StageOptions


class Mine(Stage):
    """One of somebody's own."""
'''

TRAINS = '''
class MineOptions(SupervisedOptions):
    data: str


class Trains(Stage):
    """Imitates."""

    Options = MineOptions
    facts = StageFacts(reads=True, leaves=("model",))
    small = {"epochs": 3}

    async def run(self, run):
        await run.worker.run(run.learner.begin, self.name, self.options)
        sequences = await run.worker.run(run.learner.sequences, run.episodes())
        for epoch in range(FIRST, 3):
            await run.worker.run(run.learner.sft_epoch, sequences, epoch)
            DONE
            run.state.age += 1
            await run.checkpoint()


STAGE = Trains
'''


@pytest.mark.parametrize("name", STAGES.included())
def test_ours_keep_what_every_stage_promises(name: str) -> None:
    assert examine(name) == []


def test_a_killed_rehearsal_does_not_disturb_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Checkpoints.commit

    def slow(self: Checkpoints, finish: Callable[[], object]) -> Path:
        time.sleep(0.3)  # so that it would still be under way when the next one begins
        return commit(self, finish)

    monkeypatch.setattr(Checkpoints, "commit", slow)
    assert examine("reinforce") == []


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        pytest.param(
            """
    facts = StageFacts(leaves=("episodes",))

    async def run(self, run):
        pass
""",
            ["facts.leaves names episodes, and it leaves none: call run.leave"],
            id="it leaves nothing",
        ),
        pytest.param(
            """
    def plays(self):
        return {"": Plays(2)}

    async def run(self, run):
        run.leave(await run.play())
""",
            ["facts.leaves does not name episodes, and it leaves some: say so in facts.leaves"],
            id="it leaves what it does not say",
        ),
        pytest.param(
            """
    facts = StageFacts(leaves=("episodes",))

    def plays(self):
        return {"held-out": Plays(2)}

    async def run(self, run):
        run.leave(await run.play("held-out"))
""",
            ["it leaves held-out episodes: later stages would train on what is measured"],
            id="it leaves held-out episodes",
        ),
        pytest.param(
            """
    def plays(self):
        return {"": Plays(random.randint(1, 1_000_000_000), purpose="collect")}

    async def run(self, run):
        pass
""",
            ["plays() answers differently each time: it may depend on the options alone"],
            id="what it plays is not known beforehand",
        ),
        pytest.param(
            """
    def plays(self):
        return {"a.b": Plays(1)}

    async def run(self, run):
        pass
""",
            ["plays(): 'a.b' is no label: use a-z, 0-9, _ and -"],
            id="a label with a dot",
        ),
        pytest.param(
            """
    def plays(self):
        return {"": Plays(10**6, purpose="collect")}

    async def run(self, run):
        await run.collector.ask([run.planner.play("tried", self.plays()[""], random.randrange(10**6), 0, 1)])
""",
            [
                "begun again, it asks for other groups: those of an interrupted run would be lost",
            ],
            id="it asks for others each time",
        ),
        pytest.param(
            """
    async def run(self, run):
        raise OSError("the disk\\nis full")
""",
            [
                "it leaves what it says: raised OSError: the disk is full",
                "begun again it asks for the same: raised OSError: the disk is full",
            ],
            id="it raises",
        ),
        pytest.param(
            """
    class Options(StageOptions):
        tasks: int

    async def run(self, run):
        pass
""",
            ["`small` is to hold options with which it can be tried: stages.tried.tasks: Field required"],
            id="options without defaults",
        ),
        pytest.param(
            """
    facts = StageFacts(reads=True)

    async def run(self, run):
        pass
""",
            ["facts.reads: its Options need a field `data`, which names the episodes"],
            id="it reads, and cannot be told what",
        ),
    ],
)
def test_a_broken_promise_is_named(tmp_path: Path, body: str, faults: list[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + body)

    assert examine(str(path)) == faults


@pytest.mark.parametrize(
    ("first", "done", "faults"),
    [
        pytest.param("run.state.done", "run.state.done = epoch + 1", [], id="sound"),
        pytest.param(
            "0", "pass",
            [
                (
                    "killed in the middle and resumed, it ends with other weights: count what is done in "
                    "run.state.done, together with what it changes"
                ),
                "run once more at its end, it trains again: what is done is to be counted in run.state.done",
            ],
            id="what is done is not counted",
        ),
    ],
)  # fmt: skip
def test_one_that_trains_goes_on_where_it_was_killed(tmp_path: Path, first: str, done: str, faults: list[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD.partition("class Mine")[0] + TRAINS.replace("FIRST", first).replace("DONE", done))

    assert examine(str(path)) == faults


def test_one_without_a_docstring_does_not_pass_for_its_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        HEAD.replace('    """One of somebody\'s own."""\n', "") + "\n    async def run(self, run):\n        pass\n"
    )

    assert "it has no docstring: `gymfleet plugins list` shows its first line" in examine(str(path))


def test_one_that_cannot_be_used_is_no_broken_promise(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="there is no file"):
        examine(str(tmp_path / "nothing.py"))
