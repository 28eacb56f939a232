"""What a judge is shown of episodes: who said what, in order."""

import hashlib
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from gymfleet_contracts.trajectory import Trajectory, Turn

_FEWEST_CHARS: Final = 200
"""That are left of a text: of less nothing could be understood."""
_MAX_MESSAGES: Final = 10_000
_MAX_SHOWN_CHARS: Final = 4_000_000
"""In one question: more than any model's context holds."""


class NotShown(Exception):
    """A judge cannot be shown this; the message says why."""


class Message(NamedTuple):
    """What was said at one time."""

    by: Literal["environment", "agent"]
    text: str


Transcript: TypeAlias = tuple[Message, ...]


def transcript_of(episode: Trajectory, *, thoughts: bool) -> Transcript:
    """Return what was said in an episode. Raises `NotShown` for one without a reply, or with too many.

    Args:
        episode: that was played to its end.
        thoughts: whole replies; otherwise the actions alone.
    """
    if not episode.turns:
        raise NotShown("the trajectory has no turns")
    messages: list[Message] = []
    for turn in episode.turns:
        messages += (Message("environment", turn.observation), Message("agent", _reply(turn, thoughts=thoughts)))
    if episode.final_observation:
        messages.append(Message("environment", episode.final_observation))
    if len(messages) > _MAX_MESSAGES:
        raise NotShown(f"the episode has {len(messages)} messages, a judge is shown {_MAX_MESSAGES} at most")
    return tuple(messages)


def _reply(turn: Turn, *, thoughts: bool) -> str:
    return turn.text if thoughts else turn.action or ""


def fingerprint(transcript: Transcript) -> str:
    """Return a hash by which transcripts stand in an order that says nothing of how they came about."""
    return hashlib.sha256(repr([tuple(message) for message in transcript]).encode()).hexdigest()


def check_length(transcripts: Sequence[Transcript], max_chars: int) -> None:
    """Raise `NotShown` if a transcript is too long."""
    if (longest := max(map(_num_chars, transcripts))) > max_chars:
        raise NotShown(
            f"the transcript has {longest} characters and max_chars is {max_chars}: raise it if the judge's context "
            'allows, or say too_long = "cut"'
        )


def longest_text(transcripts: Sequence[Transcript], max_chars: int) -> int:
    """Return how many characters a text may have so that no transcript has more than `max_chars`.

    Raises `NotShown` where so little would be left that nothing could be understood.
    """
    limit = min(_limit(transcript, max_chars) for transcript in transcripts)
    if limit < _FEWEST_CHARS:
        longest = max(map(len, transcripts))
        raise NotShown(
            f"a transcript of {longest} messages cannot be cut to {max_chars} characters: {limit} would be left of "
            f"each, and {_FEWEST_CHARS} are the least"
        )
    return limit


def _limit(transcript: Transcript, max_chars: int) -> int:
    """Return the largest length at which long texts can be cut so that all fit; `max_chars` if none need be cut."""
    left, lengths = max_chars, sorted(len(message.text) for message in transcript)
    for place, length in enumerate(lengths):
        share = left // (len(lengths) - place)
        if length > share:
            return share
        left -= length
    return max_chars


def common_beginning(transcripts: Sequence[Transcript]) -> int:
    """Return with how many messages all transcripts begin alike."""
    columns = zip(*transcripts, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def as_data(messages: Sequence[Message], limit: int | None) -> list[dict[str, Any]]:
    """Return messages as they are shown; longer texts than `limit` lack their middle, and say how much of it."""
    return [{message.by: _cut(message.text, limit)} for message in messages]


def check_sum(transcripts: Sequence[Transcript], limit: int | None) -> None:
    """Raise `NotShown` if transcripts whose texts are cut at `limit` are too long together."""
    most = _MAX_SHOWN_CHARS if limit is None else limit
    num_chars = sum(min(len(message.text), most) for transcript in transcripts for message in transcript)
    if num_chars > _MAX_SHOWN_CHARS:
        raise NotShown(
            f"the episodes have {num_chars} characters together, and a judge is shown {_MAX_SHOWN_CHARS} at most: cut "
            "them with a lower max_chars"
        )


def _cut(text: str, limit: int | None) -> str | dict[str, Any]:
    if limit is None or len(text) <= limit:
        return text
    head = (limit + 1) // 2
    tail = limit - head
    return {"beginning": text[:head], "left_out_characters": len(text) - limit, "end": text[len(text) - tail :]}


def _num_chars(transcript: Transcript) -> int:
    return sum(len(message.text) for message in transcript)
