"""`gymfleet collect`: a scripted model plays through a real gateway, and what it did is kept, once and whole."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.main import run
from gymfleet_contracts.conversation import RECORDS, Conversation
from gymfleet_contracts.trajectory import FinishReason, ReplyEnd, ScoredTrajectory, Status, Trajectory

from tests.fixtures.chat_server import ChatServer, Scripted
from tests.fixtures.guessing import guessing_gateway, halving, hopeless, message
from tests.fixtures.paths import ROOT

GYMFLEET = str(Path(sys.executable).with_name("gymfleet"))
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with guessing_gateway(tmp_path_factory.mktemp("fleet")) as url:
        yield url


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as chat:
        chat.rule = halving
        yield chat


def later(seconds: float, rule: Callable[[dict[str, Any]], bytes]) -> Callable[[dict[str, Any]], bytes]:
    def slow(body: dict[str, Any]) -> bytes:
        time.sleep(seconds)
        return rule(body)

    return slow


def arguments(address: str, server: ChatServer, out: Path, *more: str) -> list[str]:
    return ["collect", "guess", str(out), "--url", address, "--model-url", server.url, "--model", "wise", *more]


def records(out: Path) -> list[ScoredTrajectory | Conversation]:
    return [RECORDS.validate_json(line) for line in out.read_bytes().splitlines()]


def episodes(out: Path) -> list[Trajectory]:
    return [record.trajectory for record in records(out) if isinstance(record, ScoredTrajectory)]


def test_episodes_are_kept_as_they_were_played(address: str, server: ChatServer, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.jsonl"

    assert run(arguments(address, server, out, "--episodes", "4", "--samples", "2", "--temperature", "0.5")) == 0

    found = sorted(episodes(out), key=lambda one: one.trajectory_id)
    assert [(one.task.task_id, one.sample) for one in found] == [
        (task, sample) for task in (found[0].task.task_id, found[2].task.task_id) for sample in (0, 1)
    ]
    assert len({one.group_id for one in found}) == 2, "samples of one task are one group"
    assert len({one.run_id for one in found}) == 1
    first = found[0]
    assert (first.policy.model, first.purpose, first.format, first.task.split) == ("wise", "collect", "react", "train")
    assert (first.status, first.finish_reason, first.success) == (Status.COMPLETED, FinishReason.TERMINATED, True)
    assert first.final_observation == "Right."
    opening = first.turns[0]
    assert opening.observation == "I have a number. Your guess?"
    assert opening.thought == "It is from 1 to 1000.", "the reasoning"
    assert opening.text == "Thought: I halve. Action: 500", "the reply"
    assert (opening.action, opening.format_valid, opening.action_valid) == ("500", True, True)
    assert first.turns[-1].reward == 1.0
    assert first.num_response_tokens == 0, "another model's tokens are none of ours"
    asked = server.asked[0]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("wise", 0.5, 1024)
    assert re.search(r"Guess a number from 1 to 1000.*Thought: <your.*I have a number", server.texts()[0], re.DOTALL)
    assert not any("It is from" in told["content"] for body in server.asked for told in body["messages"])


def test_what_the_file_has_is_not_played_again(address: str, server: ChatServer, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert run(arguments(address, server, out, "--tasks", "0-1,5")) == 0
    before, num_asked = out.read_bytes(), len(server.asked)

    assert run(arguments(address, server, out, "--tasks", "0-1,5")) == 0
    assert (out.read_bytes(), len(server.asked)) == (before, num_asked)
    assert run(arguments(address, server, out, "--tasks", "0-2,5")) == 0, "one more"

    assert out.read_bytes().startswith(before)
    assert len({one.trajectory_id for one in episodes(out)}) == len(episodes(out)) == 4


@pytest.mark.parametrize(
    ("said", "thought", "text"),
    [
        pytest.param({"content": "Action: 1", "reasoning": "Hm."}, "Hm.", "Action: 1", id="field of OpenRouter"),
        pytest.param({"content": "<think>\nHm.\n</think>\n\nAction: 1"}, "Hm.", "Action: 1", id="tags"),
        pytest.param({"content": "Hm.</think>Action: 1"}, "Hm.", "Action: 1", id="opened by the template"),
        pytest.param({"content": "Action: 1", "reasoning_content": None}, "", "Action: 1", id="none"),
        pytest.param({"content": None, "reasoning_content": "Hm."}, "Hm.", "", id="nothing but reasoning"),
        pytest.param(
            {"content": "Action: 1 <think>x</think>"},
            "",
            "Action: 1 <think>x</think>",
            id="tags inside are the reply's",
        ),
    ],
)
def test_reasoning_is_a_thought_and_no_part_of_the_reply(
    said: dict[str, Any], thought: str, text: str, address: str, server: ChatServer, tmp_path: Path
) -> None:
    server.rule = lambda _: message(**said)

    assert run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "1", "--max-turns", "1")) == 0

    (turn,) = episodes(tmp_path / "out.jsonl")[0].turns
    assert (turn.thought, turn.text) == (thought, text)


def test_a_format_with_tags_of_its_own_reads_them_itself(address: str, server: ChatServer, tmp_path: Path) -> None:
    server.rule = lambda _: message(content="<think>Hm.</think><action>7</action>")

    more = ("--episodes", "1", "--max-turns", "1", "--format", "tags")
    assert run(arguments(address, server, tmp_path / "out.jsonl", *more)) == 0

    (episode,) = episodes(tmp_path / "out.jsonl")
    assert (episode.format, episode.turns[0].action, episode.turns[0].thought) == ("tags", "7", "Hm.")
    assert episode.turns[0].text == "<think>Hm.</think><action>7</action>"


def test_failed_and_cut_episodes_are_kept_and_say_so(address: str, server: ChatServer, tmp_path: Path) -> None:
    replies = iter(["I cannot say.", "Thought: Long. Action: 50", "Thought: Ok. Action: 1"])
    server.rule = lambda body: message(content=next(replies), finish="length" if len(body["messages"]) == 3 else "stop")

    assert run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "1", "--max-turns", "3")) == 0

    (episode,) = episodes(tmp_path / "out.jsonl")
    assert (episode.status, episode.finish_reason, episode.success) == (Status.TRUNCATED, FinishReason.MAX_TURNS, False)
    assert [turn.action for turn in episode.turns] == [None, None, "1"], "half an action may not be carried out"
    assert [turn.format_valid for turn in episode.turns] == [False, False, True]
    assert [turn.reply_end for turn in episode.turns] == [ReplyEnd.STOP, ReplyEnd.LENGTH, ReplyEnd.STOP]
    assert episode.turns[1].observation.startswith("Invalid format.")


def test_conversations_can_be_learned_from(address: str, server: ChatServer, tmp_path: Path) -> None:
    assert run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "2", "--form", "conversations")) == 0

    found = [record for record in records(tmp_path / "out.jsonl") if isinstance(record, Conversation)]
    assert len(found) == 2
    assert (found[0].success, found[0].reward) == (True, 1.0)
    assert found[0].task is not None
    assert found[0].task.env == "guess"
    asked, reply, *_ = found[0].messages
    assert asked.content == server.texts()[0], "what the model was shown"
    assert reply.content == "<think>\nIt is from 1 to 1000.\n</think>\n\nThought: I halve. Action: 500"
    num_asked = len(server.asked)
    assert run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "2", "--form", "conversations")) == 0
    assert len(server.asked) == num_asked


def test_a_failure_of_the_endpoint_is_no_record(
    address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    server.script.append(Scripted(b"", 503, {"Retry-After": "0"}))  # is asked again, and nobody learns of it

    def refuses_the_second_turn(body: dict[str, Any]) -> bytes:
        if len(body["messages"]) == 1:
            server.script.append(Scripted(b"", 400))
        return halving(body)

    server.rule = refuses_the_second_turn

    assert run(arguments(address, server, out, "--episodes", "2", "--concurrency", "1")) == 1

    said = capsys.readouterr()
    assert "2 episodes could not be played, the last one because: the model's endpoint: status 400, in the middle" in (
        said.err
    )
    assert "out.jsonl: 0 of 2 episodes" in said.out
    assert out.read_bytes() == b""
    server.rule = halving
    assert run(arguments(address, server, out, "--episodes", "2")) == 0, "the same command plays them again"
    assert [episode.success for episode in episodes(out)] == [True, True]


def test_a_conversation_that_outgrows_the_context_is_an_episode_that_ends_there(
    address: str, server: ChatServer, tmp_path: Path
) -> None:
    def holds_one_turn(body: dict[str, Any]) -> bytes:
        if len(body["messages"]) == 3:
            server.script.append(Scripted(b'{"error": {"code": "context_length_exceeded"}}', 400))
        return halving(body)

    server.rule = holds_one_turn

    out = tmp_path / "out.jsonl"
    assert run(arguments(address, server, out, "--episodes", "2", "--concurrency", "1")) == 0

    for episode in episodes(out):
        assert (episode.status, episode.finish_reason) == (Status.TRUNCATED, FinishReason.CONTEXT_LENGTH)
        assert (episode.success, len(episode.turns)) == (False, 2)


def test_a_first_prompt_that_does_not_fit_ends_it_at_once(
    address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.extend([Scripted(b"maximum context length is 64", 400)] * 8)

    assert run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "8")) == 1

    assert "the first prompt and --max-reply-tokens do not fit the model's context" in capsys.readouterr().err


def test_an_endpoint_that_refuses_ends_it_at_once(
    address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("sk-secret\n")
    server.script.extend([Scripted(b"sk-secret is no key", 401)] * 8)

    code = run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "8", "--key-file", f"{tmp_path}/key"))

    said = capsys.readouterr()
    assert code == 1
    assert "the model's endpoint: status 401: check --model-url, --model and the key" in said.err
    assert "sk-secret" not in said.err + said.out
    assert server.keys[0] == "Bearer sk-secret"


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        pytest.param(["--max-tokens", "1500"], "of 1,500 tokens are spent", id="tokens"),
        # A reply costs 100 * 2 + 10 * 30 = 500 millionths.
        pytest.param(
            ["--max-cost", "0.005", "--price-in", "2", "--price-out", "30"], "0.005 of 0.005 is spent", id="cost"
        ),
    ],
)
def test_a_spent_budget_ends_it(
    limit: list[str], told: str, address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"

    code = run(arguments(address, server, out, "--episodes", "20", "--concurrency", "1", *limit))

    said = capsys.readouterr()
    assert code == 3
    assert told in said.err
    num_replies = 10 if "--max-cost" in limit else 14
    assert len(server.asked) == num_replies
    assert sum(len(episode.turns) for episode in episodes(out)) <= num_replies, "an unfinished one is no record"
    assert len(episodes(out)) >= 1
    assert f"{len(episodes(out))} of 20 episodes" in said.err


def test_a_budget_needs_an_endpoint_that_tells_its_tokens(
    address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.rule = lambda _: message(content="Action: 1", usage=False)

    assert run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "1", "--max-tokens", "9999")) == 1
    assert "tells no usage: --max-tokens and --max-cost cannot be kept" in capsys.readouterr().err
    assert run(arguments(address, server, tmp_path / "out.jsonl", "--episodes", "1", "--max-turns", "1")) == 0


def test_a_line_that_was_cut_is_mended_by_name(
    address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert run(arguments(address, server, out, "--episodes", "3", "--concurrency", "1")) == 0
    whole = out.read_bytes()
    out.write_bytes(whole[:-20])

    assert run(arguments(address, server, out, "--episodes", "3")) == 0

    assert re.search(r"out\.jsonl: its last line was cut off; \d+ bytes were removed", capsys.readouterr().err)
    assert len({one.trajectory_id for one in episodes(out)}) == len(episodes(out)) == 3
    out.write_bytes(whole[:-1])
    assert run(arguments(address, server, out, "--episodes", "3")) == 0
    assert out.read_bytes() == whole, "all but the line break was there"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        pytest.param(["--episodes", "2", "--temperature", "0.1"], "has episodes of another model", id="temperature"),
        pytest.param(["--episodes", "2", "--model", "other"], "has episodes of another model", id="model"),
        pytest.param(["--episodes", "2", "--split", "test"], "what is measured is not learned from", id="held out"),
        pytest.param(["--episodes", "2", "--samples", "4"], "make multiples of 4", id="half a group"),
        pytest.param(["--episodes", "2", "--tasks", "1"], "give either", id="two selections"),
        pytest.param([], "give either", id="no selection"),
        pytest.param(["--tasks", "4-2"], "from the lower to the higher", id="range"),
        pytest.param(["--tasks", "x"], "indices and ranges", id="no index"),
        pytest.param(["--episodes", "20000"], "has 10000 tasks in train", id="too many"),
        pytest.param(["--episodes", "2", "--format", "prose"], "there is no format 'prose'", id="format"),
        pytest.param(["--episodes", "2", "--max-cost", "1"], "needs --price-in", id="no prices"),
        pytest.param(["--episodes", "2", "--form", "x"], "give episodes or conversations", id="form"),
        pytest.param(["--episodes", "2", "--model", "expert"], "an environment's own expert's", id="expert"),
        pytest.param(["--episodes", "2", "--model-url", "ftp://x"], "http", id="scheme"),
        pytest.param(["--episodes", "2", "--model-url", "http://a:b@x/"], "holds a user or a password", id="secret"),
        pytest.param(["--episodes", "2", "--key-file", "nowhere"], "nowhere cannot be read", id="key"),
    ],
)
def test_what_cannot_be_collected_is_refused(
    more: list[str], told: str, address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert run(arguments(address, server, out, "--episodes", "1")) == 0
    before, num_asked = out.read_bytes(), len(server.asked)

    assert run(arguments(address, server, out, *more)) == 2

    assert told in capsys.readouterr().err
    assert (out.read_bytes(), len(server.asked)) == (before, num_asked)


def test_a_damaged_file_is_not_written_to(
    address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"messages": []}\n{}\n')

    assert run(arguments(address, server, out, "--episodes", "1")) == 1

    assert "out.jsonl, line 1: no record: " in capsys.readouterr().err
    assert out.read_text() == '{"messages": []}\n{}\n'


def test_held_out_tasks_are_collected_where_that_is_meant(address: str, server: ChatServer, tmp_path: Path) -> None:
    more = ("--episodes", "1", "--split", "test", "--held-out", "--max-turns", "1")

    assert run(arguments(address, server, tmp_path / "out.jsonl", *more)) == 0

    (episode,) = episodes(tmp_path / "out.jsonl")
    assert (episode.task.split, episode.purpose) == ("test", "eval"), "no stage learns from it"


def test_several_environments_take_turns_and_episodes_are_played_at_once(
    address: str, server: ChatServer, tmp_path: Path
) -> None:
    server.rule = later(0.05, hopeless)
    common = ["collect", "guess", "maze", "--url", address, "--model-url", server.url, "--model", "wise"]
    more = ["--episodes", "12", "--samples", "2", "--max-turns", "1"]

    assert run([*common, str(tmp_path / "one.jsonl"), *more, "--concurrency", "1"]) == 0
    alone = server.most_at_once
    server.most_at_once = 0
    assert run([*common, str(tmp_path / "many.jsonl"), *more, "--concurrency", "6"]) == 0

    order = [(one.task.env, one.group_id[-6:], one.sample) for one in episodes(tmp_path / "one.jsonl")]
    assert order[:5] == [
        ("guess", "000000", 0), ("guess", "000000", 1), ("maze", "000000", 0), ("maze", "000000", 1),
        ("guess", "000001", 0),
    ]  # fmt: skip
    assert alone == 1
    assert 4 <= server.most_at_once <= 6


@pytest.mark.parametrize(
    ("signum", "code"),
    [pytest.param(signal.SIGINT, 130, id="Ctrl-C"), pytest.param(signal.SIGKILL, -9, id="kill -9")],
)
def test_what_is_finished_is_kept(signum: int, code: int, address: str, server: ChatServer, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    server.rule = later(0.05, halving)
    command = [GYMFLEET, *arguments(address, server, out, "--episodes", "14", "--concurrency", "2")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not out.is_file() or out.read_bytes().count(b"\n") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signum)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, said
    kept = out.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert 3 <= kept.count(b"\n") < 14
    server.rule = halving

    assert run(arguments(address, server, out, "--episodes", "14")) == 0

    assert out.read_bytes().startswith(kept)
    assert len({one.trajectory_id for one in episodes(out)}) == len(episodes(out)) == 14


def test_two_commands_do_not_write_one_file(
    address: str, server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    server.rule = later(0.2, halving)
    with subprocess.Popen([GYMFLEET, *arguments(address, server, out, "--episodes", "4")]) as first:
        server.wait_asked(1)

        assert run(arguments(address, server, out, "--episodes", "4")) == 1

        first.send_signal(signal.SIGINT)
        first.wait(DEADLINE_S)
    assert "another gymfleet command writes" in capsys.readouterr().err


def test_without_a_gateway_the_environment_is_served_meanwhile(server: ChatServer, tmp_path: Path) -> None:
    server.rule = hopeless
    common = ["collect", "maze", "out.jsonl", "--model-url", server.url.removesuffix("/chat/completions")]

    done = subprocess.run(
        [GYMFLEET, *common, "--model", "wise", "--episodes", "2", "--max-turns", "2"],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env={**os.environ},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout == "out.jsonl: 2 of 2 episodes · 0 solved (0.0 %) · 440 tokens\n"
    assert [one.task.env for one in episodes(tmp_path / "out.jsonl")] == ["maze", "maze"]


def test_the_command_of_the_page_does_what_the_page_says(server: ChatServer, tmp_path: Path) -> None:
    server.rule = hopeless
    command, told = re.findall(
        r"^```\w*\n(.*?)^```", (ROOT / "docs/collect.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "key.txt").write_text("sk-1\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-euc", command.replace("http://localhost:8000/v1", server.url.removesuffix("/chat/completions"))],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout == told
    assert {one.sample for one in episodes(tmp_path / "episodes.jsonl")} == {0, 1}
