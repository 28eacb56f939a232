"""What components that ask a judge have in common."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field, StrictBool

from gymfleet_reward.component import Component, ComponentError, ComponentOptions
from gymfleet_reward.judging.escaping import shown
from gymfleet_reward.judging.judge import Judge
from gymfleet_reward.judging.prompts import DEFAULT_RUBRIC, Prompt, Question
from gymfleet_reward.judging.settings import JudgeName
from gymfleet_reward.judging.transcript import (
    Transcript,
    as_data,
    check_length,
    check_sum,
    common_beginning,
    longest_text,
    transcript_of,
)
from gymfleet_reward.judging.verdict import Shape

UNDECIDED: Final = 0.5
"""Between episodes that say the same, or of which neither is better."""


class JudgeOptions(ComponentOptions):
    """Who judges, by what, and what it is shown."""

    on_error: Literal["fail"] = "fail"
    """A judge that gives no verdict makes no reward, and never 0: the episode is played anew."""
    judge: JudgeName
    """One of those in the reward service's `GYMFLEET_REWARD_JUDGES`."""
    rubric: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    """By what it judges, in words for the judge; by default reaching the goal, then few steps, then coming close."""
    thoughts: StrictBool = True
    """Show whole replies; otherwise the actions alone."""
    max_chars: Annotated[int, Field(ge=1000, le=4_000_000), NUMBER] = 60_000
    """Of an episode's observations and replies together, before they are written as JSON."""
    too_long: Literal["refuse", "cut"] = "refuse"
    """What a longer episode leads to: `refuse`, no reward; `cut`, its longest texts lack their middle, and the judge is
    told so."""
    max_tokens: Annotated[int, Field(ge=16, le=65_536), NUMBER] = 1024
    """Of an answer, reasoning included."""
    prompt_version: Literal[1] = 1
    """Which wording the judge is given; a later gymfleet may have more."""


OptionsT = TypeVar("OptionsT", bound=JudgeOptions)


class JudgeComponent(Component[OptionsT]):
    """Asks a judge. It is a judge of the operator: a request names it, and says nothing of where it is."""

    @property
    @abstractmethod
    def prompt(self) -> Prompt:
        """How the judge is asked."""

    @property
    def rubric(self) -> str:
        """Return by what the judge judges."""
        return self.options.rubric or DEFAULT_RUBRIC

    @property
    def asked(self) -> Judge:
        """Return the judge. Raises `ComponentError` where there is none of that name."""
        if self.judges is None:
            raise ComponentError("nothing here has judges: the reward service has those in GYMFLEET_REWARD_JUDGES")
        return self.judges.get(self.options.judge)

    def recorded_version(self) -> str:
        """Return the component's version, the judge and its model, and the prompt's version and hash."""
        judge, options = self.asked, self.options
        return (
            f"{self.version} judge={judge.name} model={judge.model} prompt={options.prompt_version}:{self.prompt.hash}"
        )

    def transcripts(self, episodes: Sequence[Trajectory]) -> list[Transcript]:
        """Return what was said in each. Raises `ComponentError` for what cannot be shown."""
        found = [transcript_of(episode, thoughts=self.options.thoughts) for episode in episodes]
        if self.options.too_long == "refuse":
            check_length(found, self.options.max_chars)
        return found

    def question(self, transcripts: dict[str, Transcript], shape: Shape, around: str | None = None) -> Question:
        """Return the question about transcripts under their names.

        What all of them begin with is shown once, as `beginning`. With `around`, they stand in a table of that name.
        """
        options, each = self.options, list(transcripts.values())
        limit = longest_text(each, options.max_chars) if options.too_long == "cut" else None
        check_sum(each, limit)
        alike = common_beginning(each) if len(each) > 1 else 0
        data: dict[str, Any] = {name: as_data(one[alike:], limit) for name, one in transcripts.items()}
        data = data if around is None else {around: data}
        if alike:
            data = {"beginning": as_data(each[0][:alike], limit), **data}
        return Question(self.prompt.system, shown(data), shape, options.max_tokens)


class GroupJudgeComponent(JudgeComponent[OptionsT]):
    """Has a judge compare the episodes of a group."""

    per: ClassVar[Literal["episode", "group"]] = "group"

    def check_size(self, episodes: Sequence[Trajectory]) -> None:
        """Raise `ComponentError` for a group of one."""
        if len(episodes) == 1:
            raise ComponentError("it compares the episodes of a group, and this one has a single episode")


async def together(calls: Sequence[Coroutine[Any, Any, float]]) -> list[float]:
    """Return what calls that are made at the same time return; the first failure ends the others."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
