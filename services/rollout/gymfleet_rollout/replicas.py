"""All engines of one policy: who takes the next request, who is down, and what is done to all at once."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import structlog
from gymfleet_contracts.rollout import Sampling

from gymfleet_rollout.inference.base import Continuation, EngineDied, InferenceError, Replica, ReplicaDown

log = structlog.get_logger()

GREEDY: Final = Sampling(temperature=0.0)
_SAME_WEIGHTS_TOLERANCE: Final = {"float32": 1e-3}
"""Mean |difference| in log-probability that two evaluations of equal weights may show."""
_SAME_WEIGHTS_TOLERANCE_HALF: Final = 0.05
_RECOVERY_PAUSE_S: Final = 0.5
_ADMISSION_TOKENS: Final = 8

Prompts = Sequence[Sequence[int]]
Answers = list[list[Continuation]]
"""Per replica, per prompt."""


class ReplicaSet:
    """Replicas with equal weights.

    Args:
        revive: gives a replica that answers again the live weights; False when that must wait.
    """

    def __init__(
        self, replicas: Sequence[Replica], *, dtype: str, revive: Callable[[Replica], Awaitable[bool]]
    ) -> None:
        self._replicas = tuple(replicas)
        self._tolerance = _SAME_WEIGHTS_TOLERANCE.get(dtype, _SAME_WEIGHTS_TOLERANCE_HALF)
        self._revive = revive
        self._some_up = asyncio.Event()
        self._some_up.set()
        self._recoveries: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def names(self) -> list[str]:
        """In a fixed order."""
        return [replica.name for replica in self._replicas]

    @property
    def down(self) -> list[str]:
        """Names of those that do not answer."""
        return [replica.name for replica in self._replicas if not replica.is_up]

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and reply that every replica can hold."""
        return min(replica.max_model_len for replica in self._replicas)

    async def start(self) -> None:
        """Return when every replica has given a token. Raises InferenceError."""
        await asyncio.gather(*(replica.start() for replica in self._replicas))
        await self.one_token("start")

    async def close(self) -> None:
        """Free every replica."""
        for task in self._recoveries.values():
            task.cancel()
        await asyncio.gather(*(replica.close() for replica in self._replicas))

    async def check(self) -> None:
        """Raise InferenceError unless a replica is up and every one that is takes requests."""
        if not self._some_up.is_set():
            raise ReplicaDown(f"{', '.join(self.down)} is down")
        await asyncio.gather(*(replica.check() for replica in self._replicas if replica.is_up))

    async def one_token(self, cache_salt: str) -> None:
        """Let every replica that is up generate a token. Raises InferenceError."""
        await asyncio.gather(
            *(
                replica.generate((0,), max_tokens=1, sampling=GREEDY, stop_token_ids=(), cache_salt=cache_salt)
                for replica in self._replicas
                if replica.is_up
            )
        )

    async def least_busy(self) -> Replica:
        """Who takes the next request. With all replicas down this waits. Suspends in no other case."""
        while True:
            up = [replica for replica in self._replicas if replica.is_up]
            if up:
                return min(up, key=lambda replica: replica.num_in_flight)
            await self._some_up.wait()

    def mark_down(self, replica: Replica, error: InferenceError) -> None:
        """Send it nothing until it answers again and has the live weights."""
        if not replica.is_up:
            return
        replica.is_up = False
        log.error("replica.down", replica=replica.name, error=str(error))
        if all(not other.is_up for other in self._replicas):
            self._some_up.clear()
        self._recoveries[replica.name] = asyncio.get_running_loop().create_task(self._recover(replica))

    async def admit(self, replica: Replica, path: Path, prompts: Prompts, cache_salt: str) -> None:
        """Take in one more, which has started: it gets the weights, and must answer as one that is up.

        Raises InferenceError.
        """
        if replica.max_model_len < self.max_model_len:
            raise InferenceError(f"{replica.name} holds {replica.max_model_len} tokens, not {self.max_model_len}")
        witness = next((other for other in self._replicas if other.is_up), None)
        await replica.load(path)
        after = await _ask(replica, prompts, _ADMISSION_TOKENS, GREEDY, cache_salt)
        if witness is not None:
            before = await _ask(witness, prompts, _ADMISSION_TOKENS, GREEDY, cache_salt)
            self._require_alike(before, after, f"{replica.name} answers unlike {witness.name}")
        self._replicas = (*self._replicas, replica)
        self._some_up.set()

    async def forget_all_but(self, names: Collection[str]) -> None:
        """Forget replicas that are down and not among these; the last one stays, so that requests wait for another."""
        gone = [replica for replica in self._replicas if not replica.is_up and replica.name not in names]
        for replica in gone[: len(self._replicas) - 1]:
            self._replicas = tuple(other for other in self._replicas if other is not replica)
            self._recoveries.pop(replica.name).cancel()
            await replica.close()
            log.warning("replica.forgotten", replica=replica.name)

    async def interrupt(self) -> None:
        """End every request in flight, everywhere."""
        await asyncio.gather(*(replica.interrupt() for replica in self._replicas))

    async def load(self, path: Path) -> None:
        """Load weights everywhere; when one fails, all have ended before this raises."""
        results = await asyncio.gather(*(replica.load(path) for replica in self._replicas), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def ask(self, prompts: Prompts, max_tokens: int, sampling: Sampling, cache_salt: str) -> Answers:
        """Every replica's answers to the prompts, by the path that episodes take."""
        return list(
            await asyncio.gather(
                *(_ask(replica, prompts, max_tokens, sampling, cache_salt) for replica in self._replicas)
            )
        )

    async def restore(self, path: Path, prompts: Prompts, before: Answers | None, cache_salt: str) -> None:
        """Load weights again and see that each replica answers as `before`, which was sampled greedily from them.

        Without `before` nothing else was loaded: it is enough that they answer.
        A replica that is down is left to its recovery. Raises InferenceError.
        """
        await asyncio.gather(
            *(
                self._restore(replica, path, prompts, None if before is None else before[at], cache_salt)
                for at, replica in enumerate(self._replicas)
            )
        )

    async def _restore(
        self, replica: Replica, path: Path, prompts: Prompts, before: list[Continuation] | None, cache_salt: str
    ) -> None:
        try:
            if before is None:
                await replica.check()
                return
            await replica.load(path)
            max_tokens = max(len(answer.token_ids) for answer in before)
            after = await _ask(replica, prompts, max_tokens, GREEDY, cache_salt)
        except ReplicaDown as error:
            self.mark_down(replica, error)
            return
        self._require_alike(before, after, f"{replica.name} answers unlike before")

    def _require_alike(self, before: list[Continuation], after: list[Continuation], complaint: str) -> None:
        gaps = [gap for one, other in zip(before, after, strict=True) for gap in _gaps(one, other)]
        if (mean := sum(gaps) / max(len(gaps), 1)) > self._tolerance:
            raise EngineDied(f"{complaint}, by {mean:.4f} nat a token")

    async def _recover(self, replica: Replica) -> None:
        while not replica.is_up:
            await asyncio.sleep(_RECOVERY_PAUSE_S)
            try:
                await replica.check()
                replica.is_up = await self._revive(replica)
            except InferenceError as error:
                log.info("replica.still_down", replica=replica.name, error=str(error))
        self._some_up.set()
        log.warning("replica.up", replica=replica.name)


async def _ask(
    replica: Replica, prompts: Prompts, max_tokens: int, sampling: Sampling, cache_salt: str
) -> list[Continuation]:
    return list(
        await asyncio.gather(
            *(
                replica.generate(
                    prompt, max_tokens=max_tokens, sampling=sampling, stop_token_ids=(), cache_salt=cache_salt
                )
                for prompt in prompts
            )
        )
    )


def _gaps(before: Continuation, after: Continuation) -> list[float]:
    """Differences up to the first token that differs: behind it the two are answers to different questions."""
    gaps = []
    for old_id, new_id, old, new in zip(
        before.token_ids, after.token_ids, before.logprobs, after.logprobs, strict=False
    ):
        gaps.append(abs(old - new))
        if old_id != new_id:
            break
    return gaps
