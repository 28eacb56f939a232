"""`gymfleet eval --model-url`: a model of another server, on an environment or a suite, through a real gateway."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.console import out
from gymfleet_cli.main import run

from tests.fixtures.chat_server import ChatServer, Scripted
from tests.fixtures.guessing import guessing_gateway, halving, hopeless, message
from tests.models import build_tiny_model
from tests.vllm_server import vllm_server

KEY = "sk-secret-1"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with guessing_gateway(tmp_path_factory.mktemp("fleet")) as url:
        yield url


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as chat:
        chat.rule = halving
        yield chat


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a table are not broken."""
    # Not COLUMNS: it is not read by a console whose width a test before this one has set.
    monkeypatch.setattr(out, "width", 250)


class Evaluation:
    """The command, and what it printed."""

    def __init__(self, address: str, server: ChatServer, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._common = ["eval", "--url", address, "--model-url", server.url, "--model", "wise"]
        self._common += ["--run-dir", str(directory)]
        self._capsys = capsys
        self.directory = directory
        self.out = self.err = ""

    def run(self, *more: str) -> int:
        code = run([*self._common, *more])
        self.out, self.err = self._capsys.readouterr()
        return code

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table's rows, by column."""
        lines = [line.replace("┃", "│").split("│")[1:-1] for line in self.out.splitlines() if re.search("[│┃]", line)]
        head, *rows = [[cell.strip() for cell in line] for line in lines]
        return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.fixture
def evaluation(address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluation:
    return Evaluation(address, server, tmp_path / "run", capsys)


def test_success_tokens_and_cost_are_told(evaluation: Evaluation, server: ChatServer, monkeypatch: Any) -> None:
    monkeypatch.setenv("THEIR_KEY", KEY)
    replies = iter([2, 2])

    def thinks_a_bit(body: dict[str, Any]) -> bytes:
        """It knows no number that is looked for: two replies, one of which is cut."""
        number = next(replies)
        finish = "length" if len(body["messages"]) > 1 else "stop"
        return message(content="Thought: Hm. Action: 0", finish=finish, reasoning_tokens=number)

    server.rule = thinks_a_bit
    suite = evaluation.directory.parent / "suite.toml"
    suite.write_text(
        'name = "s"\n[[environments]]\nname = "guess"\nepisodes = 1\nlimits = { max_turns = 2 }\n', encoding="utf-8"
    )

    more = ("--suite", str(suite), "--price-in", "2", "--price-out", "30", "--api-key-env", "THEIR_KEY")
    assert evaluation.run(*more) == 0, evaluation.err

    (row,) = evaluation.rows
    assert row == {
        "environment": "guess", "metric": "success", "episodes": "1", "figure": "0.0 % (0.0 to 79.3)", "failed": "0",
        "cut replies": "1 of 2", "prompt tokens": "200", "reply tokens": "20", "reasoning tokens": "4",
        "cost": "0.001",  # (200 * 2 + 20 * 30) / 1,000,000
    }  # fmt: skip
    assert server.keys == [f"Bearer {KEY}"] * 2
    kept = b"".join(file.read_bytes() for file in evaluation.directory.iterdir())
    assert KEY not in evaluation.out + evaluation.err + kept.decode()
    assert b'"purpose":"eval"' in kept, "no stage learns from it"


def test_what_was_played_is_not_played_again(evaluation: Evaluation, server: ChatServer) -> None:
    assert evaluation.run("--env", "guess", "--episodes", "2") == 0
    first, asked = evaluation.rows, len(server.asked)

    assert evaluation.run("--env", "guess", "--episodes", "2") == 0

    assert (evaluation.rows, len(server.asked)) == (first, asked)
    assert first[0]["figure"] == "100.0 % (34.2 to 100.0)"
    assert int(first[0]["prompt tokens"].replace(",", "")) == 100 * asked
    assert evaluation.run("--env", "guess", "--episodes", "3") == 0
    assert evaluation.rows[0]["episodes"] == "3"


def test_a_server_that_is_busy_is_asked_again(evaluation: Evaluation, server: ChatServer) -> None:
    server.script.extend([Scripted(b"slow down", 429, {"Retry-After": "0"}), Scripted(b"", 502)])

    assert evaluation.run("--env", "guess", "--episodes", "1") == 0

    assert evaluation.rows[0]["figure"].startswith("100.0 %")
    assert evaluation.rows[0]["failed"] == "0"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(b"<html>", "no chat completion with a text", id="not JSON"),
        pytest.param(b"{}", "no chat completion with a text", id="no choices"),
        pytest.param(b'{"choices": []}', "no chat completion with a text", id="not one choice"),
        pytest.param(b'{"choices": [{"message": {"content": 7}}]}', "no chat completion with a text", id="no text"),
        pytest.param(b" " * 2_000_000, "an answer of more than", id="huge"),
        pytest.param(b"[" * 100_000, "no chat completion with a text", id="deep"),
    ],
)
def test_what_is_no_answer_is_a_failure_and_no_score(
    body: bytes, told: str, evaluation: Evaluation, server: ChatServer
) -> None:
    server.rule = lambda _: body

    assert evaluation.run("--env", "guess", "--episodes", "1") == 1

    assert told in evaluation.out
    assert "guess" in evaluation.out
    assert "could not be measured in full" in evaluation.err
    assert "%" not in evaluation.out, "no figure is made of it"


def test_a_timeout_is_counted_as_a_failure_beside_what_was_measured(evaluation: Evaluation, server: ChatServer) -> None:
    openings = itertools.count(1)

    def sleepy(body: dict[str, Any]) -> bytes:
        """It plays one episode, and sleeps at the beginning of every other."""
        if len(body["messages"]) == 1 and next(openings) > 1:
            time.sleep(4.0)
        return halving(body)

    server.rule = sleepy

    assert evaluation.run("--env", "guess", "--episodes", "2", "--timeout-s", "2", "--concurrency", "1") == 1

    (row,) = evaluation.rows
    assert (row["episodes"], row["failed"]) == ("1", "1")
    assert row["figure"].startswith("100.0 %"), "of those that were played to their ends"
    assert "no answer within 2 s" in evaluation.out


def test_one_environment_that_fails_does_not_stop_the_others(evaluation: Evaluation, server: ChatServer) -> None:
    server.rule = hopeless
    suite = evaluation.directory.parent / "suite.toml"
    suite.write_text(
        'name = "s"\n[[environments]]\nname = "no_such"\nepisodes = 1\n'
        '[[environments]]\nname = "maze"\nlevel = "tiny"\nepisodes = 1\nlimits = { max_turns = 1 }\n',
        encoding="utf-8",
    )

    assert evaluation.run("--suite", str(suite)) == 1

    assert [row["environment"] for row in evaluation.rows] == ["maze"]
    assert "no_such: " in evaluation.out


@pytest.mark.parametrize(
    ("more", "told"),
    [
        pytest.param([], "--env NAME, one environment, or --suite", id="no environment"),
        pytest.param(["--env", "guess", "--strategy", "beam"], "leave out --strategy", id="of ours"),
        pytest.param(
            ["--env", "guess", "--episodes", "1", "--api-key-env", "NOT_SET"], "NOT_SET holds no key", id="no key"
        ),
        pytest.param(["--env", "guess", "--episodes", "20000"], "tasks in", id="too many"),
    ],
)
def test_what_cannot_be_measured_is_refused(more: list[str], told: str, evaluation: Evaluation) -> None:
    assert evaluation.run(*more) == 2
    assert told in evaluation.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--model", "wise"), ("--temperature", "0"), ("--max-reply-tokens", "1024"), ("--concurrency", "4"),
        ("--timeout-s", "9"), ("--price-in", "1"),
    ],
)  # fmt: skip
def test_its_options_are_refused_for_a_model_of_ours(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "runs/none", option, value]) == 2
    assert f"leave out {option}: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.long
def test_a_model_that_vllm_serves(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build_tiny_model(tmp_path / "model", tie_embeddings=False, seed=0)
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'name = "s"\n[[environments]]\nname = "guess"\nepisodes = 2\n'
        "limits = { max_turns = 2, max_response_tokens = 8 }\n",
        encoding="utf-8",
    )
    with vllm_server(model, tmp_path / "vllm.log", max_model_len=1024, max_num_seqs=4) as url:
        common = ["eval", "--url", address, "--model-url", f"{url}/v1", "--model", str(model), "--suite", str(suite)]
        code = run([*common, "--run-dir", str(tmp_path / "run")])

    said = capsys.readouterr()
    assert code == 0, said.err + said.out
    (spent,) = (json.loads(file.read_bytes()) for file in (tmp_path / "run").glob("*.spent.json"))
    assert spent["prompt_tokens"] > 0
    assert 4 <= spent["reply_tokens"] <= 4 * 8, "of two episodes of two replies"
    assert spent["untold"] == 0
