"""`gymfleet conformance` as a command: its reports, its exit codes, its one line for a mistake."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from gymfleet_cli.main import run
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.fixtures import broken_servers
from tests.fixtures.corridor_server import Server, serving

Capture = pytest.CaptureFixture[str]


class Guarded:
    """Serves nobody without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if dict(scope.get("headers", [])).get(b"authorization") == self._expected:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await JSONResponse({"title": "A key is needed"}, status_code=401)(scope, receive, send)


def test_report_of_a_broken_server(tmp_path: Path, capsys: Capture) -> None:
    report, junit = tmp_path / "report.json", tmp_path / "report.xml"
    with serving(broken_servers.LeaksTheAnswer()) as url:
        code = run(["conformance", url, "--check", "answers", "--json", str(report), "--junit", str(junit)])

    said = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "1 must and 0 should fail" in said
    told = json.loads(report.read_text())
    assert (told["protocol"], told["sections"][0]["env"]) == ("native", "corridor")
    results = {one["id"]: one for one in told["sections"][0]["results"]}
    assert results["answers.not-in-info"]["verdict"] == "fails"
    assert "ground_truth" in results["answers.not-in-info"]["seen"]
    assert results["answers.expert-solves"]["verdict"] == "holds"
    root = ET.fromstring(junit.read_bytes())  # noqa: S314 - our own file
    assert [suite.attrib["failures"] for suite in root] == ["1"]
    assert len(root.findall(".//failure")) == 1


def test_key_is_sent_over_rest_and_stream_and_asked_for(capsys: Capture) -> None:
    with serving(Server(), lambda app: Guarded(app, "open sesame")) as url:
        assert run(["conformance", url, "--check", "stream.a*", "--api-key", "open sesame"]) == 0
        assert "4 of 4 hold" in capsys.readouterr().out
        assert run(["conformance", url]) == 2

    assert "give a key with --api-key" in capsys.readouterr().err


def test_failed_should_does_not_decide(capsys: Capture) -> None:
    with serving(broken_servers.ScoresBeyondOne()) as url:
        assert run(["conformance", url, "--check", "answers.expert-solves"]) == 0

    assert "0 must and 1 should fail" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["http://127.0.0.1:9"], "http://127.0.0.1:9 cannot be reached"),
        (["ftp://127.0.0.1"], "give it as http://host:port"),
        (["http://127.0.0.1:port"], "error:"),
        ([], "give the URL of a server"),
        (["http://127.0.0.1:9", "--protocol", "smtp"], "native, openenv, agentgym, auto"),
        (["http://127.0.0.1:9", "--check", "stepz.*"], "'stepz.*' matches no check"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(arguments: list[str], line: str, capsys: Capture) -> None:
    assert run(["conformance", *arguments]) == 2

    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_environment_that_is_not_served_is_named(capsys: Capture) -> None:
    with serving(Server()) as url:
        assert run(["conformance", url, "--env", "chess"]) == 2

    assert "has no environment 'chess'; it has corridor" in capsys.readouterr().err


def test_list_needs_no_server(capsys: Capture) -> None:
    assert run(["conformance", "--list", "--check", "leases"]) == 0

    said = capsys.readouterr().out
    assert "leases.bounds" in said
    assert "steps." not in said


def test_interrupted_run_ends_at_once() -> None:
    server = Server()
    with serving(server) as url:
        command = [str(Path(sys.executable).with_name("gymfleet")), "conformance", url, "--check", "leases"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while not server.held and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "Traceback" not in err
