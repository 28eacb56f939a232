"""`gymfleet data augment`: what is played, what is kept, and what is refused in a line."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_cli.commands import data_augment
from gymfleet_cli.main import run
from gymfleet_client.errors import Unavailable
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import OpenSession, Session, StepResult, TaskRef
from gymfleet_kit.data import samples

Capture = pytest.CaptureFixture[str]


class House:
    """A session API with one environment, which is solved by `take key` after `go left`."""

    def __init__(self) -> None:
        self.asked: list[OpenSession] = []
        self.done: list[str] = []
        self.num_closed = 0
        self.fails_at: int | None = None

    def environment(self, name: str) -> Any:
        assert name == "maze"
        return SimpleNamespace(instructions="Find the key. ")

    def open(self, request: OpenSession) -> Session:
        self.asked.append(request)
        if self.fails_at is not None and len(self.asked) > self.fails_at:
            raise Unavailable(Problem(title="the house is closed", status=503))
        self.done = []
        task = TaskRef(env="maze", split="train", level="small", task_id=str(request.task_id), seed=request.seed)
        return Session(session_id="s", task=task, observation="A hall.", lease_s=60, expires_in_s=60)

    def step(self, session_id: str, index: int, action: str) -> StepResult:
        assert (session_id, index) == ("s", len(self.done))
        self.done.append(action)
        solved = action == "take key" and "go left" in self.done
        return StepResult(
            index=index, observation=f"{action}?", reward=float(solved), terminated=solved, truncated=False,
            score=float(solved),
        )  # fmt: skip

    def close(self, session_id: str) -> None:
        self.num_closed += 1


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    found = House()

    @contextmanager
    def session_api(url: str | None, state_dir: Path, envs: tuple[str, ...]) -> Iterator[House]:
        assert envs == ("maze",)
        yield found

    monkeypatch.setattr(data_augment, "session_api", session_api)
    return found


@pytest.fixture
def episodes(tmp_path: Path) -> Path:
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(one.model_dump_json() + "\n" for one in samples.episodes()[:2]))
    return path


def kept(path: Path) -> list[Conversation]:
    return [Conversation.model_validate_json(line) for line in path.read_text().splitlines()]


def test_what_still_solves_its_task_is_kept_as_a_conversation(house: House, episodes: Path, capsys: Capture) -> None:
    """`shortened` makes one change, of the second episode; `distractor` with `look` one of each."""
    out = episodes.with_name("out.jsonl")
    arguments = ["--augmenter", "shortened", "--augmenter", "distractor", "--option", "distractor.copies=1"]

    code = run(["data", "augment", str(episodes), str(out), *arguments, "--option", 'distractor.actions=["look"]'])

    assert code == 0
    found = kept(out)
    assert len(found) == len(house.asked) == house.num_closed
    first = next(one for one in found if one.source.endswith(", shortened"))
    assert [message.content for message in first.messages] == [
        'Find the key.\n\nAnswer with "Thought: <your reasoning> Action: <your action>".\n\nA hall.',
        "Thought: There is nothing else in this room. I go on. Action: go left",
        "go left?",
        "Thought: There is nothing else in this room. I go on. Action: take key",
    ]
    assert first.task is not None
    assert (first.task.env, first.task.task_id, first.success, first.reward) == ("maze", "1", True, 1.0)
    assert "shortened: solved the task" in capsys.readouterr().out


def test_a_mistake_is_not_learned_from_and_what_fails_is_not_kept(house: House, episodes: Path, tmp_path: Path) -> None:
    halves = tmp_path / "halves.py"
    halves.write_text(
        "from gymfleet_contracts.rollout import Move\nfrom gymfleet_kit.data.augmenter import Augmenter\n\n\n"
        "class Halves(Augmenter):\n    def augment(self, episode):\n"
        "        yield [Move(action='go left', role='mistake'), Move(action='take key')]\n"
        "        yield [Move(action='take key')]\n"
        "        yield [Move(action=a, role='mistake') for a in ('go left', 'take key')]\n"
    )
    out = tmp_path / "out.jsonl"

    code = run(["data", "augment", str(episodes), str(out), "--augmenter", str(halves), "--format", "plain"])

    assert code == 0
    assert len(house.asked) == 6
    assert [[m.content for m in one.messages if m.teaches] for one in kept(out)] == [["take key"]] * 2


def test_only_so_many_are_played(house: House, episodes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    assert run(["data", "augment", str(episodes), str(out), "--augmenter", "paraphrase", "--max-replays", "1"]) == 0
    assert len(house.asked) == 1


@pytest.mark.parametrize(
    ("content", "arguments", "code", "told"),
    [
        ("", [], 1, "holds no episode"),
        ('{"trajectory": 1}\n', [], 1, "line 1: no record of ours"),
        (None, [], 1, "line 1: it is no episode; augmenters change what was done"),
        ("episodes", ["--augmenter", "shorter"], 2, "there is no augmenter 'shorter'"),
        ("episodes", ["--option", "recovery.copies=1"], 2, "options are given for recovery, and the augmenters are"),
        ("episodes", ["--format", "yaml"], 2, "there is no format 'yaml'"),
    ],
)
def test_what_is_wrong_is_a_line_and_nothing_is_written(
    house: House, episodes: Path, capsys: Capture, content: str | None, arguments: list[str], code: int, told: str
) -> None:
    out = episodes.with_name("out.jsonl")
    if content is None:
        episodes.write_text(samples.conversations()[0].model_dump_json() + "\n")
    elif content != "episodes":
        episodes.write_text(content)

    assert run(["data", "augment", str(episodes), str(out), "--augmenter", "paraphrase", *arguments]) == code

    assert told in " ".join(capsys.readouterr().err.split())
    assert not out.exists()
    assert house.asked == []


def test_what_exists_is_replaced_only_by_force(house: House, episodes: Path, capsys: Capture) -> None:
    out = episodes.with_name("out.jsonl")
    out.write_text("mine")
    command = ["data", "augment", str(episodes), str(out), "--augmenter", "paraphrase"]

    assert run(command) == 1
    assert out.read_text() == "mine"
    assert run([*command, "--force"]) == 0
    assert len(kept(out)) == len(house.asked) > 0


def test_a_command_that_was_interrupted_goes_on(house: House, episodes: Path, capsys: Capture) -> None:
    whole, out = episodes.with_name("whole.jsonl"), episodes.with_name("out.jsonl")
    command = ["--augmenter", "paraphrase", "--augmenter", "shortened"]
    assert run(["data", "augment", str(episodes), str(whole), *command]) == 0
    told = capsys.readouterr().out
    num_changes = len(house.asked)
    house.asked.clear()
    house.fails_at = 2

    assert run(["data", "augment", str(episodes), str(out), *command]) != 0
    assert not out.exists()
    assert run(["data", "augment", str(episodes), str(out), *command, "--format", "plain"]) == 1
    assert "played other changes" in " ".join(capsys.readouterr().err.split())
    house.fails_at = None
    assert run(["data", "augment", str(episodes), str(out), *command]) == 0

    assert len(house.asked) == num_changes + 1, "only what failed is played again"
    assert out.read_text() == whole.read_text()
    assert capsys.readouterr().out.endswith(told)
    assert sorted(path.name for path in out.parent.glob("out*")) == ["out.jsonl"]


def test_where_nothing_solves_its_task_nothing_is_left(house: House, episodes: Path, capsys: Capture) -> None:
    path = episodes.with_name("stuck.jsonl")
    stuck = samples.episodes()[3].model_dump(mode="json")
    path.write_text(json.dumps(stuck) + "\n")
    out = episodes.with_name("out.jsonl")

    assert run(["data", "augment", str(path), str(out), "--augmenter", "paraphrase", "--max-replays", "2"]) == 1
    assert "none of 2 changes solves its task" in capsys.readouterr().err
    assert list(out.parent.glob("out*")) == []
