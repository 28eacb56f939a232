"""What a verdict rests on with the Docker backend: its checks run in a container that the agent never controlled."""

import base64

import pytest
from gymfleet_envs.os.environment import OsInteraction
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.task import OsTask, Script

from tests.integration.test_os_checks import ATTACKS, CHECKS, LOADER, SEEN, VULNERABLE, ZERO, chore, play
from tests.integration.test_os_docker_daemon import SMALL, available

if not available():
    pytest.skip(f"no Docker daemon answers that has the image {SMALL.image}", allow_module_level=True)


@pytest.fixture(autouse=True)
def docker_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsInteraction, "options", OsOptions(backend="docker"))


def test_the_task_is_solved_by_who_does_it() -> None:
    assert play(chore(*CHECKS), "bash echo ok > f; chmod 755 f", "finish")[-1].score == 1.0
    assert [play(chore(check), "finish")[-1].score for check in CHECKS] == [0.0, 0.0, 0.0]


# As the loader of test_os_checks, but it says first what the server waits for: an ELF program that writes "b", reads
# twice, and exits with 0.
_CODE = bytes.fromhex(
    "b801000000bf01000000488d351f000000ba010000000f0531c031ff4889e60f0531c031ff0f05b83c00000031ff0f0562"
)
_SIZE = (120 + len(_CODE)).to_bytes(8, "little")
TALKING_LOADER = base64.b64encode(
    base64.b64decode(LOADER)[:96] + _SIZE + _SIZE + base64.b64decode(LOADER)[112:120] + _CODE
).decode()
ONLY_HERE = {
    "a loader that says what it should": f"mkdir -p /l; echo {TALKING_LOADER} | base64 -d > /l/ld-linux-x86-64.so.2; "
    "chmod 755 /l/*; ln -sfn /l /lib64",
    "python3 is another program": "cp /bin/true /usr/bin/python3.11",
    "a preloaded library": "echo /root/x.so > /etc/ld.so.preload; cp /usr/bin/python3 /root/x.so",
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
