"""What Docker is asked for; no daemon takes part."""

import gc
import socket
import struct
import threading
import time

import pytest
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import Head, SandboxError
from gymfleet_envs.os.sandbox.docker_container import DockerContainer
from gymfleet_envs.os.sandbox.docker_room import container_arguments
from gymfleet_envs.os.sandbox.docker_stream import Stream
from gymfleet_envs.os.sandbox.seccomp import seccomp_filter


def test_container_is_shut_off_and_bounded() -> None:
    arguments = container_arguments(OsOptions(memory_mib=256, disk_mib=32, processes=40, cpus=0.5, image="box:1"))

    assert arguments["image"] == "box:1"
    assert arguments["network_mode"] == "none"
    assert arguments["cap_drop"] == ["ALL"]
    assert "SYS_ADMIN" not in arguments["cap_add"]
    assert arguments["security_opt"] == ["no-new-privileges"]
    assert arguments["mem_limit"] == arguments["memswap_limit"] == 256 << 20
    assert (arguments["pids_limit"], arguments["nano_cpus"]) == (42, 500_000_000)
    assert {limit.name: limit.hard for limit in arguments["ulimits"]}["fsize"] == 32 << 20
    assert arguments["auto_remove"]
    assert not {"volumes", "mounts", "privileged", "pid_mode"} & set(arguments), "nothing of the host is shown"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Docker's package leaves a socket open
def test_without_a_daemon_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")

    with pytest.raises(SandboxError, match="no Docker daemon answers; start one or set DOCKER_HOST") as caught:
        DockerContainer(OsOptions(backend="docker"))

    assert "\n" not in str(caught.value)
    del caught
    gc.collect()


@pytest.mark.parametrize(
    ("frames", "head", "code"),
    [
        ([b"a\n", b"b\n", b"TOKEN:0\n"], b"a\nb\n", 0),
        ([b"no newline", b"TOK", b"EN:137\n"], b"no newline", 137),
        ([b"TOKEN:x\n"], b"", None),
        ([b"y\n" * 20_000, b"TOKEN:1\n"], b"y\n" * 8192, 1),
    ],
    ids=["plain", "mark in two frames", "forged mark", "long"],
)
def test_docker_frames_are_read_up_to_the_mark(frames: list[bytes], head: bytes, code: int | None) -> None:
    ours, theirs = socket.socketpair()
    data = b"".join(struct.pack(">BxxxL", 1, len(frame)) + frame for frame in frames)
    sender = threading.Thread(target=theirs.sendall, args=(data,))
    sender.start()
    kept = Head(16_384)

    with ours, theirs:
        got = Stream(ours, lambda: True).until_marked("TOKEN", kept, time.monotonic() + 30)
        sender.join()

    assert (got, bytes(kept.data)) == (code, head)


def test_stream_that_the_background_holds_open_ends_with_its_program() -> None:
    ours, theirs = socket.socketpair()
    kept = Head(16_384)
    with ours, theirs:
        theirs.sendall(struct.pack(">BxxxL", 1, 3) + b"end")
        stream = Stream(ours, lambda: False)

        assert stream.until_marked("TOKEN", kept, time.monotonic() + 30) is None
        assert stream.read(kept, time.monotonic() + 30) is None

    assert bytes(kept.data) == b"end"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_jumps_stay_inside(machine: str) -> None:
    program = seccomp_filter(machine)

    code = [struct.unpack("=HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    assert all(at + 1 + max(yes, no) < len(code) for at, (_, yes, no, _) in enumerate(code[:-1]))
    assert code[-1] == (6, 0, 0, 0x7FFF0000), "what is not refused is allowed"
    assert len(code) < 4096
