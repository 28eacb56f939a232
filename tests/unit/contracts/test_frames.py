"""Frames of the stream: several of one moment share a message."""

from collections import deque

import msgspec
import pytest
from gymfleet_contracts.frames import MAX_FRAME_BYTES, MAX_FRAMES, RawReply, encode, join_frames, split_frames

decode = msgspec.msgpack.Decoder().decode


@pytest.mark.parametrize("count", [2, 15, 16, 512])
def test_frames_of_one_moment_are_one_array(count: int) -> None:
    frames = [encode({"id": n}) for n in range(count)]
    outbox = deque(frames)

    size, message = join_frames(outbox)

    assert not outbox
    assert decode(message) == [{"id": n} for n in range(count)]
    assert [bytes(frame) for frame in split_frames(message)] == frames
    assert size == sum(map(len, frames))


def test_one_frame_goes_as_it_is() -> None:
    frame = encode({"id": 1})

    assert join_frames(deque([frame])) == (len(frame), frame)
    assert split_frames(frame) == (frame,)
    assert split_frames(b"") == (b"",)


def test_messages_stay_below_the_limit_and_keep_the_order() -> None:
    frames = [encode("x" * length) for length in (10, 400_000, 700_000, 5_000_000, *[1] * 600)]
    outbox, messages = deque(frames), []
    while outbox:
        messages.append(join_frames(outbox)[1])

    found = [bytes(frame) for message in messages for frame in split_frames(message)]
    assert found == frames
    assert [len(split_frames(message)) for message in messages] == [2, 1, 1, 512, 88]
    assert all(len(message) < MAX_FRAME_BYTES for message in messages if message != frames[3]), "that one goes alone"


def test_a_message_of_too_many_frames_is_refused_before_it_is_read() -> None:
    split_frames(encode([0] * MAX_FRAMES))
    with pytest.raises(msgspec.DecodeError, match="at most 65535 frames"):
        split_frames(encode([0] * (MAX_FRAMES + 1)))


@pytest.mark.parametrize(
    ("reply", "failed"),
    [
        ({"id": 1, "ok": {}}, False),
        ({"id": 1, "ok": {}, "problem": None}, False),
        ({"id": 1, "problem": {"title": "gone"}}, True),
    ],
)
def test_a_reply_with_a_problem_has_failed(reply: dict[str, object], failed: bool) -> None:
    assert msgspec.msgpack.decode(encode(reply), type=RawReply).failed is failed
