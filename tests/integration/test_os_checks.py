"""What a verdict rests on: checks run where nothing of the agent's stands in for the system's, and a technical failure
is no score."""

import shutil
from collections.abc import Sequence

import pytest
from gymfleet_envs.environment import EngineLost
from gymfleet_envs.os.environment import ENVIRONMENT, OsInteraction
from gymfleet_envs.os.sandbox.room import Room
from gymfleet_envs.os.task import Match, OsTask, Script

from tests.fixtures.os_verdicts import Verdicts, play

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsInteraction, "options", OsInteraction.options.model_copy(update={"program_timeout_s": 0.7}))


class TestBubblewrap(Verdicts):
    """With the default backend."""


def test_an_agents_program_cannot_write_into_the_check_that_runs_it() -> None:
    task = OsTask("Write a command calc.", check=(Script("calc > /dev/null; exit 1"),))
    program = "#!/usr/bin/python3\\nimport os\\nopen(f'/proc/{os.getppid()}/mem', 'r+b')\\n"

    wrote, outcome = play(
        task,
        f'bash printf "{program}" > /usr/bin/calc; chmod 755 /usr/bin/calc; calc && echo could',
        "finish",
    )

    assert "could" in wrote.observation, "its own shell it may"
    assert outcome.score == 0.0
    seen = OsTask("d", check=(Script("calc 2>&1 | grep -q 'Read-only file system'"),))
    assert play(seen, f'bash printf "{program}" > /usr/bin/calc; chmod 755 /usr/bin/calc', "finish")[-1].score == 1.0


@pytest.mark.parametrize(
    "script", ["sleep 60", "touch a; exit 7", "kill -9 $$", "yes"], ids=["slow", "fails", "killed", "floods"]
)
def test_a_preparation_that_does_not_succeed_begins_no_episode(script: str, quick: None) -> None:
    with pytest.raises(EngineLost, match="preparation"):
        ENVIRONMENT().reset(OsTask("d", init=(Script("touch b"), Script(script)), match=Match("x")), 0)


def test_a_start_script_that_keeps_the_shell_begins_no_episode(quick: None) -> None:
    with pytest.raises(EngineLost, match="start script"):
        ENVIRONMENT().reset(OsTask("d", start="sleep 60", match=Match("x")), 0)


@pytest.mark.parametrize("script", ["sleep 60", "kill -9 $$", "head -c 3M /dev/zero"], ids=["slow", "killed", "floods"])
def test_a_check_that_cannot_say_is_no_score(script: str, quick: None) -> None:
    with pytest.raises(EngineLost, match="the check"):
        play(OsTask("d", check=(Script(script), Script("exit 0"))), "answer(right)")


def test_all_programs_of_a_check_share_its_time(quick: None) -> None:
    with pytest.raises(EngineLost, match="the check was stopped after"):
        play(OsTask("d", check=tuple(Script("sleep 0.3") for _ in range(5))), "answer(right)")


def test_a_root_that_is_slow_to_start_takes_none_of_the_checks_time(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Room._supervisor
    starts = 0

    def slow(room: Room, numbers: Sequence[int]) -> list[str]:
        nonlocal starts
        starts += 1
        return ["/bin/bash", "-c", 'sleep 1; exec "$@"', "-", *command(room, numbers)]

    monkeypatch.setattr(Room, "_supervisor", slow)

    assert play(OsTask("d", check=(Script("exit 0"),)), "answer(right)")[-1].score == 1.0
    assert starts == 2, "the agent's and the one of the checks"


def test_a_check_that_says_no_is_a_score() -> None:
    assert play(OsTask("d", check=(Script("exit 7"),)), "answer(x)")[-1].score == 0.0
    assert play(OsTask("d", check=(Script("no-such-program"),)), "answer(x)")[-1].score == 0.0


def test_the_digest_is_that_of_the_files() -> None:
    def digests(*actions: str) -> list[str | None]:
        environment = ENVIRONMENT()
        try:
            environment.reset(OsTask("d", init=(Script("echo a > f"),), match=Match("x")), 0)
            found = [environment.state_digest()]
            for action in actions:
                environment.step(action)
                found.append(environment.state_digest())
            return found
        finally:
            environment.close()

    commands = (
        "bash touch -d @1 f; ls",
        "bash echo b >> f",
        "bash chmod 600 f",
        "bash rm /usr/bin/find",
        "bash useradd ann",
    )
    first, second = digests(*commands), digests(*commands)

    assert first == second
    assert first[0] == first[1], "times do not count"
    assert len(set(first)) == 5
    assert digests("bash head -c 9 /dev/urandom > r")[1] != digests("bash head -c 9 /dev/urandom > r")[1]


def test_the_root_is_readable_and_owned_by_users_that_exist() -> None:
    [shown] = play(
        OsTask("d", match=Match("x")),
        "bash find / -xdev ! -path /proc \\( -user nobody -o -nouser -o -nogroup \\) | head; "
        "find / -xdev -type f -exec cat {} + 2>&1 >/dev/null | head;"
        " dpkg -s bash | grep Status; ls -d /sys /home /srv /opt /var/log 2>&1",
    )  # fmt: skip

    assert shown.observation == (
        "The output of the OS:\n\nStatus: install ok installed\nls: cannot access '/sys': No such file or directory\n"
        "/home\n/opt\n/srv\n/var/log"
    )
