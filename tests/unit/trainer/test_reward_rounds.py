"""Rounds of a reward model: what of earlier ones is learned from again, what stays held out, what it begins as."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.stages import PlannedStage
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.chat.transcripts import Transcript
from gymfleet_trainer.errors import NothingLeft, RunDirectoryError
from gymfleet_trainer.learning.reward_data import Example, Pair, Round, held_out_of, replayed
from gymfleet_trainer.learning.reward_update import LABELS
from gymfleet_trainer.run.plan import STAGES, stages_of
from gymfleet_trainer.stage import Stage
from gymfleet_trainer.stage_checks import _Played, _Rehearsal, _small_model
from gymfleet_trainer.stages._reward_model import Divided
from safetensors.torch import load_file, save_file

from tests.fixtures.scored import make_recipe, make_scored, make_turn

KINDS = ("bradley_terry", "process_reward", "generative_judge")


def example(name: str, sample: int = 0, *, success: bool = True, nodes: tuple[str, ...] = ("", "")) -> Example:
    turns = tuple(make_turn().model_copy(update={"node": node or None}) for node in nodes)
    scored = make_scored(name, sample, turns=turns, success=success)
    return Example(scored, Transcript([1, 2, 3, 4], (1, 3)), float(success))


def round_of(with_pairs: str, without: str = "") -> Round:
    """A round with a task for each letter."""
    tasks = {task: [example(f"{task}.g"), example(f"{task}.b", success=False)] for task in with_pairs + without}
    return Round(tasks, {task: [Pair(*found)] if task in with_pairs else [] for task, found in tasks.items()})


# --- what is drawn


def test_what_is_replayed_is_drawn_by_names_and_seed() -> None:
    found = [example(f"collect.t{number:06d}") for number in range(40)]

    drawn = replayed(found, [], 10, "0/loop2.rm")

    assert len({one.name for one in drawn}) == 10
    assert [one.name for one in replayed(found[::-1], [], 10, "0/loop2.rm")] == [one.name for one in drawn]
    for seed in ("1/loop2.rm", "0/loop3.rm"):
        assert {one.name for one in replayed(found, [], 10, seed)} != {one.name for one in drawn}
    assert {one.name for one in replayed(found, [], 15, "0/loop2.rm")} > {one.name for one in drawn}
    assert len(replayed(found, [], 50, "0/loop2.rm")) == 40


def test_what_all_rounds_share_is_replayed_once_and_not_where_it_is_learned_from_anyway() -> None:
    one, other, third = (Pair(example(f"{name}.g"), example(f"{name}.b")) for name in "abc")

    drawn = replayed([one, other, third, other], [one], 9, "seed")

    assert sorted(pair.name for pair in drawn) == sorted([other.name, third.name])


# --- what is held out


def test_a_task_that_was_held_out_or_trained_on_stays_so() -> None:
    first, second, new = round_of("abcdefgh"), round_of("cdefghij"), round_of("ghijklmn")
    before = held_out_of([first], 0.25)

    assert len(before) == 2
    assert held_out_of([first, second], 0.25) == before
    assert held_out_of([second], 0.25) != before, "alone it would hold out others"
    out = held_out_of([first, second, new], 0.25)
    assert out > before
    assert len(out & set("ghijklmn")) == 2, "of this round too a quarter"
    assert not out & set("abcdefgh") - before


def test_a_task_that_has_pairs_only_later_stays_where_it_is() -> None:
    first, second = round_of("abcd", "efgh"), round_of("efgh", "abcd")

    assert held_out_of([first, second], 0.5) == held_out_of([first], 0.5)


# --- the options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("option", "given"), [("replay", 0.5), ("start_from", "previous"), ("if_nothing", "go_on")])
def test_without_rounds_there_are_no_earlier_ones(kind: str, option: str, given: Any) -> None:
    table = {"kind": kind, "name": "rm", "data": "collect", option: given}

    with pytest.raises(RecipeError, match=rf"^stages\.rm\.{option}: there are no earlier rounds: put the stage, and"):
        stages_of(make_recipe(stages=[{"kind": "collect"}, table]))
    stages_of(make_recipe(stages=[{"repeat": 1, "stages": [{"kind": "collect"}, table]}]))


def test_labels_of_what_is_replayed_count_all_forks_of_its_round() -> None:
    again, left = example("old.a", nodes=("a", "aa")), example("old.a", 1, success=False, nodes=("a", "ab"))
    own = example("new.a", nodes=("a", "aa"))
    planned = PlannedStage("loop2.rm", "process_reward", "stages.loop.stages.rm", {"data": "given"}, {"given": "given"})
    found = STAGES.find("process_reward")
    stage: Any = found(planned, found.Options.model_validate({"data": "given", "labels": "soft"}))

    rows = stage.rows(None, Divided([own], [], [], [], earlier=[again, left], replayed=[again]))

    assert [[float(row.fields[LABELS][end]) for end in (1, 3)] for row in rows] == [[1.0, 1.0], [0.5, 1.0]]


# --- a second round


@dataclass(frozen=True)
class _SecondRound(_Rehearsal):
    """The second round of a stage, with what the first has left."""

    options: tuple[tuple[str, Any], ...] = ()
    follows: bool = True
    """Without it the round is the first one."""

    def stage(self) -> Stage[Any]:
        given = {"data": "given", **self.kind.small, **dict(self.options)}
        table = "stages.loop.stages.tried"
        first = PlannedStage("loop1.tried", self.reference, table, given, {"given": "loop1.given"})
        planned = PlannedStage("loop2.tried", self.reference, table, given, {"given": "given"}, (first,) * self.follows)
        stage = self.kind(planned, self.kind.Options.model_validate(given))
        stage.check(make_recipe(), planned)
        return stage

    def second(self, name: str, **killed: Any) -> _Played:
        first, own = self.directory / "first", self.directory / name
        if not own.exists():
            (own / "trajectories").mkdir(parents=True)
            left = (first / "trajectories" / "given.jsonl").read_text(encoding="utf-8").splitlines()
            earlier = [line.replace("given.t", "loop1.given.t") for line in left]
            earlier[::2] = [line.replace('"a reply"', '"a word"') for line in earlier[::2]]
            (own / "trajectories" / "loop1.given.jsonl").write_text("\n".join(earlier) + "\n")
            shutil.copytree(first / "models" / "tried", own / "models" / "loop1.tried")
        return self.play(name, **killed)

    def left(self, name: str) -> dict[str, torch.Tensor]:
        return dict(load_file(self.directory / name / "models" / "loop2.tried" / "model.safetensors"))

    def told(self, name: str, kind: str) -> list[dict[str, Any]]:
        lines = (self.directory / name / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def counts(self, name: str) -> dict[str, int]:
        last = max((self.directory / name / "checkpoints").glob("checkpoint-*"))
        return dict(json.loads((last / "state.json").read_text())["counts"])


@pytest.fixture(scope="module", params=KINDS)
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A kind, and a directory with its first round."""
    directory = tmp_path_factory.mktemp(request.param)
    _small_model(directory / "model")
    _Rehearsal(STAGES.find(request.param), request.param, directory / "model", directory).play("first")
    weights = directory / "first" / "models" / "tried" / "model.safetensors"
    state = load_file(weights)
    state[_told_by(state)] += 0.5
    save_file(state, weights, metadata={"format": "pt"})
    return request.param, directory


def _told_by(state: dict[str, torch.Tensor]) -> str:
    """The weights by which the model of a round is told from one that begins anew."""
    return "score.weight" if "score.weight" in state else "model.norm.weight"


def second(first: tuple[str, Path], **options: Any) -> _SecondRound:
    kind, directory = first
    return _SecondRound(STAGES.find(kind), kind, directory / "model", directory, tuple(options.items()))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_replay_adds_what_earlier_rounds_learned_from_and_counts_it(first: tuple[str, Path]) -> None:
    plain, half, all_ = second(first), second(first, replay=0.5), second(first, replay=9.0)

    for name, tried in (("plain", plain), ("half", half), ("all", all_)):
        tried.second(name)

    (own,) = plain.told("plain", "reward_data")
    number = own["num_pairs" if first[0] == "bradley_terry" else "num_episodes"]
    assert [tried.told(name, "reward_data")[0]["num_replayed"] for tried, name in (
        (plain, "plain"), (half, "half"), (all_, "all"))] == [0, round(0.5 * number), number]  # fmt: skip
    assert half.counts("half")["replayed.loop2.tried"] == round(0.5 * number)
    assert "replayed.loop2.tried" not in plain.counts("plain")
    tokens = [tried.told(name, "reward_epoch")[0]["num_tokens"] for tried, name in ((plain, "plain"), (all_, "all"))]
    assert tokens[1] > tokens[0]
    assert not same(plain.left("plain"), half.left("half"))


def test_nothing_of_a_task_that_is_held_out_is_replayed(
    first: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = second(first, replay=9.0)
    seen: list[Divided] = []
    rows = tried.kind.rows  # type: ignore[attr-defined]

    def seeing(stage: Any, run: Any, divided: Divided) -> Any:
        seen.append(divided)
        return rows(stage, run, divided)

    monkeypatch.setattr(tried.kind, "rows", seeing)

    tried.second("held-out")

    (divided,) = seen
    again = [*divided.replayed, *(one for pair in divided.replayed_pairs for one in pair)]
    assert again
    assert {one.scored.trajectory.group_id.partition(".")[0] for one in again} == {"loop1"}
    assert not {task(one.scored) for one in again} & {task(one.scored) for one in divided.held_out}


def task(scored: ScoredTrajectory) -> str:
    return scored.trajectory.task.task_id


def test_it_begins_as_the_round_before_or_as_the_policy(first: tuple[str, Path]) -> None:
    frozen = {"learning_rate": 1e-12}
    anew, previous = second(first, optimizer=frozen), second(first, optimizer=frozen, start_from="previous")
    before = load_file(first[1] / "first" / "models" / "tried" / "model.safetensors")

    anew.second("anew")
    previous.second("previous")

    there = previous.left("previous")
    assert there.keys() == before.keys()
    assert all(torch.allclose(there[name], before[name], atol=1e-6) for name in there)
    begun, changed = anew.left("anew")[_told_by(before)], before[_told_by(before)]
    assert float((begun - changed).abs().max()) > 0.4, "it was changed by hand"


def test_a_round_before_that_is_gone_is_one_line(first: tuple[str, Path]) -> None:
    tried = second(first, start_from="previous")
    with pytest.raises(
        RunDirectoryError, match=r"^stages\.loop2\.tried\.start_from: .*loop1\.tried is no model: "
    ) as told:
        _Gone(tried.kind, tried.reference, tried.model, tried.directory, tried.options).second("gone")
    assert "\n" not in str(told.value)


class _Gone(_SecondRound):
    def play(self, name: str, **killed: Any) -> _Played:
        shutil.rmtree(self.directory / name / "models" / "loop1.tried")
        return super().play(name, **killed)


NOTHING: dict[str, dict[str, Any]] = {
    "bradley_terry": {"min_gap": 9.0},
    "process_reward": {"labels": "soft"},
    "generative_judge": {"components": ["judge_pairs"], "min_gap": 9.0},
}
"""Options with which no episode is left to learn from."""


def test_a_round_without_anything_to_learn_from_keeps_the_model_before_if_the_recipe_says_so(
    first: tuple[str, Path],
) -> None:
    tried = second(first, if_nothing="go_on", **NOTHING[first[0]])

    tried.second("nothing")

    before, left = (first[1] / "nothing" / "models" / f"loop{number}.tried" for number in (1, 2))
    assert same(tried.left("nothing"), dict(load_file(before / "model.safetensors")))
    assert {path.name for path in left.iterdir()} == {path.name for path in before.iterdir()}
    assert [line["stage"] for line in tried.told("nothing", "nothing_left")] == ["loop2.tried"]
    assert tried.counts("nothing")["nothing_left.loop2.tried"] == 1
    assert tried.told("nothing", "reward_epoch") == []


@pytest.mark.parametrize(("if_nothing", "follows"), [("end", True), ("go_on", False)])
def test_without_a_model_before_or_by_default_such_a_round_ends_the_run(
    first: tuple[str, Path], if_nothing: str, *, follows: bool
) -> None:
    tried = replace(second(first, if_nothing=if_nothing, **NOTHING[first[0]]), follows=follows)

    with pytest.raises(NothingLeft, match=r"^stages\.loop\.stages\.tried: "):
        tried.second(f"ends-{if_nothing}")


@pytest.mark.parametrize("kill_at", [1, 2])
def test_killed_in_the_middle_of_a_later_round_it_ends_as_if_nothing_had_been(
    first: tuple[str, Path], kill_at: int
) -> None:
    tried = second(first, replay=0.5, start_from="previous")
    tried.second(f"undisturbed{kill_at}")

    killed = tried.second(f"killed{kill_at}", kill_at=kill_at)
    assert killed.died
    tried.second(f"killed{kill_at}", again=killed)

    assert same(tried.left(f"undisturbed{kill_at}"), tried.left(f"killed{kill_at}"))
    assert (
        tried.counts(f"undisturbed{kill_at}")["replayed.loop2.tried"]
        == (tried.counts(f"killed{kill_at}")["replayed.loop2.tried"])
    )
