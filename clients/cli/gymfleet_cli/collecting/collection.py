"""One call of `gymfleet collect`: it plays the episodes that the file lacks, and reports the outcome."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gymfleet_client.errors import ClientError
from gymfleet_client.rest import GatewayClient
from gymfleet_kit.data.reading import DataError
from gymfleet_kit.formats import FormatFailed

from gymfleet_cli.collecting.collector import Collector, Tally
from gymfleet_cli.collecting.model import AgentModel, AgentSettings, ModelRefused
from gymfleet_cli.collecting.plan import Choice, Episode, Manner
from gymfleet_cli.collecting.playing import Player, World
from gymfleet_cli.collecting.spending import Budget, BudgetSpent, Spending
from gymfleet_cli.collecting.store import RecordFile, record_id, succeeded
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.counting_display import Count, CountingDisplay
from gymfleet_cli.supervisor.errors import Interrupted
from gymfleet_cli.supervisor.interrupts import Interrupts

_OPEN_TIMEOUT_S: Final = 300.0
"""An open may wait in a gateway's queue."""
_PROBE: Final = "<think>"


class BudgetEnded(CliError):
    """The budget is spent before all episodes are played."""

    exit_code = 3


class Collection:
    """The episodes that one call asks for, once its arguments are checked.

    Args:
        worlds: by environment name.
        agent: the model that plays.
        budget: what its replies may cost.

    Attributes:
        spending: what they have cost.
    """

    def __init__(
        self, manner: Manner, choice: Choice, worlds: Mapping[str, World], agent: AgentSettings, budget: Budget
    ) -> None:
        self._manner = manner
        self._choice = choice
        self._worlds = worlds
        self._agent = agent
        self.spending = Spending(budget)
        self._tally = Tally(asked=choice.number(tuple(worlds)))

    def run(self, path: Path, address: str, key: str | None) -> None:
        """Play the episodes that the file lacks, against the session API at an address.

        Raises `CliError`, also if some episodes could not be played, and `Interrupted`. Finished episodes are kept.
        """
        tally = self.play(path, address, key)
        out.print(plain(self._outcome(path)), soft_wrap=True)
        if tally.given_up:
            raise CliError(
                f"{tally.given_up} episodes could not be played, the last one because: {tally.last_failure}; the same "
                "command plays them again"
            )

    def play(self, path: Path, address: str, key: str | None) -> Tally:
        """Do as `run`, but return the tally even if some episodes could not be played, and print nothing."""
        with RecordFile(path) as file:
            if file.mended:
                err.print(plain(file.mended, "yellow"), soft_wrap=True)
            there = self._there(file)
            try:
                self._play_all(file, there, address, key)
            except BudgetSpent as error:
                raise BudgetEnded(f"stopped: {error}; {self._outcome(path)}") from None
            except (ModelRefused, FormatFailed, ClientError) as error:
                raise CliError(f"{error}; {self._outcome(path)}") from None
            except Interrupted:
                err.print(plain(self._outcome(path)), soft_wrap=True)
                raise
        return self._tally

    def _there(self, file: RecordFile) -> dict[str, bool]:
        """Return whether each record in the file solved its task, by id."""
        there: dict[str, bool] = {}
        prefix = f"{self._manner.run_id}/"
        try:
            for record in file.records():
                name = record_id(record)
                if not name.startswith(prefix):
                    raise UsageProblem(
                        f"{file.path} has episodes of another model, format or setting ({name[:80]}); choose another "
                        "file, or the options with which they were collected"
                    )
                there.setdefault(name, succeeded(record))
        except DataError as error:
            raise CliError(str(error)) from None
        return there

    def _play_all(self, file: RecordFile, there: Mapping[str, bool], address: str, key: str | None) -> None:
        envs = tuple(self._worlds)
        for episode in self._choice.episodes(envs):
            if (solved := there.get(episode.id(self._manner))) is not None:
                self._tally.there += 1
                self._tally.solved += solved
        missing = (one for one in self._choice.episodes(envs) if one.id(self._manner) not in there)
        with Interrupts() as interrupts, CountingDisplay(err, "episodes", ("min", 60.0), self._count) as display:

            def look() -> None:
                interrupts.check()
                display.refresh()

            asyncio.run(self._play(file, missing, address, key, look))

    async def _play(
        self, file: RecordFile, missing: Iterator[Episode], address: str, key: str | None, look: Callable[[], None]
    ) -> None:
        # A format whose replies contain such tags reads them itself.
        own_tags = any(_PROBE in world.format.render("t", "a") for world in self._worlds.values())
        model = AgentModel(self._agent, splits_thoughts=not own_tags)
        concurrency = self._agent.endpoint.concurrency
        client = GatewayClient(address, api_key=key, timeout_s=_OPEN_TIMEOUT_S, max_concurrency=concurrency)
        try:
            async with client:
                player = Player(client, model, self.spending, self._worlds, self._manner)
                collector = Collector(player, file, self.spending, self._tally, look)
                await collector.collect(missing, concurrency)
        finally:
            await model.aclose()

    def _count(self) -> Count:
        return Count(self._tally.kept, self._tally.played, self._tally.asked, self._figures())

    def _figures(self) -> list[str]:
        tally, spent = self._tally, self.spending
        told = {
            f"{tally.solved} solved ({100 * tally.solved / max(tally.kept, 1):.1f} %)": tally.kept,
            f"{spent.tokens:,} tokens": spent.tokens,
            f"cost {spent.cost:.4g}": spent.cost,
            f"{tally.repeated} attempts repeated": tally.repeated,
            f"{tally.given_up} episodes given up": tally.given_up,
        }
        return [words for words, number in told.items() if number]

    def _outcome(self, path: Path) -> str:
        return " · ".join([f"{path}: {self._tally.kept} of {self._tally.asked} episodes", *self._figures()])
