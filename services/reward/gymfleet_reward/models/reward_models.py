"""The reward models of a service, by the names that recipes use for them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.chat.transcripts import BadTranscript, Transcript

from gymfleet_reward.component import ComponentError
from gymfleet_reward.models.embedded import Values
from gymfleet_reward.models.entries import Entry, ReloadedEntry, entry_of
from gymfleet_reward.models.tables import ModelTable, Scores

T = TypeVar("T")
_COMPONENTS: Final[dict[Scores, str]] = {"episode": "reward_model", "turns": "process_reward_model"}


class Said(NamedTuple, Generic[T]):
    """A reward model's answer for some episodes."""

    numbers: list[T | BaseException]
    """The numbers of each episode, or why there are none."""
    model: str
    """The model's identity, for records; for a model that may be replaced, also that of its weights."""


class RewardModels:
    """Ask reward models for their numbers.

    Args:
        tables: the operator's settings, by name.

    Raises:
        UnusableModel: a model has no usable tokenizer, template or key; the message names the model.
    """

    def __init__(self, tables: Mapping[str, ModelTable]) -> None:
        self._entries = {name: entry_of(name, table) for name, table in tables.items()}

    def start(self) -> None:
        """Begin to load the models that run here."""
        for entry in self._entries.values():
            entry.start()

    def loading(self) -> bool:
        """Return whether one of the models that run here is still being loaded."""
        return any(entry.loading() for entry in self._entries.values())

    def lack(self) -> str | None:
        """Return what keeps the service from being ready: a model that is still being loaded or cannot be loaded."""
        return next(filter(None, (entry.lack() for entry in self._entries.values())), None)

    def close(self) -> None:
        """Close all models."""
        for entry in self._entries.values():
            entry.close()

    def recorded(self, name: str) -> str:
        """Return a model's identity, for records. Raises `ComponentError` for a name that is unknown here."""
        return self._named(name).recorded

    def of_episodes(self, name: str, episodes: Sequence[Trajectory], *, cut_front: bool) -> Said[float]:
        """Return the number of each episode, or why there is none; blocks. Raises as `of_turns`.

        Args:
            name: the model's name.
            episodes: the episodes that it reads.
            cut_front: read only the end of transcripts that are too long, which otherwise have no number.
        """
        with self._entry(name, "episode").held() as entry:

            def written(episode: Trajectory) -> Transcript:
                transcript = entry.transcripts.whole(episode)
                return Transcript(transcript.ids[-entry.table.max_tokens :]) if cut_front else transcript

            found = _asked(name, entry, episodes, written)
            return Said([one if isinstance(one, BaseException) else one[0] for one in found], entry.recorded)

    def of_turns(self, name: str, episodes: Sequence[Trajectory]) -> Said[Values]:
        """Return the numbers of each episode's turns, or why there are none; blocks.

        Raises:
            ComponentError: there is no such model, it is for another component, or its files cannot be used.
            ModelAway: its files are not there, or are being replaced.
        """
        with self._entry(name, "turns").held() as entry:
            return Said(_asked(name, entry, episodes, entry.transcripts.by_turns), entry.recorded)

    def _named(self, name: str) -> Entry | ReloadedEntry:
        if (entry := self._entries.get(name)) is None:
            raise ComponentError(f"there is no reward model {name!r} here; known: {', '.join(sorted(self._entries))}")
        return entry

    def _entry(self, name: str, scores: Scores) -> Entry | ReloadedEntry:
        entry = self._named(name)
        if entry.table.scores != scores:
            raise ComponentError(f"the reward model {name!r} is for the component {_COMPONENTS[entry.table.scores]}")
        return entry


def _asked(
    name: str, entry: Entry, episodes: Sequence[Trajectory], written: Callable[[Trajectory], Transcript]
) -> list[Values | BaseException]:
    found: dict[int, Values | BaseException] = {}
    asked: dict[int, Transcript] = {}
    for place, episode in enumerate(episodes):
        try:
            transcript = written(episode)
            _require_short(name, transcript, entry.table.max_tokens)
        except BadTranscript as error:
            found[place] = ComponentError(str(error))
        except ComponentError as error:
            found[place] = error
        else:
            asked[place] = transcript
    answers = entry.model.values(list(asked.values())) if asked else []
    found |= {place: _finite(name, values) for place, values in zip(asked, answers, strict=True)}
    return [found[place] for place in range(len(episodes))]


def _require_short(name: str, transcript: Transcript, max_tokens: int) -> None:
    if len(transcript.ids) > max_tokens:
        raise ComponentError(
            f"the transcript has {len(transcript.ids)} tokens, the reward model {name!r} takes {max_tokens}"
        )


def _finite(name: str, values: Values | BaseException) -> Values | BaseException:
    if not isinstance(values, BaseException) and not all(map(math.isfinite, values)):
        return ComponentError(f"the reward model {name!r} answered a number that is not finite")
    return values
