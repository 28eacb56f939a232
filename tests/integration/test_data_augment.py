"""`gymfleet data augment` as its page shows it: demonstrations of a real environment, played again."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from gymfleet_cli.gateway import session_api
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data import samples

from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PAGE = (ROOT / "docs/data-augment.md").read_text(encoding="utf-8")


def demonstrated(path: Path, num_tasks: int) -> list[int]:
    """Have the maze's expert play, write its episodes, and return their numbers of turns."""
    (given, *_) = samples.episodes()
    lengths = []
    with session_api(None, path.parent, ("maze",)) as client, path.open("w") as file:
        for number in range(num_tasks):
            session = client.open(OpenSession(env="maze", task_index=number))
            turns, observation, done = [], session.observation, False
            while not done:
                move = client.expert(session.session_id)
                turn = given.trajectory.turns[0].model_copy(
                    update={"observation": observation, "thought": move.thought, "action": move.action}
                )
                turns.append(turn)
                result = client.step(session.session_id, len(turns) - 1, move.action)
                observation, done = result.observation, result.terminated or result.truncated
            client.close(session.session_id)
            trajectory = given.trajectory.model_copy(update={"task": session.task, "turns": tuple(turns)})
            file.write(ScoredTrajectory(trajectory=trajectory, reward=None).model_dump_json() + "\n")
            lengths.append(len(turns))
    return lengths


def test_the_command_of_the_page_makes_demonstrations_that_solve_their_tasks(tmp_path: Path) -> None:
    lengths = demonstrated(tmp_path / "demonstrations.jsonl", 4)
    (block,) = re.findall(r"```sh\ngymfleet (.*?)\n```", PAGE)
    gymfleet = Path(sys.executable).with_name("gymfleet")

    done = subprocess.run(
        [gymfleet, *shlex.split(block)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    made = [
        Conversation.model_validate_json(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()
    ]  # fmt: skip
    paraphrased = [one for one in made if one.source.endswith(", paraphrase")]
    assert paraphrased, "words alone spoil nothing"
    assert {len(one.messages) // 2 for one in paraphrased} <= set(lengths)
    assert all(one.success and one.reward == 1.0 and one.task is not None for one in made)
    for one in made:
        if one.source.endswith(", recovery"):
            assert sum(not message.teaches for message in one.messages if message.role == "assistant") == 1
