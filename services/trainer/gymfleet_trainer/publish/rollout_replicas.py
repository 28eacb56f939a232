"""All rollout replicas as one: calls to every replica, and what happens when some do not answer.

A replica that does not answer while others do is left out; it gets the newest version separately when it
is back. As long as none answers, calls are repeated until a deadline.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

import structlog
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import GroupRequest, Policy, SleepRequest, StagedVersion, StageVersion, SubmitJob
from gymfleet_kit.discovery import Discovery
from gymfleet_kit.retries import Retries
from gymfleet_kit.streams import RedisClient
from prometheus_client import Gauge

from gymfleet_trainer.errors import Stalled
from gymfleet_trainer.publish.ownership import PolicyOwnership
from gymfleet_trainer.publish.policy_endpoint import NoAnswer, PolicyCalls, VersionRefused, readiness
from gymfleet_trainer.publish.transfers.base import Offer
from gymfleet_trainer.settings import TrainerSettings

log = structlog.get_logger()
T = TypeVar("T")

REPLICAS: Final = Gauge("gymfleet_trainer_replicas", "Rollout replicas by the policy version that they have", ["state"])

_PAUSE_S: Final = 0.25
_GLANCE_S: Final = 5.0
_GLANCE_GRACE_S: Final = 2.0
"""DNS may list a machine for minutes after it has gone, which must not slow down every publish."""
_STAGE_GRACE_S: Final = 30.0
"""How much longer than the first replica another one may take to load, since the others sample nothing meanwhile."""
_COMMIT_GRACE_S: Final = 5.0


class RolloutReplicas:
    """The replicas behind `settings.rollout_url`: every address of each of its hosts."""

    def __init__(self, settings: TrainerSettings, redis: RedisClient, run_id: str) -> None:
        self._urls = settings.rollout_url
        self._timeout_s = settings.publish_timeout_s
        self._calls = PolicyCalls(settings.rollout_api_key)
        self._discovery = Discovery(url.strip() for url in settings.rollout_url.split(","))
        self._seen: dict[str, Policy] = {}
        self._absent: set[str] = set()
        self.ownership = PolicyOwnership(redis, run_id)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.ownership.close()
        await self._calls.aclose()

    async def glance(self, *, timeout_s: float = _GLANCE_S) -> dict[str, Policy]:
        """Return the policy of each replica that answers at once. Raises VersionRefused if all refuse the key."""
        urls = await self._discovery.urls()
        answers = await _settled(
            {url: self._calls.policy(url, timeout_s=timeout_s) for url in urls}, grace_s=_GLANCE_GRACE_S
        )
        present = {url: answer for url, answer in answers.items() if isinstance(answer, Policy)}
        if not present:
            _raise_refusal(answers)
        self._seen |= present
        absent = set(urls) - present.keys()
        for url in sorted(absent - self._absent):
            log.warning("replica.absent", replica=url, reason=str(answers[url]))
        for url in sorted(self._absent & present.keys()):
            log.info("replica.returned", replica=url)
        self._absent = absent
        return present

    async def present(self) -> dict[str, Policy]:
        """Do the same as `glance`, but wait until at least one replica answers. Raises Stalled."""
        try:
            return await _retries("rollout.unanswered").call(self._some, timeout_s=self._timeout_s)
        except NoAnswer:
            reason = await self.readiness()
            raise Stalled(f"no answer from the rollout service at {self._urls} ({reason})") from None

    async def _some(self) -> dict[str, Policy]:
        present = await self.glance()
        if not present:
            raise NoAnswer(f"no replica of {self._urls} answers")
        return present

    async def require_playable(self, groups: Iterable[GroupRequest]) -> None:
        """Have every replica that answers check these groups, which are not played. Raises VersionRefused, Stalled."""
        body = SubmitJob(groups=tuple(groups))
        await self._until_answered(
            "check",
            lambda: self._all_answer(lambda url: self._calls.check(url, body, timeout_s=self._timeout_s)),
        )

    def count(self, present: Mapping[str, Policy], num_behind: int) -> None:
        """Report how many replicas have the newest version, how many have another one, and how many do not answer."""
        REPLICAS.labels("current").set(len(present) - num_behind)
        REPLICAS.labels("behind").set(num_behind)
        REPLICAS.labels("absent").set(len(self._absent))

    async def policy(self) -> Policy:
        """Return the policy of all replicas as if they were one service, for the run's summary."""
        present = list((await self.present()).values())
        return present[0].model_copy(
            update={
                "live_version": max(policy.live_version for policy in present),
                "num_engines": sum(policy.num_engines for policy in present),
                "tokens_generated": sum(policy.tokens_generated for policy in self._seen.values()),
            }
        )

    async def stage(
        self,
        body: StageVersion,
        urls: Iterable[str],
        *,
        alone: bool = False,
        offer: Callable[[StageVersion, Collection[str]], Offer] = Offer,
    ) -> dict[str, StagedVersion]:
        """Load the version on these replicas, and return the probe answers of those that loaded it, at least one.

        `offer` determines how they get it; it is called anew for each attempt.

        Raises:
            VersionRefused: a replica refused the version.
            NoAnswer: none answered, and `alone` forbids trying other replicas.
            Stalled: none answered before the deadline.
        """
        deadline = time.monotonic() + self._timeout_s
        again = False

        async def once() -> dict[str, StagedVersion]:
            nonlocal urls, again
            if again:
                urls = await self.present()  # the replicas may have other addresses by now
                await self.refuse(body.version, urls)  # the version may be staged although the answer was lost
            again = True
            return await self._stage(offer(body, list(urls)), deadline)

        try:
            retries = _retries("version.not_answered", call="stage", version=body.version)
            return await retries.call(once, timeout_s=self._timeout_s, attempts=1 if alone else None)
        except NoAnswer as error:
            if alone:
                raise
            raise Stalled(f"staging a version: no answer from the rollout service at {error}") from None

    async def _stage(self, offer: Offer, deadline: float) -> dict[str, StagedVersion]:
        timeout_s = max(deadline - time.monotonic(), _PAUSE_S)

        async def asked(url: str) -> StagedVersion:
            try:
                return await self._calls.stage(url, offer.bodies[url], timeout_s=timeout_s)
            finally:
                offer.answered(url)

        async with offer:
            answers = await _settled({url: asked(url) for url in offer.bodies}, grace_s=_STAGE_GRACE_S)
        _raise_refusal(answers)
        staged = {url: answer for url, answer in answers.items() if isinstance(answer, StagedVersion)}
        if not staged:
            raise NoAnswer(_reasons(answers))
        self._leave_out(answers, "stage", offer.version)
        return staged

    async def commit(self, version: int, urls: Iterable[str]) -> None:
        """Make the staged version live on these replicas, or at least on one of them.

        Raises:
            VersionRefused: the version is no longer staged on any of them.
            Stalled: none answered.
        """
        # Announce the version first, so that a replica that starts from now on waits for it.
        await self.ownership.say(version)
        answers = await _settled({url: self._commit(url, version) for url in urls}, grace_s=_COMMIT_GRACE_S)
        if any(answer is None for answer in answers.values()):
            self._leave_out(answers, "commit", version)
            return
        _raise_refusal(answers)
        raise Stalled(f"committing a version: no answer from the rollout service at {_reasons(answers)}")

    async def refuse(self, version: int, urls: Iterable[str]) -> None:
        """Withdraw a staged version; a replica that does not have it staged, or is gone, is no error."""
        answers = await _settled(
            {url: self._calls.refuse(url, version, timeout_s=self._timeout_s) for url in urls}, grace_s=_COMMIT_GRACE_S
        )
        for url, answer in answers.items():
            if isinstance(answer, Exception):
                log.info("version.not_staged", version=version, replica=url, reason=str(answer))

    async def sleep(self, lease_s: float) -> None:
        """Have the engines of every replica that answers sleep. Raises VersionRefused, Stalled."""
        await self._until_answered("sleep", lambda: self.sleep_once(lease_s, timeout_s=self._timeout_s))

    async def wake(self) -> None:
        """Wake the engines of every replica that answers. Raises VersionRefused, Stalled."""
        await self._until_answered("wake", lambda: self.wake_once(timeout_s=self._timeout_s))

    async def sleep_once(self, lease_s: float, *, timeout_s: float) -> None:
        """Do the same as `sleep`, without a second try. Raises VersionRefused, NoAnswer."""
        body = SleepRequest(lease_s=lease_s)
        await self._all_answer(lambda url: self._calls.sleep(url, body, timeout_s=timeout_s))

    async def wake_once(self, *, timeout_s: float) -> None:
        """Do the same as `wake`, without a second try. Raises VersionRefused, NoAnswer."""
        await self._all_answer(lambda url: self._calls.wake(url, timeout_s=timeout_s))

    async def _all_answer(self, call: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        present = await self._some()
        answers = await _settled({url: call(url) for url in present}, grace_s=_STAGE_GRACE_S)
        _raise_refusal(answers)
        if silent := {url: answer for url, answer in answers.items() if isinstance(answer, NoAnswer)}:
            raise NoAnswer(_reasons(silent))

    async def _until_answered(self, call: str, once: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await _retries("engines.not_answered", call=call).call(once, timeout_s=self._timeout_s)
        except NoAnswer as error:
            raise Stalled(f"rollout replicas should {call}: no answer from the rollout service at {error}") from None

    async def readiness(self) -> str:
        """Return each replica's answer to `/readyz`, for an error message; `ready` if one can be given a version."""
        urls = await self._discovery.urls()
        if not urls:
            return f"{self._urls} says: no address is known for it"
        if await self.glance():
            return "ready"
        said = await asyncio.gather(*(readiness(url) for url in urls))
        return "; ".join(f"{url} says: {answer}" for url, answer in zip(urls, said, strict=True))

    async def _commit(self, url: str, version: int) -> None:
        deadline = time.monotonic() + self._timeout_s

        async def once() -> None:
            try:
                await self._calls.commit(url, version, timeout_s=max(deadline - time.monotonic(), _PAUSE_S))
            except VersionRefused:
                # The first attempt may have succeeded although its answer was lost.
                if (await self._calls.policy(url, timeout_s=_GLANCE_S)).live_version != version:
                    raise
            except NoAnswer:
                if url not in await self._discovery.urls():
                    raise VersionRefused(Problem(title="the replica that had it staged is gone", status=0)) from None
                raise

        retries = _retries("version.not_answered", call="commit", version=version, replica=url)
        await retries.call(once, timeout_s=self._timeout_s)

    def _leave_out(self, answers: Mapping[str, object], call: str, version: int) -> None:
        for url, answer in answers.items():
            if isinstance(answer, Exception):
                log.warning("replica.left_out", replica=url, call=call, version=version, reason=str(answer))


def _retries(event: str, **bound: object) -> Retries:
    return Retries(event, on=NoAnswer, longest_pause_s=_PAUSE_S, bound=bound)


def _raise_refusal(answers: Mapping[str, object]) -> None:
    """Raise the first refusal, with the name of the replica."""
    for url, answer in answers.items():
        if isinstance(answer, VersionRefused):
            detail = f"{url} says: {answer.problem.detail or answer.problem.title}"
            raise VersionRefused(answer.problem.model_copy(update={"detail": detail})) from answer


def _reasons(answers: Mapping[str, object]) -> str:
    return "; ".join(f"{url} ({answer})" for url, answer in answers.items())


async def _settled(
    calls: Mapping[str, Coroutine[Any, Any, T]], *, grace_s: float
) -> dict[str, T | NoAnswer | VersionRefused]:
    """Return each call's outcome. Once one succeeds, the others have `grace_s` before they count as unanswered."""
    tasks = {url: asyncio.create_task(call) for url, call in calls.items()}
    pending = set(tasks.values())
    ends_at: float | None = None
    try:
        while pending:
            left_s = None if ends_at is None else max(ends_at - time.monotonic(), 0.0)
            done, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            if ends_at is None and any(task.exception() is None for task in done):
                ends_at = time.monotonic() + grace_s
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
    return {url: _outcome(task, grace_s) for url, task in tasks.items()}


def _outcome(task: "asyncio.Task[T]", grace_s: float) -> T | NoAnswer | VersionRefused:
    """Return the result of a task, or an expected error; any other error is raised."""
    if task.cancelled():
        return NoAnswer(f"it took {grace_s:g} s longer than the others")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, NoAnswer | VersionRefused):
        return error
    raise error
