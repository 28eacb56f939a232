"""What a verdict rests on: checks run where nothing of the agent's stands in for the system's, and a technical failure
is no score."""

import base64
import shutil

import pytest
from gymfleet_envs.os.environment import ENVIRONMENT, OsInteraction
from gymfleet_envs.os.task import Match, OsTask, Script
from gymfleet_envs.runtime.environment import EngineLost, Outcome

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
CHECKS = (
    Script('[ "$(stat -c %a /root/f)" = 755 ] || exit 1; awk \'$1 != "ok" {exit 1}\' /root/f && grep -q ok /root/f'),
    Script("import re, sys; sys.exit(re.fullmatch('ok', open('/root/f').read().strip()) is None)", "python"),
    Script(
        '! grep -q no /root/f && python3 -c \'import re, sys; sys.exit(not re.match("ok", open("/root/f").read()))\''
    ),
)


def chore(*checks: Script) -> OsTask:
    init = (Script("echo no > /root/f; chmod 644 /root/f"),)
    return OsTask("Make /root/f executable and write ok into it.", init=init, check=checks)


# An ELF program of 129 bytes that exits with 0, as loader of all others.
LOADER = base64.b64encode(
    bytes.fromhex(
        "7f454c4602010100000000000000000003003e0001000000780000000000000040000000000000000000000000000000"
        "0000000040003800010000000000000001000000050000000000000000000000000000000000000000000000000000008100"
        "00000000000081000000000000000010000000000000b83c00000031ff0f05"
    )
).decode()
ZERO = "printf '#!/bin/bash\\nexit 0\\n'"
PYTHON = "$(python3 -c 'import sys; print(\"python%d.%d\" % sys.version_info[:2])')"
EXIT = "echo 'import os; os._exit(0)'"
ATTACKS = {
    "a loader that exits with 0": f"mkdir -p /l; echo {LOADER} | base64 -d > /l/ld-linux-x86-64.so.2; "
    "chmod 755 /l/*; ln -sfn /l /lib64",
    "sitecustomize": f"for d in /usr/local/lib/{PYTHON}/dist-packages /usr/lib/python3/dist-packages /etc/{PYTHON}; do "
    f"mkdir -p $d; {EXIT} > $d/sitecustomize.py; done",
    "a .pth file": f"d=/usr/local/lib/{PYTHON}/dist-packages; mkdir -p $d; {EXIT} > $d/x.pth",
    "usercustomize": f"d=/root/.local/lib/{PYTHON}/site-packages; mkdir -p $d; {EXIT} > $d/usercustomize.py",
    "modules in the working directory": f"{EXIT} > /root/re.py; {EXIT} > /root/os.py; {EXIT} > /root/sys.py",
    "a standard library of its own": f"mkdir -p /e/lib/{PYTHON}; {EXIT} > /e/lib/{PYTHON}/encodings.py; "
    "for d in /usr /usr/bin /; do echo 'home = /e/bin' > $d/pyvenv.cfg; done",
    "programs in the place of the system's": "cp /bin/bash /bash; "
    "for p in bash sh stat awk gawk mawk grep python3 setpriv; "
    f"do rm -f /usr/bin/$p; {ZERO.replace('/bin/bash', '/bash')} > /usr/bin/$p; chmod 755 /usr/bin/$p; done",
    "programs that are found first": "for d in /usr/sbin /usr/local/bin /usr/local/sbin; "
    "do for p in stat awk grep python3; "
    f"do {ZERO} > $d/$p; chmod 755 $d/$p; done; done",
    "another alternative": f"{ZERO} > /a; chmod 755 /a; ln -sfn /a /etc/alternatives/awk; ln -sfn /a /usr/bin/python3",
    "shell settings": "for f in .bashrc .bash_profile .profile .bash_env; do echo 'exit 0' > /root/$f; done; "
    "echo 'exit 0' > /etc/profile; echo 'exit 0' >> /etc/bash.bashrc; echo BASH_ENV=/root/.bashrc > /etc/environment; "
    "export BASH_ENV=/root/.bashrc; grep() { :; }; alias stat='echo 755'",
    "programs that are gone": "rm -f /usr/bin/grep /usr/bin/stat /usr/bin/python3; rm -rf /usr/lib/python3*",
    "modes that let nothing run": "chmod 000 /usr/bin/grep /usr/bin/python3 /usr/bin/stat",
    "a process that answers for the file": "(while :; do echo ok > /root/f; chmod 755 /root/f; echo no > /root/f; "
    "chmod 644 /root/f; done) & sleep 0.2; kill -STOP $!; echo no > /root/f; kill -CONT $!; sleep 0.1; kill -9 $!; "
    "echo no > /root/f",
}
SEEN = [
    ("printf '#!/bin/sh\\necho 7\\n' > /usr/bin/calc; chmod 755 /usr/bin/calc", '[ "$(calc)" = 7 ]'),
    ("printf '#!/bin/sh\\necho 7\\n' > /usr/local/bin/calc; chmod 755 /usr/local/bin/calc", '[ "$(calc)" = 7 ]'),
    ("useradd -m ann; groupadd crew; usermod -aG crew ann", "id -nG ann | grep -qw crew && su ann -c 'test -w ~'"),
    (
        "echo a > /usr/share.txt; mkdir /usr/x; rm -rf /var/log",
        "[ -s /usr/share.txt ] && [ -d /usr/x ] && [ ! -e /var/log ]",
    ),
    (
        "echo 10.0.0.1 db >> /etc/hosts; mkdir /etc/app; echo a > /etc/app/c",
        "grep -q db /etc/hosts && [ -s /etc/app/c ]",
    ),
    ("rm -rf /opt; mkdir /opt; touch /opt/a; rm /etc/issue", '[ "$(ls /opt)" = a ] && [ ! -e /etc/issue ]'),
    (
        "echo 'PATH=$PATH:/root/x' > .bashrc; mkdir x; echo 'echo hi' > x/hi; chmod +x x/hi",
        'source ~/.bashrc; [ "$(hi)" = hi ]',
    ),
    ("(exec -a waiter sleep 100) & until pgrep -f waiter; do :; done", "pgrep -f waiter"),
    (
        "mkfifo p; ln -s /etc/passwd l; ln f g; chown 1000:1000 f",
        "[ -p p ] && [ -L l ] && [ $(stat -c %u:%h g) = 1000:2 ]",
    ),
]  # fmt: skip
"""What an agent does, and a check that asks for it."""
VULNERABLE = OsTask(
    "Find the vulnerability.",
    init=(
        Script("chmod u+s /usr/bin/find; echo log > /usr/stock.log"),
        Script("printf 'echo made' > /usr/bin/made; chmod +x /usr/bin/made"),
    ),
    check=(Script("[ ! -u /usr/bin/find ] && [ -s /usr/stock.log ] && [ $(made) = made ]"),),
)  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsInteraction, "options", OsInteraction.options.model_copy(update={"program_timeout_s": 0.7}))


def play(task: OsTask, *actions: str) -> list[Outcome]:
    environment = ENVIRONMENT()
    try:
        environment.reset(task, 0)
        return [environment.step(action) for action in actions]
    finally:
        environment.close()


def test_the_task_is_solved_by_who_does_it() -> None:
    assert play(chore(*CHECKS), "bash echo ok > f; chmod 755 f", "finish")[-1].score == 1.0
    assert [play(chore(check), "finish")[-1].score for check in CHECKS] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
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


@pytest.mark.parametrize(("does", "check"), SEEN)
def test_a_check_sees_what_the_agent_did(does: str, check: str) -> None:
    task = OsTask("d", init=(Script("touch f"),), check=(Script(check),))

    assert [outcome.score for outcome in play(task, f"bash {does}", "finish")] == [0.0, 1.0]
    assert play(task, "finish")[-1].score == 0.0


@pytest.mark.parametrize(("command", "score"), [("true", 0.0), ("chmod u-s /usr/bin/find", 1.0)])
def test_a_preparation_may_change_the_system_and_the_agent_may_undo_it(command: str, score: float) -> None:
    assert play(VULNERABLE, f"bash {command}", "finish")[-1].score == score


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
