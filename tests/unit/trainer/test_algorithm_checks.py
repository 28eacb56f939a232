"""`gymfleet check` on algorithms: those that come with gymfleet are sound, and each broken promise is found."""

import re
from pathlib import Path

import pytest
from gymfleet_kit.plugins import PluginError, described
from gymfleet_trainer.learning.algorithm_checks import examine
from gymfleet_trainer.learning.plugins import ALGORITHMS

_HEAD = '''
import random, torch
from gymfleet_trainer.learning.algorithm import Algorithm, AlgorithmOptions, Loss, Verdict
from gymfleet_trainer.learning.policy_gradient import ClippedOptions, GroupBaseline, KlOptions

class Mine(GroupBaseline[ClippedOptions]):
    """Returns as they are."""
    Options = ClippedOptions
    def advantages(self, returns, groups):
        return returns
'''
_REFRESHES = """
    class Options(ClippedOptions):
        kl: KlOptions = KlOptions(coefficient=0.1, refresh_every=1)
"""
_BROKEN = {
    "no weight": "    def advantages(self, returns, groups): return returns * 0",
    "not finite": "    def advantages(self, returns, groups): return returns / 0",
    "where all rewards are 0, the gradient is not finite": (
        "    def advantages(self, returns, groups): return (returns - returns.mean()) / returns.std()"
    ),
    "micro-batches": (
        "    def loss(self, outputs, batch):\n"
        "        return Loss(-(outputs.logprobs * batch.fields['advantages'])[batch.trained].mean())"
    ),
    "how rows are packed into micro-batches; .* what several of them begin with is computed once": (
        "    def loss(self, outputs, batch):\n"
        "        loss = super().loss(outputs, batch)\n"
        "        return Loss(loss.value * batch.num_computed / batch.num_tokens)"
    ),
    "two equal runs": "    def advantages(self, returns, groups): return returns * random.random()",
    "`state_dict`": (
        "    seen = 0\n"
        "    def after_batch(self, batch, models, reported): self.seen += 1\n"
        "    def advantages(self, returns, groups): return returns * (1 + self.seen)"
    ),
    "same rows in the same order": (
        "    def prepare(self, rows, models): return list(reversed(super().prepare(rows, models)))"
    ),
    "did not sample there": (
        "    def rows(self, group):\n"
        "        from dataclasses import replace\n"
        "        return [replace(row, loss_mask=[True] * len(row.token_ids)) for row in super().rows(group)]"
    ),
    "select: its verdict on a group changes; a run that was interrupted": (
        "    def select(self, group): return random.choice(list(Verdict))"
    ),
    "select: its verdict on a group changes": (
        "    seen = 0\n"
        "    def after_batch(self, batch, models, reported): self.seen += 1\n"
        "    def state_dict(self): return {'seen': self.seen}\n"
        "    def load_state_dict(self, state): self.seen = state['seen']\n"
        "    def select(self, group): return Verdict.DROP if self.seen else Verdict.KEEP"
    ),
    "select: it must return Verdict.KEEP, Verdict.DROP or Verdict.ANOTHER, not True": (
        "    def select(self, group): return True"
    ),
    "verdicts hold: raised IndexError: list index out of range": "    def select(self, group): return group[9]",
    "it trains: raised ZeroDivisionError: division by zero": "    def loss(self, outputs, batch): return 1 / 0",
    "no sound defaults \\(margin\\)": (
        "    class Options(ClippedOptions):\n        margin: float\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS.included())
def test_those_that_come_with_gymfleet_are_sound(name: str) -> None:
    assert examine(name) == []


@pytest.mark.parametrize("source", ["", _REFRESHES], ids=["plain", "a reference that is refreshed"])
def test_a_sound_one_of_ones_own_is_sound(tmp_path: Path, source: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(_HEAD + source)

    assert examine(str(path)) == []


@pytest.mark.parametrize(("promise", "source"), _BROKEN.items(), ids=range(len(_BROKEN)))
def test_a_broken_promise_is_one_line(tmp_path: Path, promise: str, source: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{_HEAD}\n{source}\n")

    found = examine(str(path))

    assert any(re.search(promise, line) for line in found), found
    assert not any("\n" in line for line in found)


def test_what_is_no_algorithm_is_said_so() -> None:
    with pytest.raises(PluginError, match="there is no algorithm 'grop'; known"):
        examine("grop")


def test_one_without_a_docstring_does_not_pass_for_its_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(_HEAD.replace('    """Returns as they are."""\n', ""))

    assert examine(str(path)) == ["it has no docstring: `gymfleet plugins list` shows its first line"]
    assert described("algorithm", str(path), ALGORITHMS.find(str(path))).summary == ""
