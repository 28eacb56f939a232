"""What a verdict rests on with the Docker backend: its checks run in a container that the agent never controlled."""

import pytest
from gymfleet_envs.os.environment import OsInteraction
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.task import OsTask, Script

from tests.integration.test_os_checks import ATTACKS, CHECKS, SEEN, VULNERABLE, ZERO, chore, play
from tests.integration.test_os_docker_daemon import SMALL, available

if not available():
    pytest.skip(f"no Docker daemon answers that has the image {SMALL.image}", allow_module_level=True)


@pytest.fixture(autouse=True)
def docker_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsInteraction, "options", OsOptions(backend="docker"))


def test_the_task_is_solved_by_who_does_it() -> None:
    assert play(chore(*CHECKS), "bash echo ok > f; chmod 755 f", "finish")[-1].score == 1.0
    assert [play(chore(check), "finish")[-1].score for check in CHECKS] == [0.0, 0.0, 0.0]


ONLY_HERE = {
    "a preloaded library": "echo /root/x.so > /etc/ld.so.preload; cp /usr/bin/python3 /root/x.so",
    "a directory of modules in the working directory": "mkdir /root/encodings; echo 'import os; os._exit(0)' > "
    "/root/encodings/__init__.py",
    "bash in the place of the first program": f"cp /bin/bash /bash; {ZERO.replace('/bin/bash', '/bash')} > /b; "
    "chmod 755 /b; mv /b /usr/bin/bash",
}


@pytest.mark.parametrize("attack", [*ATTACKS.values(), *ONLY_HERE.values()], ids=[*ATTACKS, *ONLY_HERE])
def test_who_does_nothing_but_change_the_system_gets_nothing(attack: str) -> None:
    check = CHECKS[1] if "python" in attack or "/root/re.py" in attack else CHECKS[0]

    assert play(chore(check), f"bash {attack}", "finish")[-1].score == 0.0


def test_all_attacks_together_do_not_spoil_a_right_solution() -> None:
    attacks = [attack for name, attack in ATTACKS.items() if not name.startswith(("a process", "a loader", "programs"))]

    outcome = play(
        chore(*CHECKS), *(f"bash {attack}" for attack in attacks), "bash echo ok > f; chmod 755 f", "finish"
    )[-1]

    assert outcome.score == 1.0
    assert "etc/profile" in str(outcome.info["not_seen_by_check"])


@pytest.mark.parametrize(("does", "check"), SEEN)
def test_a_check_sees_what_the_agent_did(does: str, check: str) -> None:
    task = OsTask("d", init=(Script("touch f"),), check=(Script(check),))

    assert [outcome.score for outcome in play(task, f"bash {does}", "finish")] == [0.0, 1.0]
    assert play(task, "finish")[-1].score == 0.0


@pytest.mark.parametrize(("command", "score"), [("true", 0.0), ("chmod u-s /usr/bin/find", 1.0)])
def test_a_preparation_may_change_the_system_and_the_agent_may_undo_it(command: str, score: float) -> None:
    assert play(VULNERABLE, f"bash {command}", "finish")[-1].score == score
