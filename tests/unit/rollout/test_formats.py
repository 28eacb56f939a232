"""Reply formats in the rollout service: which ones a request may name, and what becomes of one that is broken."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.rollout import StrategySpec
from gymfleet_contracts.trajectory import Status
from gymfleet_rollout.errors import UnknownFormat
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from benchmarks.playing import episodes
from tests.unit.rollout.test_episode import CHAT, OPEN, Door, ScriptedPolicy, Specs, group

MINE = """
from gymfleet_contracts.reply_format import FormatOptions, ParsedReply, ReplyFormat


class Options(FormatOptions):
    mark: str = "!"


class Mine(ReplyFormat[Options]):
    Options = Options
    version = 3
    complaint = "Shout."

    @property
    def instructions(self):
        return f"Answer with an action and {self.options.mark}"

    def parse(self, text):
        action, mark, _ = text.partition(self.options.mark)
        return ParsedReply("", action.strip() or None, bool(mark and action.strip()), bool(mark))

    def render(self, thought, action):
        return f"{action}{self.options.mark}"
"""


def section(use: object, **options: Any) -> FormatSection:
    return FormatSection.model_validate({"use": str(use), **options})


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def change(path: Path, old: str, new: str) -> None:
    assert old in MINE
    path.write_text(MINE.replace(old, new))


async def played(formats: Formats, *replies: str, **changes: Any) -> Any:
    policy = ScriptedPolicy(*replies)
    player = Player(policy, CHAT, Door(), Specs(), formats, max_episodes=8)  # type: ignore[arg-type]
    (trajectory,) = await episodes(player, group(**changes), [1])
    return trajectory


def test_a_format_is_resolved_once() -> None:
    formats = Formats()

    assert formats.get(section("tags", action_tag="act")) is formats.get(section("tags", action_tag="act"))
    assert formats.get(section("tags")) is not formats.get(section("tags", action_tag="act"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"use": "morse"},
            "there is no format 'morse'; known: agentbench_kg, agentbench_os, agentgym, dbbench, free, openmanus, ",
        ),
        ({"use": "os:system"}, "this service was not given the format 'os:system'"),
        ({"use": "/etc/passwd"}, "this service was not given the format '/etc/passwd'"),
        (
            {"use": "tags", "actoin_tag": "a"},
            r"rollout\.format\.actoin_tag: .*\(the options of tags: ",
        ),
        ({"use": "tags", "action_tag": "think"}, r"^rollout\.format: .*thought_tag and action_tag must differ$"),
    ],
)
def test_what_a_request_may_not_name_is_one_line(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UnknownFormat, match=reason) as caught:
        Formats().get(FormatSection.model_validate(given))

    assert "\n" not in str(caught.value)
    assert Formats().version(FormatSection.model_validate(given)) == 0


def test_a_file_is_for_the_operator_to_offer(mine: Path) -> None:
    with pytest.raises(UnknownFormat, match="this service was not given the format"):
        Formats().get(section(mine))

    assert Formats([str(mine)]).get(section(mine, mark="?")).instructions == "Answer with an action and ?"


async def test_an_episode_in_a_format_of_somebodys_own(mine: Path) -> None:
    formats = Formats([str(mine)])

    trajectory = await played(formats, "hm", "open?", format={"use": str(mine), "mark": "?"})
    demonstration = await played(formats, OPEN, format={"use": str(mine)}, strategy=StrategySpec(use="expert"))

    assert (trajectory.format, trajectory.format_version) == ("mine", 3)
    assert [turn.action for turn in trajectory.turns] == ["hm", "open"]
    assert [turn.format_valid for turn in trajectory.turns] == [False, True]
    assert [turn.text for turn in demonstration.turns] == ["go left!", "open!"]


@pytest.mark.parametrize(
    ("parse", "reason"),
    [
        ("1 / 0", "the format mine failed in parse: ZeroDivisionError: division by zero"),
        ("exit()", "the format mine failed in parse: SystemExit"),
        ("return None", "the format mine parses a reply to nonsense: NoneType instead of a ParsedReply"),
        ("return ParsedReply('', '', False, False)", "the action is ''; without an action it is None"),
        ("return ParsedReply('', ' ', False, False)", "the action is ' '"),
        ("return ParsedReply('', 7, False, False)", "the action is 7"),
        ("return ParsedReply('', '\\ud800', False, False)", "the action is '\\ud800'"),
        ("return ParsedReply(None, 'a', False, False)", "the thought is None"),
        ("return ParsedReply('', 'a', 1, False)", "well_formed is 1, complete is False"),
        ("return ParsedReply('', None, True, False)", "it is well formed, and has no action"),
    ],
)
async def test_one_that_fails_is_a_failure_and_no_reply_of_the_model(mine: Path, parse: str, reason: str) -> None:
    change(mine, "        action, mark, _ =", f"        {parse}\n        action, mark, _ =")

    trajectory = await played(Formats([str(mine)]), "open!", format={"use": str(mine)})

    assert (trajectory.status, trajectory.attempt) == (Status.POLICY_ERROR, 1)
    assert trajectory.error.startswith("FormatFailed: the format mine ")
    assert reason in trajectory.error
    assert "\n" not in trajectory.error
    assert (trajectory.turns, trajectory.final_observation, trajectory.score) == ((), "A door.", 0.0)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('complaint = "Shout."', 'complaint = " "', "the format mine has no complaint: ' '"),
        ('complaint = "Shout."', "complaint = 7", "the format mine has no complaint: '7'"),
        ("version = 3", "version = None", "the format mine has no version: 'None'"),
        ('return f"Answer', 'raise OSError("no\\ndisk")\n        f"Answer', "failed in instructions: OSError: no disk"),
        ("class Mine(", "1 / 0\n\n\nclass Mine(", "mine.py cannot be imported: ZeroDivisionError: division by zero"),
        ("    version = 3", "    def __init__(self, options):\n        1 / 0", "cannot be made: ZeroDivisionError"),
        ("    Options = Options", "    Options = dict", "Mine: Options is not a pydantic model"),
        ("    def render", "    def write", "Mine must define render|must say FORMAT"),
    ],
)
def test_one_that_cannot_ask_is_refused_before_it_is_played(mine: Path, old: str, new: str, reason: str) -> None:
    change(mine, old, new)

    with pytest.raises(UnknownFormat, match=reason) as caught:
        Formats([str(mine)]).get(section(mine))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", ["1 / 0", "return None", "return '\\ud800'"])
async def test_one_that_cannot_write_fails_the_demonstration(mine: Path, answer: str) -> None:
    change(mine, 'return f"{action}', f'{answer}\n        f"{{action}}')

    trajectory = await played(
        Formats([str(mine)]), OPEN, format={"use": str(mine)}, strategy=StrategySpec(use="expert")
    )

    assert trajectory.status is Status.POLICY_ERROR
    assert "the format mine" in trajectory.error


def test_what_is_checked_is_what_the_format_says(mine: Path) -> None:
    checked = Formats([str(mine)]).get(section(mine))

    assert (checked.version, checked.complaint) == (3, "Shout.")
    assert checked.parse("a!").action == "a"
