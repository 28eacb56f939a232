"""The interface of a component: one term of the reward, which reads finished episodes and answers numbers."""

from abc import ABC
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from gymfleet_contracts.trajectory import Trajectory, Turn
from gymfleet_kit.sealing import Opener, SealError
from pydantic import BaseModel, ConfigDict, Field, StrictBool

if TYPE_CHECKING:  # they load more than few services need
    from gymfleet_reward.judging.judge import Judges
    from gymfleet_reward.models.reward_models import RewardModels

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Answer: TypeAlias = float | Sequence[float]
"""An episode's number before its weight, or one number for each of its turns; the episode's is their sum."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """An answer, and its version for the record's `scorers`: for components that may change while the service runs."""

    answer: Answer
    version: str


Answers: TypeAlias = Sequence[Answer | Versioned | BaseException]


class ComponentError(Exception):
    """The component can never score this, however often it is tried; the message says why."""


def turns_of(episode: Trajectory) -> tuple[Turn, ...]:
    """Return the turns of an episode. Raises `ComponentError` if it has none: there is no reply to judge."""
    if not episode.turns:
        raise ComponentError("the trajectory has no turns")
    return episode.turns


def reply_tokens(episode: Trajectory) -> list[int]:
    """Return the number of tokens of each reply of an episode. Raises `ComponentError` if it is not known."""
    turns = turns_of(episode)
    if any(turn.text and not turn.response_token_ids for turn in turns):
        raise ComponentError("the replies have no tokens: another model than the policy wrote them")
    return [len(turn.response_token_ids) for turn in turns]


class ComponentOptions(BaseModel):
    """The options of every component, in the recipe's table that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: StrictBool = True
    """Count this component."""
    weight: Number = 1.0
    """Factor of the component's number."""
    on_error: Literal["fail", "zero"] = "fail"
    """The result if the component keeps failing: `fail`, no reward, and the episode is played again; `zero`, the
    component counts 0."""


OptionsT = TypeVar("OptionsT", bound=ComponentOptions)


class Component(ABC, Generic[OptionsT]):
    """One term of the reward. A subclass defines `score`, or `score_batch` if it wants several episodes at once.

    Either may be a coroutine function. One object scores all episodes with the same options. Coroutines of all
    components share one event loop; other functions may be called from several threads at once. A call that raises
    anything but `ComponentError` is tried again.
    """

    Options: ClassVar[type[ComponentOptions]] = ComponentOptions
    version: ClassVar[str] = ""
    """For gymfleet's own components: changes whenever their numbers do. Others are identified by their source."""
    per: ClassVar[Literal["episode", "group"]] = "episode"
    """`group`: `score_batch` gets all episodes of one group, in the order of their samples."""

    opener: Opener | None = None
    """Set by the reward service, if it has a key."""
    judges: "Judges | None" = None
    """Set by the reward service."""
    reward_models: "RewardModels | None" = None
    """Set by the reward service, if it has any."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def score(self, episode: Trajectory) -> Answer | Awaitable[Answer]:
        """Return the number of an episode that was played to its end."""
        raise NotImplementedError

    def score_batch(self, episodes: Sequence[Trajectory]) -> Answers | Awaitable[Answers]:
        """Return one answer for each episode, in their order; an exception in its place fails that episode alone."""
        raise NotImplementedError

    def private(self, episode: Trajectory) -> dict[str, Any]:
        """Return the environment's private data for the reward service: the last value of each key.

        Empty if the environment sent none. Raises `ComponentError` if the data cannot be opened here.
        """
        told: dict[str, Any] = {}
        seen = -1
        for place, sealed in enumerate((episode.sealed, *(turn.sealed for turn in episode.turns))):
            if sealed is None:
                continue
            if self.opener is None:
                raise ComponentError("the episode's private data is sealed: give the service GYMFLEET_REWARD_SEAL_KEY")
            try:
                index, data = self.opener.open(sealed, episode.task)
            except SealError as error:
                raise ComponentError(f"the episode's private data: {error}") from None
            if not seen < index <= place:
                raise ComponentError(f"the episode's private data is not in order: what turn {place} has is of another")
            seen = index
            told |= data
        return told

    def recorded_version(self) -> str:
        """Return the version of a component that comes with gymfleet, for `scorers` of a record.

        If options determine the version, it is more than `version`. Raises `ComponentError` for options that do not fit
        this service.
        """
        return self.version

    def models(self, name: str) -> "RewardModels":
        """Return the service's reward models, to ask one of them. Raises `ComponentError` if it has none."""
        if self.reward_models is None:
            raise ComponentError(f"there is no reward model {name!r} here: name it in GYMFLEET_REWARD_MODELS")
        return self.reward_models

    @classmethod
    def in_batches(cls) -> bool:
        """Return whether the component scores several episodes at once."""
        return cls.score_batch is not Component.score_batch

    @classmethod
    def missing(cls) -> str:
        """Return the method that the component should define but does not, or an empty string."""
        if cls.per == "group":
            return "" if cls.in_batches() else "score_batch"
        return "" if cls.in_batches() or cls.score is not Component.score else "score or score_batch"
