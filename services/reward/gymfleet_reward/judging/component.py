"""The common part of components that ask a judge."""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Coroutine, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.judging.asking import Asking, AskingOptions
from gymfleet_kit.judging.prompts import Question
from gymfleet_kit.judging.transcript import NotShown, Transcript
from gymfleet_kit.judging.verdict import Values
from pydantic import Field

from gymfleet_reward.component import Component, ComponentError, ComponentOptions
from gymfleet_reward.judging.judge import Judge
from gymfleet_reward.judging.settings import JudgeName


class JudgeOptions(AskingOptions, ComponentOptions):
    """Who judges, by which rubric, and what the judge is shown."""

    on_error: Literal["fail"] = "fail"
    """Without a judge's verdict there is no reward, and never 0: the episode is played again."""
    judge: JudgeName
    """The name of a judge in the reward service's `GYMFLEET_REWARD_JUDGES`."""
    max_tokens: Annotated[int, Field(ge=16, le=65_536), NUMBER] = 1024
    """Maximum tokens of an answer, reasoning included."""


OptionsT = TypeVar("OptionsT", bound=JudgeOptions)


class JudgeComponent(Component[OptionsT]):
    """Asks a judge. The judge is the operator's: a request names it, and does not contain its address."""

    @property
    @abstractmethod
    def asking(self) -> Asking:
        """Return how the judge is asked."""

    @property
    def asked(self) -> Judge:
        """Return the judge. Raises `ComponentError` if there is none of that name."""
        if self.judges is None:
            raise ComponentError("nothing here has judges: the reward service has those in GYMFLEET_REWARD_JUDGES")
        return self.judges.get(self.options.judge)

    def recorded_version(self) -> str:
        """Return the component's version, the judge and its model, and the prompt's version and hash."""
        judge, prompt = self.asked, f"{self.options.prompt_version}:{self.asking.prompt.hash}"
        return f"{self.version} judge={judge.name} model={judge.model} prompt={prompt}"

    def transcripts(self, episodes: Sequence[Trajectory]) -> list[Transcript]:
        """Return the transcript of each episode. Raises `ComponentError` for what cannot be shown."""
        with showing():
            return self.asking.transcripts(episodes)

    async def verdict(self, question: Question) -> Values:
        """Return the judge's verdict. Raises `ComponentError`."""
        return await self.asked.verdict(question, self.options.max_tokens)


class GroupJudgeComponent(JudgeComponent[OptionsT]):
    """Has a judge compare the episodes of a group."""

    per: ClassVar[Literal["episode", "group"]] = "group"

    def check_size(self, episodes: Sequence[Trajectory]) -> None:
        """Raise `ComponentError` for a group of one."""
        if len(episodes) == 1:
            raise ComponentError("it compares the episodes of a group, and this one has a single episode")


@contextlib.contextmanager
def showing() -> Iterator[None]:
    """Raise `ComponentError` if a judge cannot be shown something."""
    try:
        yield
    except NotShown as error:
        raise ComponentError(str(error)) from None


async def together(calls: Sequence[Coroutine[Any, Any, float]]) -> list[float]:
    """Make calls at the same time and return their results; the first failure ends the others."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
