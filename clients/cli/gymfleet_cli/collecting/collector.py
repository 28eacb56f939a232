"""Many episodes at once: it repeats failed ones, and ends in one way whatever the reason to stop."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import httpx
from gymfleet_client.errors import ClientError, Forbidden, Unauthorized, UnknownEnvironment, UnknownTask
from gymfleet_contracts.conversation import Record
from gymfleet_kit.retries import Retries

from gymfleet_cli.collecting.model import ModelFailed
from gymfleet_cli.collecting.plan import Episode
from gymfleet_cli.collecting.playing import Player, PlayFailed
from gymfleet_cli.collecting.spending import Spending
from gymfleet_cli.collecting.store import RecordFile, succeeded
from gymfleet_cli.console import CliError

_ATTEMPTS: Final = 3
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 20.0
_FAILURES_IN_A_ROW: Final = 5
"""Failed episodes in a row, after all their attempts, that mean something is down."""
_LOOK_EVERY_S: Final = 0.1
_PASSING: Final = (ClientError, ModelFailed, PlayFailed, httpx.HTTPError)
_LASTING: Final = (Unauthorized, Forbidden, UnknownEnvironment, UnknownTask)


@dataclass(slots=True)
class Tally:
    """Counts of the episodes by outcome."""

    asked: int
    """Episodes asked for."""
    there: int = 0
    """Episodes asked for that were already in the file."""
    played: int = 0
    solved: int = 0
    """Solved episodes, of both."""
    given_up: int = 0
    """Episodes without a record: something other than the agent failed at every attempt."""
    repeated: int = 0
    """Repeated attempts."""
    last_failure: str = ""

    @property
    def kept(self) -> int:
        """Records in the file, of the episodes asked for."""
        return self.there + self.played


class Collector:
    """Plays episodes, a given number at once, and keeps each when it is over.

    Args:
        look: called continually; any exception from it ends the collection, as does a lasting one from the player.
    """

    def __init__(
        self, player: Player, file: RecordFile, spending: Spending, tally: Tally, look: Callable[[], None]
    ) -> None:
        self._player = player
        self._file = file
        self._spending = spending
        self._tally = tally
        self._look = look
        self._failed_in_a_row = 0

    async def collect(self, episodes: Iterator[Episode], concurrency: int) -> None:
        """Play all episodes. An exception that ends this early is raised once the other sessions are closed."""
        workers = {asyncio.create_task(self._work(episodes)) for _ in range(concurrency)}
        try:
            while workers:
                self._look()
                done, workers = await asyncio.wait(workers, timeout=_LOOK_EVERY_S, return_when="FIRST_EXCEPTION")
                for worker in done:
                    worker.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, episodes: Iterator[Episode]) -> None:
        for episode in episodes:
            try:
                record = await self._repeated(episode)
            except _LASTING:
                raise
            except _PASSING as error:
                self._give_up(error)
            else:
                self._keep(record)

    async def _repeated(self, episode: Episode) -> Record:
        retries = Retries(
            None, on=_PASSING, unless=_LASTING, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S
        )
        attempt = 0

        async def once() -> Record:
            nonlocal attempt
            attempt += 1
            self._tally.repeated += attempt > 1
            return await self._player.play(episode, attempt)

        return await retries.call(once, attempts=_ATTEMPTS)

    def _keep(self, record: Record) -> None:
        self._file.append(record)
        self._tally.played += 1
        self._tally.solved += succeeded(record)
        self._failed_in_a_row = 0

    def _give_up(self, error: Exception) -> None:
        self._tally.given_up += 1
        self._tally.last_failure = str(error) or type(error).__name__
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _FAILURES_IN_A_ROW:
            raise CliError(
                f"{self._failed_in_a_row} episodes in a row could not be played, the last one because: "
                f"{self._tally.last_failure}"
            )
