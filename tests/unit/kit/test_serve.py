"""Listening: a port in use is one line and exit code 2."""

import socket

import pytest
from gymfleet_kit.serve import bind


def test_a_port_in_use_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            bind("127.0.0.1", port)

    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: 127.0.0.1:{port} is in use by another process; choose another port"


def test_an_address_of_another_machine_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bind("192.0.2.1", 0)  # TEST-NET-1: nobody's

    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: 192.0.2.1:0 cannot be bound")


def test_a_port_that_was_just_closed_can_be_bound_again() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    first.close()

    bind("127.0.0.1", port).close()
