"""What goes from the environment into the record as it is: images, and what is sealed for the reward service."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.observation import ImagePart, Part, TextPart
from gymfleet_contracts.session import OpenSession, Session, StepResult
from gymfleet_contracts.trajectory import Trajectory

from tests.fixtures.strategies import FORKS, Table
from tests.unit.rollout.test_episode import LEFT, OPEN, Door, ScriptedPolicy, play


def picture(number: int) -> tuple[Part, ...]:
    return TextPart(text="here"), ImagePart(sha256=f"{number:064x}", media_type="image/png")


class Gallery(Door):
    """Shows a picture after every other step, and seals something at the beginning and with each step."""

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Session:
        session = await super().open(request)
        return session.model_copy(update={"sealed": "begin", "parts": picture(0)})

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        result = await super().step(session_id, index, action)
        shown: dict[str, Any] = {"parts": picture(index + 1)} if index % 2 else {}
        return result.model_copy(update={"sealed": f"step{index}", **shown})


async def test_they_stand_where_they_were_shown() -> None:
    trajectory = await play(ScriptedPolicy(LEFT, LEFT, "Say nothing.", OPEN), Gallery())

    assert trajectory.sealed == "begin"
    assert [turn.sealed for turn in trajectory.turns] == ["step0", "step1", None, "step2"]
    assert [turn.parts for turn in trajectory.turns] == [picture(0), (), picture(2), ()]
    assert trajectory.final_parts == ()
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


async def test_the_last_observation_has_them_too() -> None:
    trajectory = await play(ScriptedPolicy(LEFT, OPEN), Gallery())

    assert trajectory.final_parts == picture(2)


async def test_a_fork_has_those_of_its_parent(tmp_path: Path) -> None:
    table = Table(tmp_path / "mine.py", FORKS, ScriptedPolicy(LEFT, OPEN), Gallery())

    first, second = await table.play()

    for episode in (first, second):
        assert episode.sealed == "begin"
        assert [turn.sealed for turn in episode.turns] == ["step0", "step1"]
        assert episode.turns[0].parts == picture(0)


async def test_a_plain_record_says_nothing_of_them() -> None:
    record = (await play(ScriptedPolicy(OPEN), Door())).model_dump_json()

    assert all(word not in record for word in ("sealed", "parts"))


@pytest.mark.parametrize("value", ["no base64!", "x" * 131_073])
def test_what_cannot_be_a_seal_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="sealed"):
        Session.model_validate(
            {
                "session_id": "s", "task": {"env": "door", "split": "train", "level": "", "task_id": "t"},
                "observation": "", "lease_s": 1, "expires_in_s": 1, "sealed": value,
            }
        )  # fmt: skip
