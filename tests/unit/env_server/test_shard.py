"""A shard's loop without a process around it: what becomes of answers that cannot be sent."""

import mmap
import socket
from typing import Any, ClassVar

import pytest
from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.sessions import Sessions
from gymfleet_env_server.shards.channel import Answer, Call, FrameBuffer, decode_report, pack
from gymfleet_env_server.shards.progress import PROGRESS, ShardProgress
from gymfleet_env_server.shards.shard import Shard
from gymfleet_env_server.wire import MAX_RESULT_BYTES, decode, encode
from gymfleet_envs.environment import Outcome
from msgspec import Raw

from tests.conformance.troublesome_env import Troublesome

_INFOS: dict[int, dict[str, Any]] = {1: {"text": "x" * MAX_RESULT_BYTES}, 2: {"text": "\ud800"}, 3: {"big": 2**64}}


class Wordy(Troublesome):
    """Says more with its first observation than can be sent, by its seed, and much with the others."""

    name: ClassVar[str] = "wordy"

    def reset(self, task: int, seed: int) -> str:
        self.start_info = _INFOS.get(seed, {})
        return super().reset(task, seed)

    def step(self, action: str) -> Outcome:
        return Outcome("x" * (MAX_RESULT_BYTES // 3))


@pytest.fixture
def sessions() -> Sessions:
    tasks = Wordy.task_source(None)
    entries = {"wordy": Entry(kind=Wordy, tasks=tasks, spec=Wordy.spec(tasks))}
    return Sessions("p", entries, Limits(10**6, lambda *_: None), lease_s=60, expert_splits=())


def answer(sessions: Sessions, op: str, session_id: str = "", **body: Any) -> Answer:
    """A shard's answer to one call."""
    front, back = socket.socketpair()
    with front, back:
        front.sendall(pack([Call(1, op, session_id, Raw(encode(body)))]))
        front.shutdown(socket.SHUT_WR)
        progress = ShardProgress(mmap.mmap(-1, PROGRESS.size), ["wordy"])
        Shard(back, sessions, Limits(10**6, lambda *_: None), progress).run(FrameBuffer(), [])
        reports = map(decode_report, FrameBuffer().feed(front.recv(1 << 16)))
    (told,) = (told for report in reports for told in report.answers)
    return told


@pytest.mark.parametrize("seed", _INFOS)
def test_session_whose_first_answer_cannot_be_sent_is_not_kept(sessions: Sessions, seed: int) -> None:
    told = answer(sessions, "open", env="wordy", task_index=0, seed=seed)

    assert not told.ok
    assert (len(sessions), sessions.counts.slots) == (0, 0), "nobody knows its id"


def test_children_that_no_answer_holds_are_not_kept_and_their_parent_goes_on(sessions: Sessions) -> None:
    session_id = decode(answer(sessions, "open", env="wordy", task_index=0).payload)["session_id"]
    sessions.step(session_id, 0, "go")

    told = answer(sessions, "fork", session_id, count=4)

    problem = decode(told.payload)
    assert (told.ok, problem["type"]) == (False, "/problems/validation"), "the environment has not failed"
    assert "fewer" in problem["detail"]
    assert (len(sessions), sessions.counts.slots) == (1, 1)
    sessions.step(session_id, 1, "go")
