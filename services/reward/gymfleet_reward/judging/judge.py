"""A judge: a model that is asked for each verdict only once."""

import asyncio
import contextlib
import hashlib
import math
import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
from gymfleet_kit.chat_endpoint import ChatEndpoint, ModelReply, NoModelAnswer
from gymfleet_kit.judging.prompts import NONCE_BYTES, Question
from gymfleet_kit.judging.verdict import NoVerdict, Values

from gymfleet_reward.component import ComponentError
from gymfleet_reward.judging.budget import Budget, Pace
from gymfleet_reward.judging.cache import Recent, Shared
from gymfleet_reward.judging.settings import JudgeSettings
from gymfleet_reward.metrics import JUDGE_CACHED, JUDGE_CALLS, JUDGE_TOKENS

_ATTEMPTS: Final = 3
"""Maximum number of answers requested until one is a verdict."""
_CLOSING_S: Final = 2.0

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class JudgeFailed(ComponentError):
    """The judge gave no verdict: there is no reward, and none is made up."""


@dataclass(eq=False)
class _Inquiry:
    """A question that is under way."""

    question: Question
    max_tokens: int
    """Maximum tokens of the answer."""
    num_waiting: int = 0
    """Number of callers that want the verdict."""
    task: "asyncio.Task[Values]" = field(init=False)


class Judge:
    """One judge of a process: its budget, and the verdicts that are known.

    Args:
        name: the name that requests use.
        settings: its endpoint and limits.
        redis_url: where verdicts are shared; None keeps them to this process.
    """

    def __init__(self, name: str, settings: JudgeSettings, redis_url: str | None) -> None:
        """Raises `KeyUnreadable`."""
        self.name = name
        self.model = settings.model
        self._settings = settings
        self._redis_url = redis_url
        self._budget = Budget(name, settings)
        self._recent = Recent()
        self._asking = _Asking(name, settings, self._budget, self._recent, redis_url)

    async def verdict(self, question: Question, max_tokens: int) -> Values:
        """Return the verdict on a question, whose answer may have `max_tokens` tokens.

        Raises `JudgeFailed` or `BudgetSpent`.
        """
        key = self._key(question, max_tokens)
        if (known := self._recent.get(key)) is not None:
            JUDGE_CACHED.labels(self.name).inc()
            return known
        return await self._asking_here().verdict(key, question, max_tokens)

    def close(self) -> None:
        """End all questions under way. Do not call this in the event loop that asks."""
        self._asking.close()

    def _key(self, question: Question, max_tokens: int) -> str:
        """Return a hash of everything that the answer depends on. The nonce is not part of it."""
        one = self._settings
        parts = (
            self.name, str(one.url), one.model, one.temperature, one.json_schema, question.messages(""),
            max_tokens, question.shape.json_schema,
        )  # fmt: skip
        return hashlib.sha256(_encode(parts)).hexdigest()

    def _asking_here(self) -> "_Asking":
        """Return the part for this event loop, which is a new one after a component has blocked the last."""
        if self._asking.is_elsewhere():
            self._asking.closing()
            self._asking = _Asking(self.name, self._settings, self._budget, self._recent, self._redis_url)
        return self._asking


class _Asking:
    """The part of a judge that belongs to one event loop: its connections, and the questions under way."""

    def __init__(
        self, name: str, settings: JudgeSettings, budget: Budget, recent: Recent, redis_url: str | None
    ) -> None:
        self._name = name
        self._json_schema = settings.json_schema
        self._budget = budget
        self._recent = recent
        self._endpoint = ChatEndpoint(f"the judge {name}", settings)
        self._shared = None if redis_url is None else Shared(redis_url)
        self._pace = Pace(settings.requests_per_minute)
        self._under_way: dict[str, _Inquiry] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_elsewhere(self) -> bool:
        """Return whether this belongs to an event loop other than the running one."""
        return self._loop not in (None, asyncio.get_running_loop())

    async def verdict(self, key: str, question: Question, max_tokens: int) -> Values:
        """Return the verdict; callers that ask the same meanwhile get the same verdict."""
        self._loop = asyncio.get_running_loop()
        inquiry = self._under_way.get(key)
        if inquiry is None or inquiry.task.done():
            inquiry = self._under_way[key] = _Inquiry(question, max_tokens)
            inquiry.task = asyncio.create_task(self._found(key, inquiry))
            inquiry.task.add_done_callback(partial(self._ended, key, inquiry))
        else:
            JUDGE_CACHED.labels(self._name).inc()
        inquiry.num_waiting += 1
        try:
            # A caller whose time is up tries again, and finds the question that was asked for it still under way.
            return await asyncio.shield(inquiry.task)
        finally:
            inquiry.num_waiting -= 1

    def close(self) -> None:
        """End all questions under way. Do not call this in the event loop that asks."""
        if (closing := self.closing()) is not None:
            with contextlib.suppress(Exception):  # the loop may be blocked, and the process ends
                closing.result(_CLOSING_S)

    def closing(self) -> "Future[None] | None":
        """End all questions under way as soon as the event loop gets to it."""
        if self._loop is None or not self._loop.is_running():
            return None
        return asyncio.run_coroutine_threadsafe(self._aclose(), self._loop)

    async def _aclose(self) -> None:
        tasks = [inquiry.task for inquiry in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._endpoint.aclose()
        if self._shared is not None:
            await self._shared.aclose()

    def _ended(self, key: str, inquiry: _Inquiry, task: "asyncio.Task[Values]") -> None:
        if self._under_way.get(key) is inquiry:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # there may be nobody left who looks at it

    async def _found(self, key: str, inquiry: _Inquiry) -> Values:
        values = None if self._shared is None else await self._shared.get(key)
        if values is None:
            values = await self._asked(inquiry)
            if self._shared is not None:
                await self._shared.put(key, values)
        else:
            JUDGE_CACHED.labels(self._name).inc()
        self._recent.put(key, values)
        return values

    async def _asked(self, inquiry: _Inquiry) -> Values:
        reason = ""
        for _ in range(_ATTEMPTS):
            nonce = secrets.token_hex(NONCE_BYTES)
            reply = await self._reply(inquiry, nonce)
            try:
                values = inquiry.question.shape.values(reply.text, nonce)
            except NoVerdict as error:
                JUDGE_CALLS.labels(self._name, "nonsense").inc()
                reason = str(error)
                continue
            JUDGE_CALLS.labels(self._name, "answered").inc()
            return values
        raise JudgeFailed(f"the judge {self._name} gave no verdict in {_ATTEMPTS} answers: of the last, {reason}")

    async def _reply(self, inquiry: _Inquiry, nonce: str) -> ModelReply:
        question = inquiry.question
        messages = question.messages(nonce)
        try:
            reply = await self._endpoint.reply(
                messages, inquiry.max_tokens, math.inf,
                before_try=partial(self._leave, inquiry), more=self._form(question),
            )  # fmt: skip
        except NoModelAnswer as error:
            JUDGE_CALLS.labels(self._name, "failed").inc()
            raise JudgeFailed(str(error)) from None
        self._count_tokens(reply, messages, inquiry.max_tokens)
        return reply

    async def _leave(self, inquiry: _Inquiry) -> None:
        """Wait until a request may be made."""
        self._budget.check()
        await self._pace.wait(lambda: inquiry.num_waiting > 0)
        if not inquiry.num_waiting:
            raise JudgeFailed(f"nobody waits for the judge {self._name} any more")
        self._budget.take_call()

    def _form(self, question: Question) -> dict[str, Any]:
        if not self._json_schema:
            return {}
        schema = {"name": "verdict", "strict": True, "schema": question.shape.json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def _count_tokens(self, reply: ModelReply, messages: list[dict[str, str]], max_tokens: int) -> None:
        num_bytes = sum(len(message["content"].encode()) for message in messages)
        prompt = num_bytes if reply.prompt_tokens is None else reply.prompt_tokens
        completion = max_tokens if reply.completion_tokens is None else reply.completion_tokens
        self._budget.take_tokens(prompt + completion)
        JUDGE_TOKENS.labels(self._name, "prompt").inc(prompt)
        JUDGE_TOKENS.labels(self._name, "completion").inc(completion)


class Judges:
    """The judges of a process by their names.

    Args:
        settings: the endpoint and limits of each, by name.
        redis_url: where verdicts are shared; None keeps them to this process.
    """

    def __init__(self, settings: Mapping[str, JudgeSettings], redis_url: str | None = None) -> None:
        """Raises `KeyUnreadable`."""
        self._judges = {name: Judge(name, one, redis_url) for name, one in settings.items()}

    def get(self, name: str) -> Judge:
        """Return a judge. Raises `ComponentError` for a name that the operator has not given."""
        if (judge := self._judges.get(name)) is None:
            known = ", ".join(sorted(self._judges)) or "none"
            raise ComponentError(f"this service has no judge {name}, it has {known}: see GYMFLEET_REWARD_JUDGES")
        return judge

    def close(self) -> None:
        """End all questions under way. Do not call this in the event loop that asks."""
        for judge in self._judges.values():
            judge.close()
