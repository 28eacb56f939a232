"""The parts of episodes that a judge sees: who said what, in order."""

import hashlib
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from gymfleet_contracts.trajectory import Trajectory, Turn

_FEWEST_CHARS: Final = 200
"""The fewest characters to which a text may be cut: less could not be understood."""
_MAX_MESSAGES: Final = 10_000
_MAX_SHOWN_CHARS: Final = 4_000_000
"""The limit for one question: more than any model's context holds."""


class NotShown(Exception):
    """A judge cannot be shown this; the message says why."""


class Message(NamedTuple):
    """One message of the environment or the agent."""

    by: Literal["environment", "agent"]
    text: str


Transcript: TypeAlias = tuple[Message, ...]


def transcript_of(episode: Trajectory, *, thoughts: bool) -> Transcript:
    """Return the messages of an episode. Raises `NotShown` if it has no turns, or too many messages.

    Args:
        episode: an episode that was played to its end.
        thoughts: show whole replies; otherwise only the actions.
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
    """Return a hash; sorting by it gives transcripts an order that is unrelated to their origin."""
    return hashlib.sha256(repr([tuple(message) for message in transcript]).encode()).hexdigest()


def check_length(transcripts: Sequence[Transcript], max_chars: int) -> None:
    """Raise `NotShown` if a transcript is too long."""
    if (longest := max(map(_num_chars, transcripts))) > max_chars:
        raise NotShown(
            f"the transcript has {longest} characters and max_chars is {max_chars}: raise it if the judge's context "
            'allows, or say too_long = "cut"'
        )


def longest_text(transcripts: Sequence[Transcript], max_chars: int) -> int:
    """Return the largest text length with which no transcript has more than `max_chars` characters.

    Raises `NotShown` if too little would be left of the texts to be understood.
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
    """Return the largest length to which long texts can be cut so that all fit; `max_chars` if no cut is needed."""
    left, lengths = max_chars, sorted(len(message.text) for message in transcript)
    for place, length in enumerate(lengths):
        share = left // (len(lengths) - place)
        if length > share:
            return share
        left -= length
    return max_chars


def common_beginning(transcripts: Sequence[Transcript]) -> int:
    """Return the number of messages in the common beginning of all transcripts."""
    columns = zip(*transcripts, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def as_data(messages: Sequence[Message], limit: int | None) -> list[dict[str, Any]]:
    """Return messages as the judge sees them; texts longer than `limit` lack their middle, and give its length."""
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
