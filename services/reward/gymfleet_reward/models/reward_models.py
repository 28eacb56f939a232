"""The reward models of a service, by the names under which recipes ask for them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.chat.transcripts import BadTranscript, Transcript, Transcripts, UnusableTranscripts

from gymfleet_reward.component import ComponentError
from gymfleet_reward.models.embedded import EmbeddedModel, Values
from gymfleet_reward.models.served import ServedModel
from gymfleet_reward.models.tables import EmbeddedTable, ModelTable, Scores, UnusableModel

_COMPONENTS: Final[dict[Scores, str]] = {"episode": "reward_model", "turns": "process_reward_model"}


@dataclass(frozen=True, slots=True)
class _Entry:
    table: ModelTable
    transcripts: Transcripts
    model: EmbeddedModel | ServedModel


class RewardModels:
    """Ask reward models for their numbers.

    Args:
        tables: what the operator set, by name.

    Raises:
        UnusableModel: one has no tokenizer, no template or no key that can be used; the message names it.
    """

    def __init__(self, tables: Mapping[str, ModelTable]) -> None:
        self._entries = {name: _entry(name, table) for name, table in tables.items()}

    def start(self) -> None:
        """Begin to load those that run here."""
        for entry in self._entries.values():
            entry.model.start()

    def loading(self) -> bool:
        """Return whether one of those that run here is still being loaded."""
        return any(entry.model.loading() for entry in self._entries.values())

    def lack(self) -> str | None:
        """Return what keeps the service from being ready: a model that is still being loaded, or cannot be."""
        return next(filter(None, (entry.model.lack() for entry in self._entries.values())), None)

    def close(self) -> None:
        """End what runs here."""
        for entry in self._entries.values():
            entry.model.close()

    def recorded(self, name: str) -> str:
        """Return which model it is, for records. Raises `ComponentError` for a name that the service does not have."""
        table = self._named(name).table
        return f"{name}:{table.path.name if isinstance(table, EmbeddedTable) else table.model}"

    def of_episodes(self, name: str, episodes: Sequence[Trajectory], *, cut_front: bool) -> list[float | BaseException]:
        """Return the number of each episode, or why there is none; blocks.

        Args:
            name: of the model.
            episodes: what it reads.
            cut_front: read the end alone of transcripts that are too long, which otherwise have no number.
        """
        entry = self._entry(name, "episode")

        def written(episode: Trajectory) -> Transcript:
            transcript = entry.transcripts.whole(episode)
            return Transcript(transcript.ids[-entry.table.max_tokens :]) if cut_front else transcript

        found = _asked(name, entry, episodes, written)
        return [one if isinstance(one, BaseException) else one[0] for one in found]

    def of_turns(self, name: str, episodes: Sequence[Trajectory]) -> list[Values | BaseException]:
        """Return the numbers of each episode's turns, or why there are none; blocks."""
        entry = self._entry(name, "turns")
        return _asked(name, entry, episodes, entry.transcripts.by_turns)

    def _named(self, name: str) -> _Entry:
        if (entry := self._entries.get(name)) is None:
            raise ComponentError(f"there is no reward model {name!r} here; known: {', '.join(sorted(self._entries))}")
        return entry

    def _entry(self, name: str, scores: Scores) -> _Entry:
        entry = self._named(name)
        if entry.table.scores != scores:
            raise ComponentError(f"the reward model {name!r} is for the component {_COMPONENTS[entry.table.scores]}")
        return entry


def _entry(name: str, table: ModelTable) -> _Entry:
    try:
        transcripts = Transcripts(table.path if isinstance(table, EmbeddedTable) else table.tokenizer, table.step_tag)
        model = (
            EmbeddedModel(name, table, transcripts.vocab_size)
            if isinstance(table, EmbeddedTable)
            else ServedModel(name, table)
        )
    except (UnusableModel, UnusableTranscripts) as error:
        raise UnusableModel(f"the reward model {name!r}: {error}") from None
    return _Entry(table, transcripts, model)


def _asked(
    name: str, entry: _Entry, episodes: Sequence[Trajectory], written: Callable[[Trajectory], Transcript]
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
