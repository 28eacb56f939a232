"""Changed episodes, replayed: an augmenter's proposal is kept only if it succeeds in the environment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Final

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import GroupRequest, Move, StrategySpec
from gymfleet_contracts.stages import PlannedStage, StageFacts
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from gymfleet_kit.data.augmenting import AugmenterFailed, CheckedAugmenter, augmenter_of, proposed
from pydantic import Field, JsonValue

from gymfleet_trainer.errors import PluginFailed, RunDirectoryError, TooManyFailures
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.groups import is_failure
from gymfleet_trainer.stage import Stage, StageOptions

_WINDOW: Final = 512
"""Replays that are requested at a time."""


class AugmentOptions(StageOptions):
    """An augmenter changes episodes, which are played again in the environment."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""
    augmenter: str | dict[str, JsonValue] | tuple[str | dict[str, JsonValue], ...] = "shortened"
    """The augmenter that changes them: `shortened`, `paraphrase`, `distractor`, `recovery`, one of your own, a table
    with `use` and its options, or a list of these. A change that two of them propose is replayed once."""
    max_replays: Annotated[int, Field(ge=1, le=8000)] = 2000
    """Replay at most this many of the proposed changes, the first ones."""


class Augment(Stage[AugmentOptions]):
    """Change episodes, replay each change in a new episode of the same task, and keep what solves it."""

    Options = AugmentOptions
    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("episodes",), plugins={"augmenter": "augmenter"})
    small: ClassVar[Mapping[str, Any]] = {"augmenter": "shortened"}

    def __init__(self, planned: PlannedStage, options: AugmentOptions) -> None:
        super().__init__(planned, options)
        self._requests: dict[str, GroupRequest] | None = None
        self._proposed_by: dict[str, list[str]] = {}

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:  # noqa: ARG002 - what every stage is given
        """Make the augmenters before anything is started."""
        self._augmenters()

    def held(self, recipe: Recipe) -> int:  # noqa: ARG002 - what every stage is given
        """Return how many episodes may be open at once."""
        return self.options.max_replays

    def request(self, run: RunContext, group_id: str) -> GroupRequest | None:
        """Return the request of a replay."""
        return self._replays(run).get(group_id)

    async def run(self, run: RunContext) -> None:
        """Augment once."""
        requests = await run.worker.run(self._replays, run)
        played, num_failed = await self._played(run, list(requests.values()))
        if requests and num_failed == len(requests):
            raise TooManyFailures(
                f"{self.table}: every one of {len(requests)} replays failed for technical reasons: look into the "
                "rollout's and the environment's logs"
            )
        # Set, not added up: a resumed stage replays again.
        run.state.counts[f"replays.{self.name}"] = len(requests)
        run.state.counts[f"replays_failed.{self.name}"] = num_failed
        for name, group_ids in self._proposed_by.items():
            run.state.counts[f"replays_solved.{self.name}.{name}"] = sum(one in played for one in group_ids)
        run.leave([played[group_id] for group_id in requests if group_id in played])

    def _augmenters(self) -> dict[str, CheckedAugmenter]:
        """Return new augmenters as the options name them, by place and name where there are several."""
        given, table = self.options.augmenter, f"{self.table}.augmenter"
        if isinstance(given, str | dict):
            one = augmenter_of(given, table=table)
            return {one.name: one}
        made = [augmenter_of(one, table=f"{table}.{place}") for place, one in enumerate(given)]
        return {f"{place}.{one.name}": one for place, one in enumerate(made)}

    def _replays(self, run: RunContext) -> dict[str, GroupRequest]:
        """Return the requests by id. Requests and ids depend on the episodes and the options alone."""
        if self._requests is None:
            self._requests, self._proposed_by = {}, defaultdict(list)
            for number, (name, episode, moves) in enumerate(self._proposed(run)):
                request = self._replay(run, number, episode, moves)
                self._requests[request.group_id] = request
                self._proposed_by[name].append(request.group_id)
        return self._requests

    def _proposed(self, run: RunContext) -> list[tuple[str, Trajectory, tuple[Move, ...]]]:
        episodes = [scored.trajectory for scored in run.episodes()]
        try:
            return list(islice(proposed(self._augmenters(), episodes), self.options.max_replays))
        except AugmenterFailed as error:
            raise PluginFailed(f"{error}; its traceback is in the log") from error

    def _replay(self, run: RunContext, number: int, episode: Trajectory, moves: Sequence[Move]) -> GroupRequest:
        script = StrategySpec(use="script", options={"moves": [move.model_dump(mode="json") for move in moves]})
        request = run.planner.replay(f"{self.name}.a{number:06d}", episode.task, script)
        if request is None:
            raise RunDirectoryError(
                f"{self.table}: {episode.trajectory_id} was played in {episode.task.env}, which is no environment of "
                "this recipe"
            )
        return request

    async def _played(self, run: RunContext, waiting: list[GroupRequest]) -> tuple[dict[str, ScoredTrajectory], int]:
        """Return the replays that solved their tasks, by their ids, and how many failed for technical reasons."""
        solved: dict[str, ScoredTrajectory] = {}
        asked: set[str] = set()
        num_failed, total = 0, len(waiting)
        run.reporter.begin(self.name, step=0, total=total, unit="episodes")
        while waiting or asked:
            room = _WINDOW - len(asked)
            due, waiting = waiting[:room], waiting[room:]
            await run.collector.ask(due)
            asked.update(request.group_id for request in due)
            group = await run.collector.next_group(asked.__contains__)
            run.collector.settle(group.group_id)
            asked.remove(group.group_id)
            good = [scored for scored in group.trajectories if not is_failure(scored)]
            num_failed += not good
            if good and good[0].trajectory.success:
                solved[group.group_id] = good[0]
            run.reporter.advance(total - len(waiting) - len(asked), f"{len(solved)} successes")
        return solved, num_failed
