"""A chat completions endpoint that answers late, wrongly, endlessly or not at all."""

import asyncio
import gzip
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from gymfleet_kit import chat_endpoint
from gymfleet_kit.chat_endpoint import ChatEndpoint, KeyUnreadable, ModelEndpoint, NoModelAnswer, read_key

from tests.fixtures.chat_server import ChatServer, Scripted, completion

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-this-is-the-key"


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return path


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to no pauses between tries."""
    monkeypatch.setattr(chat_endpoint, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
async def endpoint(chat: ChatServer) -> AsyncIterator[Callable[..., ChatEndpoint]]:
    """Makes endpoints that ask `chat`."""
    async with AsyncExitStack() as made:

        def make(**given: Any) -> ChatEndpoint:
            asked = ChatEndpoint("shop.user", ModelEndpoint.model_validate({"url": chat.url, "model": "m", **given}))
            made.push_async_callback(asked.aclose)
            return asked

        yield make


Endpoint = Callable[..., ChatEndpoint]


def later(seconds: float) -> float:
    return time.monotonic() + seconds


async def test_what_is_asked_and_what_comes_back(chat: ChatServer, endpoint: Endpoint, key_file: Path) -> None:
    plain, set_up = endpoint(), endpoint(model="big", temperature=0.5, key_file=key_file)

    assert (await plain.reply(HELLO, 7, math.inf)).text == "reply 1"
    assert (await set_up.reply(HELLO, 8, later(5))).text == "reply 2"

    assert chat.asked == [
        {"model": "m", "messages": HELLO, "max_tokens": 7},
        {"model": "big", "temperature": 0.5, "messages": HELLO, "max_tokens": 8},
    ]
    assert chat.keys == [None, f"Bearer {KEY}"]


TOO_LARGE = Scripted(completion("x" * 10_000_000))
NONSENSE = {
    "10 MB": TOO_LARGE,
    "not JSON": Scripted(b"<html>"),
    "nothing": Scripted(b""),
    "no choices": Scripted(b'{"choices": []}'),
    "another shape": Scripted(b'{"choices": [{"text": "hello"}]}'),
    "a list": Scripted(b"[]"),
    "no text": Scripted(completion(None)),
    "a number": Scripted(completion(7)),
    "an empty text": Scripted(completion("")),
    "white space": Scripted(completion(" \n")),
    "half a character": Scripted(b'{"choices": [{"message": {"content": "\\ud800"}}]}'),
    "no UTF-8": Scripted(b'{"choices": [{"message": {"content": "\xff"}}]}'),
    "a million brackets": Scripted(b'{"choices": ' + b"[" * 900_000),
    "compressed": Scripted(gzip.compress(completion("x")), headers={"Content-Encoding": "gzip"}),
    "cut off": Scripted(completion("hello"), cut=True),
    "a server's error": Scripted(completion("hello"), status=503),
    "too many requests": Scripted(completion("hello"), status=429),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_is_asked_again_a_little_and_is_then_a_failure(
    chat: ChatServer, endpoint: Endpoint, answer: Scripted
) -> None:
    chat.script.extend([answer, answer])
    assert (await endpoint().reply(HELLO, 7, later(20))).text == "reply 3"

    chat.script.extend([answer] * 3)
    with pytest.raises(NoModelAnswer, match=r"^shop\.user: ") as caught:
        await endpoint().reply(HELLO, 7, later(20))

    assert len(chat.asked) == 6
    assert "hello" not in str(caught.value)


def said(finish: object = "stop", **message: object) -> Scripted:
    return Scripted(json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode())


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({"content": "hello", "reasoning_content": " Hm. "}, "Hm."),
        ({"content": "hello", "reasoning": "Hm."}, "Hm."),
        ({"content": "hello", "reasoning": {"text": "Hm."}}, ""),
        ({"content": "hello", "reasoning_content": None}, ""),
    ],
)
async def test_reasoning_is_told_apart(
    chat: ChatServer, endpoint: Endpoint, message: dict[str, object], reasoning: str
) -> None:
    chat.script.append(said("length", **message))

    reply = await endpoint().reply(HELLO, 7, later(5))

    assert (reply.text, reply.reasoning, reply.cut) == ("hello", reasoning, True)


async def test_reasoning_without_a_text_is_an_answer_where_that_is_asked_for(
    chat: ChatServer, endpoint: Endpoint
) -> None:
    chat.script.extend([said(content=None, reasoning="Hm.")] * 4)

    with pytest.raises(NoModelAnswer, match="an empty reply"):
        await endpoint().reply(HELLO, 7, later(5))
    reply = await endpoint().reply(HELLO, 7, later(5), reasoning_is_enough=True)

    assert (reply.text, reply.reasoning, reply.cut) == ("", "Hm.", False)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 403, 404, 422])
async def test_a_refusal_is_final_and_no_redirect_is_followed(
    chat: ChatServer, endpoint: Endpoint, status: int, key_file: Path
) -> None:
    with ChatServer() as other:
        chat.script.append(Scripted(completion("x"), status=status, headers={"Location": other.url}))

        with pytest.raises(NoModelAnswer, match=f"status {status}$") as caught:
            await endpoint(key_file=key_file).reply(HELLO, 7, later(5))

        assert (len(chat.asked), other.asked) == (1, [])
        assert caught.value.status == status


@pytest.mark.parametrize(
    ("status", "told", "too_long"),
    [
        pytest.param(400, b'{"error": {"code": "context_length_exceeded"}}', True, id="OpenAI"),
        pytest.param(400, b'{"message": "This model\'s maximum context length is 4096 tokens."}', True, id="vLLM"),
        pytest.param(400, b"The decoder prompt is longer than the maximum model length of 64.", True, id="older vLLM"),
        pytest.param(400, b'{"error": {"type": "exceed_context_size_error"}}', True, id="llama.cpp"),
        pytest.param(422, b"`inputs` tokens + `max_new_tokens` must be <= 4096.", True, id="TGI"),
        pytest.param(413, b"prompt is too long: 210000 tokens > 200000 maximum", True, id="Anthropic"),
        pytest.param(400, b"The input token count exceeds the maximum number of tokens allowed", True, id="Gemini"),
        pytest.param(400, b'{"error": {"code": "content_filter"}}', False, id="a filter"),
        pytest.param(400, b"", False, id="nothing"),
        pytest.param(400, b"context length" + b" " * 2**20, False, id="more than is read"),
        pytest.param(404, b"context_length_exceeded", False, id="another status"),
    ],
)
async def test_a_conversation_that_is_too_long_is_told_apart(
    chat: ChatServer, endpoint: Endpoint, status: int, told: bytes, too_long: bool
) -> None:
    chat.script.append(Scripted(told, status=status))

    with pytest.raises(NoModelAnswer, match=f"status {status}$") as caught:
        await endpoint().reply(HELLO, 7, later(5))

    assert (caught.value.status, caught.value.too_long) == (status, too_long)


async def test_each_answer_has_its_time_and_all_tries_together_have_theirs(
    chat: ChatServer, endpoint: Endpoint
) -> None:
    slow = Scripted(completion("late"), delay_s=1.0)
    chat.script.append(slow)
    assert (await endpoint(timeout_s=0.2).reply(HELLO, 7, later(10))).text == "reply 2"

    chat.script.extend([slow] * 3)
    began = time.monotonic()
    with pytest.raises(NoModelAnswer, match="within the time for it"):
        await endpoint(timeout_s=20).reply(HELLO, 7, later(0.4))
    assert 0.3 < time.monotonic() - began < 0.9

    with pytest.raises(NoModelAnswer, match="within the time for it"):
        await endpoint().reply(HELLO, 7, later(-1))


async def test_a_pause_that_is_asked_for_is_kept_if_there_is_time(chat: ChatServer, endpoint: Endpoint) -> None:
    chat.script.append(Scripted(status=429, headers={"Retry-After": "1"}))
    began = time.monotonic()
    assert (await endpoint().reply(HELLO, 7, later(10))).text == "reply 2"
    assert time.monotonic() - began >= 1

    chat.script.append(Scripted(status=429, headers={"Retry-After": "60"}))
    with pytest.raises(NoModelAnswer, match="status 429"):
        await endpoint().reply(HELLO, 7, later(10))

    chat.script.append(Scripted(status=429, headers={"Retry-After": "61"}))
    with pytest.raises(NoModelAnswer, match="status 429"):
        await endpoint().reply(HELLO, 7, math.inf)


async def test_no_more_calls_at_once_than_allowed(chat: ChatServer, endpoint: Endpoint) -> None:
    chat.script.extend([Scripted(completion("x"), delay_s=0.1)] * 6)
    asked = endpoint(concurrency=2)

    await asyncio.gather(*(asked.reply(HELLO, 7, later(10)) for _ in range(6)))

    assert chat.most_at_once == 2


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}, (7, 2)),
        ({"prompt_tokens": 7}, (7, None)),
        ({"prompt_tokens": -7, "completion_tokens": 2}, (None, None)),
        ({"prompt_tokens": 1.5}, (None, None)),
        ("many", (None, None)),
        (None, (None, None)),
    ],
)
async def test_what_a_reply_took_where_the_endpoint_says_so(
    chat: ChatServer, endpoint: Endpoint, usage: object, told: tuple[int | None, int | None]
) -> None:
    chat.script.append(Scripted(completion("hello", usage=usage)))

    assert (await endpoint().reply(HELLO, 7, later(5)))[:3] == ("hello", *told)


async def test_each_request_waits_for_leave_and_may_have_further_keys(chat: ChatServer, endpoint: Endpoint) -> None:
    leaves: list[int] = []

    async def leave() -> None:
        leaves.append(len(chat.asked))
        if len(leaves) == 3:
            raise PermissionError("enough")

    chat.script.extend([Scripted(status=503)] * 2)
    with pytest.raises(PermissionError):
        await endpoint().reply(HELLO, 7, later(5), before_try=leave, more={"seed": 1})

    assert leaves == [0, 1, 2]
    assert [asked["seed"] for asked in chat.asked] == [1, 1]


async def test_nobody_is_there(chat: ChatServer, endpoint: Endpoint) -> None:
    chat.__exit__(None, None, None)

    with pytest.raises(NoModelAnswer, match="the connection failed: ConnectError"):
        await endpoint().reply(HELLO, 7, later(10))


async def test_the_key_is_in_no_error_and_no_log_line(
    chat: ChatServer,
    endpoint: Endpoint,
    key_file: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    chat.script.extend([Scripted(KEY.encode())] * 3)

    with structlog.testing.capture_logs() as lines, pytest.raises(NoModelAnswer) as caught:
        await endpoint(key_file=key_file).reply(HELLO, 7, later(10))

    assert chat.keys == [f"Bearer {KEY}"] * 3
    assert [line["event"] for line in lines] == ["model.failing"]
    told = [str(caught.value), repr(caught.value), str(lines), caplog.text, *capsys.readouterr()]
    assert not any(KEY in text for text in told)


@pytest.mark.parametrize("content", [b"", b" \n", b"one\ntwo", b"two words", b"\xff\xfe", b"\x00key", b"x" * 5000])
def test_what_is_no_key_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)

    with pytest.raises(KeyUnreadable, match=r"key (cannot be read: it is not ASCII text|holds no key: )") as caught:
        read_key(tmp_path / "key")

    assert "two" not in str(caught.value)


async def test_a_key_may_be_in_a_variable(
    chat: ChatServer, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, key_file: Path
) -> None:
    monkeypatch.setenv("THEIR_KEY", KEY)

    await endpoint(key_env="THEIR_KEY").reply(HELLO, 7, math.inf)

    assert chat.keys == [f"Bearer {KEY}"]
    monkeypatch.setenv("THEIR_KEY", f"{KEY} and more")
    with pytest.raises(KeyUnreadable, match="the variable THEIR_KEY holds no key") as caught:
        endpoint(key_env="THEIR_KEY")
    assert KEY not in str(caught.value)
    with pytest.raises(KeyUnreadable, match="the variable NOT_SET holds no key"):
        endpoint(key_env="NOT_SET")
    with pytest.raises(ValueError, match="not both"):
        endpoint(key_env="THEIR_KEY", key_file=key_file)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        pytest.param({"completion_tokens_details": {"reasoning_tokens": 5}}, 5, id="of OpenAI"),
        pytest.param({"reasoning_tokens": 6}, 6, id="beside the others"),
        pytest.param({"completion_tokens_details": None}, None, id="nothing told"),
        pytest.param({"completion_tokens_details": {"reasoning_tokens": -1}}, None, id="no number"),
    ],
)
async def test_reasoning_tokens_are_told_where_the_endpoint_says_so(
    chat: ChatServer, endpoint: Endpoint, usage: dict[str, Any], tokens: int | None
) -> None:
    chat.script.append(Scripted(completion("x", usage={"prompt_tokens": 1, "completion_tokens": 9, **usage})))

    reply = await endpoint().reply(HELLO, 7, math.inf)

    assert reply.reasoning_tokens == tokens
