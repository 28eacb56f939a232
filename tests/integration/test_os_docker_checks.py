"""What a verdict rests on with the Docker backend: its checks run in a container that the agent never controlled."""

import base64
import subprocess
import sys

import docker
import pytest
from gymfleet_envs.os.environment import OsInteraction
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import Ran, SandboxError
from gymfleet_envs.os.sandbox.docker_container import DockerContainer
from gymfleet_envs.os.sandbox.docker_watch import Watch
from gymfleet_envs.os.task import Match, OsTask, Script

from tests.fixtures.os_verdicts import CHECKS, LOADER, ZERO, Verdicts, chore, play
from tests.integration.test_os_docker_daemon import LIMIT_S, SMALL, Among, api, available, box, containers, wait_for

if not available():
    pytest.skip(f"no Docker daemon answers that has the image {SMALL.image}", allow_module_level=True)


__all__ = ["api", "box"]  # fixtures


@pytest.fixture(autouse=True)
def docker_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsInteraction, "options", OsOptions(backend="docker"))


# As the loader of `os_verdicts`, but it says first what the server waits for: an ELF program that writes "b", reads
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
    "python3 is another program": "p=$(readlink -f /usr/bin/python3); rm $p; cp /bin/true $p",
    "a preloaded library": "echo /root/x.so > /etc/ld.so.preload; cp /usr/bin/python3 /root/x.so",
    "bash in the place of the first program": f"cp /bin/bash /bash; {ZERO.replace('/bin/bash', '/bash')} > /b; "
    "chmod 755 /b; mv /b /usr/bin/bash",
}


class TestDocker(Verdicts):
    """With containers, where more can be tried."""

    @pytest.mark.parametrize("attack", ONLY_HERE.values(), ids=ONLY_HERE)
    def test_what_only_a_container_lets_do_gets_nothing(self, attack: str) -> None:
        assert play(chore(CHECKS[1 if "python" in attack else 0]), f"bash {attack}", "finish")[-1].score == 0.0


def test_a_task_that_compares_an_answer_has_no_checks_to_be_sealed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed: list[DockerContainer] = []
    monkeypatch.setattr(DockerContainer, "seal", sealed.append)

    outcome = play(OsTask("d", match=Match("7")), "bash rm -rf /usr/bin/python3", "answer(7)")[-1]

    assert (outcome.score, sealed) == (1.0, [])


def test_a_check_sees_what_the_preparation_put_into_a_directory_of_the_system() -> None:
    task = OsTask(
        "d",
        init=(
            Script("mkdir /usr/share/app /usr/local/lib/x; echo task > /usr/share/app/a"),
            Script("rm -rf /usr/share/base-passwd"),
        ),
        check=(Script("grep -q task /usr/share/app/a && [ -d /usr/local/lib/x ] && [ ! -e /usr/share/base-passwd ]"),),
    )  # fmt: skip

    [_, outcome] = play(task, "bash echo evil > /usr/share/app/a; rmdir /usr/local/lib/x", "finish")

    assert outcome.score == 1.0
    assert "usr/share/app/a" in str(outcome.info["not_seen_by_check"])


def test_special_bits_of_a_program_are_seen_and_its_content_is_not() -> None:
    task = OsTask("d", check=(Script("[ -u /usr/bin/find ] && find /etc -maxdepth 0"),))

    assert [outcome.score for outcome in play(task, "bash chmod u+s /usr/bin/find", "finish")] == [0.0, 1.0]
    evil = play(task, "bash cp /bin/false /f; mv /f /usr/bin/find; chmod 4755 /usr/bin/find", "finish")[-1]
    assert (evil.score, evil.info["not_seen_by_check"]) == (1.0, ["usr/bin/find"])


def test_what_checks_do_not_see_is_named(box: DockerContainer) -> None:
    box.seal()
    sockets = "import socket; socket.socket(socket.AF_UNIX).bind('/root/socket')"
    box.shell(f"echo x >> /etc/profile; rm /usr/bin/grep; echo a > /usr/bin/re.py; python3 -c {sockets!r}", LIMIT_S)

    assert box.check(["grep", "-c", "x$", "/etc/profile"], LIMIT_S).code in (0, 1)

    assert box.unseen == ("etc/profile", "root/socket", "usr/bin/grep", "usr/bin/re.py")


def test_names_that_are_no_utf8_and_names_with_lines_are_carried(box: DockerContainer) -> None:
    box.seal()
    box.shell(r"cd /root; mkdir $'d\xff'; echo 7 > $'d\xff/a\n\xfe'; chmod 600 d*/*; ln -s $'\xfd' l", LIMIT_S)

    ran = box.check(["bash", "-c", r"cd; cat $'d\xff/a\n\xfe'; stat -c %a d*/*; readlink l | xxd -p"], LIMIT_S)

    assert (ran.output, box.unseen) == (b"7\n600\nfd0a\n", ())


def test_a_link_in_the_place_of_a_directory_leads_nothing_into_the_system(box: DockerContainer) -> None:
    box.seal()
    box.shell("rm -rf /srv /var/mail; ln -s /usr/bin /srv; ln -s /etc /var/mail; echo x > /srv/zz.py", LIMIT_S)

    ran = box.check(["bash", "-c", "readlink /srv /var/mail; ls /usr/bin/zz.py"], LIMIT_S)

    assert ran.output.startswith(b"/usr/bin\n/etc\nls: cannot access")
    assert box.unseen == ("usr/bin/zz.py",)


def test_the_digest_stays_from_the_first_check_on(box: DockerContainer) -> None:
    box.seal()
    box.shell("echo a > /root/f; (while :; do date +%N > /root/g; sleep 0.01; done) & sleep 0.1; kill %1", LIMIT_S)
    before = box.digest()

    box.check(["touch", "/root/h"], LIMIT_S)

    assert box.digest() == before
    assert box.check(["ls", "/root"], LIMIT_S).output == b"f\ng\nh\n", "one root for all checks of a session"


def test_processes_of_the_agent_are_seen_and_stand_still(box: DockerContainer) -> None:
    box.shell("(exec -a ticker bash -c 'while :; do sleep 0.05; date +%N > /dev/shm/t; done') & sleep 0.2", LIMIT_S)
    box.seal()

    looks = (
        "p=$(pgrep -fo ticker) && a=$(grep ctxt /proc/$p/status) && sleep 0.3 && "
        '[ "$a" = "$(grep ctxt /proc/$p/status)" ]'
    )

    assert box.program(["bash", "-c", looks], LIMIT_S).code == 1
    assert box.check(["bash", "-c", looks], LIMIT_S).code == 0


@pytest.mark.parametrize(
    "command",
    ["touch /root/{1..5000}", "for i in {1..40}; do truncate -s 15M /root/$i; done; sleep 1"],
    ids=["files", "sizes"],
)
def test_a_check_says_no_where_the_agent_leaves_what_cannot_be_looked_at(box: DockerContainer, command: str) -> None:
    box.seal()
    box.shell(command, LIMIT_S)

    for _ in range(2):
        assert box.check(["true"], LIMIT_S).code not in (0, None)


def test_a_check_that_takes_too_long_ends_with_its_container(box: DockerContainer, api: docker.APIClient) -> None:
    box.seal()
    ran = box.check(["bash", "-c", "echo a; sleep 1000"], 0.5)

    assert ran == Ran(b"a\n", None, timed_out=True)
    with pytest.raises(SandboxError):
        box.check(["true"], LIMIT_S)
    box.close()
    wait_for(lambda: not set(containers(api)) & {box.container_id})


def test_both_containers_go_when_the_session_is_closed(api: docker.APIClient) -> None:
    before = set(containers(api))
    sandbox = DockerContainer(SMALL)
    assert sandbox.check(["true"], LIMIT_S) == Ran(b"", 0)
    assert len(set(containers(api)) - before) == 2

    sandbox.close()

    wait_for(lambda: not set(containers(api)) - before)


def test_frozen_container_of_a_killed_server_is_swept(api: docker.APIClient, box: DockerContainer) -> None:
    code = (
        "import os; from gymfleet_envs.os.options import OsOptions\n"
        "from gymfleet_envs.os.sandbox.docker_container import DockerContainer\n"
        "box = DockerContainer(OsOptions(backend='docker')); box.check(['true'], 20)\n"
        "print(box.container_id, box._checks.container_id, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    agents, checks = done.stdout.split()
    box.check(["true"], LIMIT_S)
    assert box._checks is not None
    watch, seen = Watch(), Among(api, agents, box.container_id, box._checks.container_id)

    wait_for(lambda: checks not in containers(api))
    watch.sweep(seen)
    assert agents in containers(api), "its checks may be about to begin"
    watch.sweep(seen)

    assert agents not in containers(api)
    assert box.check(["echo", "7"], LIMIT_S).output == b"7\n", "what has checks beside it is left alone"
