"""The reward of a trajectory: the weighted sum of its components, together with the breakdown."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from gymfleet_contracts.reward import RewardSpec, ScoreRequest
from gymfleet_contracts.trajectory import Reward, RewardComponent, ScoredTrajectory, Trajectory
from gymfleet_kit.plugins import PluginError
from gymfleet_kit.sealing import Opener

from gymfleet_reward.allocation import TokenRewards, allocate, on_own_turns
from gymfleet_reward.component import ComponentError
from gymfleet_reward.errors import Unscorable
from gymfleet_reward.evaluation import Raw, answered, evaluate
from gymfleet_reward.judging.judge import Judges
from gymfleet_reward.metrics import COMPONENT_FAILURES, FAILED, REWARDED, UNREWARDED
from gymfleet_reward.plugins import Term, Terms
from gymfleet_reward.user_code import UserCode

if TYPE_CHECKING:
    from gymfleet_reward.models.reward_models import RewardModels

log = structlog.get_logger()

_MAX_ERROR_CHARS: Final = 2_000
DEFAULT_TIMEOUT_S: Final = 60.0

Outcomes: TypeAlias = Sequence[Raw | Exception]
"""The outcomes of one episode, by term."""


class NoReward(Exception):
    """The total cannot be computed; the message names the component and says why."""


class Scorer:
    """Compute rewards. Its methods block: they run in threads.

    Args:
        plugins: the references that a request may use in addition to names.
        timeout_s: how long a component that does not come with gymfleet may take for one call.
        opener: opens the environments' private data for the reward service; None without a key.
        judges: the judges that components may ask.
        models: the reward models; None if there are none.
    """

    def __init__(
        self,
        plugins: Collection[str] = (),
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        opener: Opener | None = None,
        judges: Judges | None = None,
        models: "RewardModels | None" = None,
    ) -> None:
        self._judges = judges
        self._user_code = UserCode(timeout_s, self._made_anew)
        self._terms = Terms(plugins, self._user_code.call, opener, judges, models)

    def _made_anew(self) -> None:
        self._terms.forget()

    def close(self) -> None:
        """End the calls that are under way."""
        if self._judges is not None:
            self._judges.close()
        self._user_code.close()

    def terms(self, spec: RewardSpec) -> tuple[Term, ...]:
        """Return the components that count. Raises `PluginError`."""
        return self._terms.of(spec, _key(spec))

    def check(self, requests: Sequence[ScoreRequest]) -> None:
        """Raise `Unscorable` for requests that can never be scored as they are."""
        for key, places in _alike(requests).items():
            same = [requests[place] for place in places]
            try:
                terms = self._terms.of(same[0].reward, key)
            except (PluginError, ComponentError) as error:
                raise Unscorable(str(error)) from None
            if any(term.component.per == "group" for term in terms):
                for group in grouped(same).values():
                    if (lack := lacking([same[place] for place in group])) is not None:
                        raise Unscorable(lack)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoredTrajectory]:
        """Return the rewards of trajectories, in their order.

        A trajectory that an infrastructure failure spoiled, or for which a component
        keeps failing, has no reward, which is None and never 0.
        """
        played = [request for request in requests if request.trajectory.status.trainable]
        scored = iter(self._score_played(played))
        return [
            next(scored) if request.trajectory.status.trainable else _unrewarded(request.trajectory)
            for request in requests
        ]

    def score_alone(self, request: ScoreRequest) -> ScoredTrajectory | None:
        """Return the reward of one trajectory; None if a component must see its whole group, whose size is known."""
        size = request.num_samples or 1
        if size > 1 and request.trajectory.status.trainable and request.trajectory.sample < size:
            with contextlib.suppress(PluginError, ComponentError):  # which `score` reports
                if any(term.component.per == "group" for term in self.terms(request.reward)):
                    return None
        (scored,) = self.score([request])
        return scored

    def score_records(self, records: Sequence[bytes]) -> tuple[list[ScoreRequest], list[ScoredTrajectory]]:
        """Read the records of a group, and score them together."""
        requests = [ScoreRequest.model_validate_json(record) for record in records]
        return requests, self.score(requests)

    def _score_played(self, requests: Sequence[ScoreRequest]) -> list[ScoredTrajectory]:
        if len(requests) == 1:  # as from the stream
            return self._score_alike(requests, _key(requests[0].reward))
        scored: dict[int, ScoredTrajectory] = {}
        for key, places in _alike(requests).items():
            scored |= zip(places, self._score_alike([requests[place] for place in places], key), strict=True)
        return [scored[place] for place in range(len(requests))]

    def _score_alike(self, requests: Sequence[ScoreRequest], key: str) -> list[ScoredTrajectory]:
        """Score requests that have the same components."""
        try:
            terms = self._terms.of(requests[0].reward, key)
        except (PluginError, ComponentError) as error:
            log.warning("component.unusable", error=str(error), num_trajectories=len(requests))
            return [_failed(request.trajectory, str(error)) for request in requests]
        columns = [self._evaluate(term, requests) for term in terms]
        return [
            _composed(request, terms, [column[place] for column in columns]) for place, request in enumerate(requests)
        ]

    def _evaluate(self, term: Term, requests: Sequence[ScoreRequest]) -> list[Raw | Exception]:
        """Return a component's outcome for each request."""
        if term.immediate:
            return [answered(term.component, request.trajectory) for request in requests]
        if term.component.per == "episode":
            return evaluate(term, [request.trajectory for request in requests], self._user_code)
        found: dict[int, Raw | Exception] = {}
        for places in grouped(requests).values():
            group = [requests[place] for place in places]
            if (lack := lacking(group)) is None:
                outcomes = evaluate(term, [request.trajectory for request in group], self._user_code)
            else:
                outcomes = [ComponentError(lack)] * len(group)
            found |= zip(places, outcomes, strict=True)
        return [found[place] for place in range(len(requests))]


def grouped(requests: Sequence[ScoreRequest]) -> dict[tuple[str, str], list[int]]:
    """Return the places of each group's trajectories, in the order of their samples."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in sorted(range(len(requests)), key=lambda place: requests[place].trajectory.sample):
        trajectory = requests[place].trajectory
        found[trajectory.run_id, trajectory.group_id].append(place)
    return found


def lacking(group: Sequence[ScoreRequest]) -> str | None:
    """Return what keeps these requests from being one whole group; None if they are one."""
    sizes = {request.num_samples for request in group}
    name = f"{group[0].trajectory.run_id}/{group[0].trajectory.group_id}"
    (size,) = sizes if len(sizes) == 1 else (None,)
    if size is None:
        return f"the group {name} is to be scored together: all its records must give the same num_samples"
    samples = [request.trajectory.sample for request in group]
    if samples == list(range(size)):
        return None
    return f"the group {name} is to be scored together: it has {size} episodes, here are the samples {samples}"


def _alike(requests: Sequence[ScoreRequest]) -> dict[str, list[int]]:
    """Return the places of the requests that have the same components, by their key."""
    found: dict[str, list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        found[_key(request.reward)].append(place)
    return found


def _key(spec: RewardSpec) -> str:
    # Every trajectory needs a key: this takes half the time of JSON.
    tables = spec.__pydantic_extra__.items()
    return repr([(label, table.use, table.enabled, table.__pydantic_extra__) for label, table in tables])


def _composed(request: ScoreRequest, terms: Sequence[Term], outcomes: Outcomes) -> ScoredTrajectory:
    try:
        reward = compose(request.trajectory, request.reward, terms, outcomes)
    except NoReward as error:
        return _failed(request.trajectory, str(error))
    REWARDED.inc()
    return ScoredTrajectory(trajectory=request.trajectory, reward=reward)


def _unrewarded(trajectory: Trajectory) -> ScoredTrajectory:
    UNREWARDED.inc()
    return ScoredTrajectory(trajectory=trajectory, reward=None)


def _failed(trajectory: Trajectory, reason: str) -> ScoredTrajectory:
    FAILED.inc()
    return ScoredTrajectory(trajectory=trajectory, reward=None, reward_error=_one_line(reason))


def compose(trajectory: Trajectory, spec: RewardSpec, terms: Sequence[Term], outcomes: Outcomes) -> Reward:
    """Return total, breakdown and token rewards. Raises NoReward."""
    weighted = [_weighted(term, outcome, trajectory) for term, outcome in zip(terms, outcomes, strict=True)]
    return Reward(
        total=_sum(one.value for one in weighted),
        components={term.label: one for term, one in zip(terms, weighted, strict=True)},
        allocation=spec.allocation,
        token_rewards=_token_rewards(trajectory, spec, weighted, outcomes),
        scorers={
            term.label: (outcome.version if isinstance(outcome, Raw) else "") or term.version
            for term, outcome in zip(terms, outcomes, strict=True)
        },
    )


def _token_rewards(
    trajectory: Trajectory, spec: RewardSpec, weighted: Sequence[RewardComponent], outcomes: Outcomes
) -> TokenRewards:
    """Allocate the total, except for the parts that belong to single turns and are put there."""
    lengths = [len(turn.response_token_ids) for turn in trajectory.turns]
    spread: list[float] = []
    own: list[list[float]] = []
    for one, outcome in zip(weighted, outcomes, strict=True):
        if isinstance(outcome, Raw) and outcome.turns is not None:
            own.append([one.weight * value for value in outcome.turns])
        else:
            spread.append(one.value)
    token_rewards = allocate(spec.allocation, _sum(spread), lengths, spec.gamma)
    for values in own:
        token_rewards = on_own_turns(token_rewards, values)
    return token_rewards


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        raise NoReward("the sum of the components is not finite") from None


def _weighted(term: Term, outcome: Raw | Exception, trajectory: Trajectory) -> RewardComponent:
    """Return one weighted term; for a component that failed, its options decide."""
    options = term.component.options
    if isinstance(outcome, Raw):
        value = options.weight * outcome.total
        turns = outcome.turns
        if math.isfinite(value) and (turns is None or all(math.isfinite(options.weight * part) for part in turns)):
            return RewardComponent(raw=outcome.total, weight=options.weight, value=value)
        outcome = ComponentError(f"{options.weight} * {outcome.total} is not finite")
    reason = _one_line(f"{type(outcome).__name__}: {outcome}")
    COMPONENT_FAILURES.labels(term.reference).inc()
    trace = None if isinstance(outcome, ComponentError) else outcome
    log.warning(
        "component.failed", component=term.label, trajectory_id=trajectory.trajectory_id, error=reason, exc_info=trace
    )
    if options.on_error == "zero":
        return RewardComponent(raw=0.0, weight=options.weight, value=0.0, error=reason)
    raise NoReward(f"{term.label}: {reason}") from outcome


def _one_line(text: str) -> str:
    """Return a text as a line that can be put on the wire."""
    return " ".join(text.split())[:_MAX_ERROR_CHARS].encode(errors="replace").decode()
