"""How many held-out tasks a model behind a chat endpoint solves, and at what cost.

Episodes are played as by `gymfleet collect`, each into the file of its environment; an episode already there is not
played again. An episode in which something other than the model failed leaves no record, so it counts neither as solved
nor as unsolved.
"""

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gymfleet_client.errors import ClientError
from gymfleet_client.sync import SyncGatewayClient
from gymfleet_contracts.suite import Suite, SuiteEnvironment
from gymfleet_contracts.trajectory import ReplyEnd, ScoredTrajectory
from gymfleet_kit.intervals import task_interval
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.table import Table

from gymfleet_cli.collecting.collection import Collection
from gymfleet_cli.collecting.model import AgentSettings
from gymfleet_cli.collecting.plan import Choice, Manner, choice_of
from gymfleet_cli.collecting.playing import world_of
from gymfleet_cli.collecting.spending import Budget, Spending
from gymfleet_cli.collecting.store import RecordFile
from gymfleet_cli.commands.data import data_of
from gymfleet_cli.commands.envs import find_spec
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.gateway import CALL_TIMEOUT_S, session_address

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """The model to measure, how it is asked, and the prices of its tokens."""

    agent: AgentSettings
    prices: Budget
    url: str | None = None
    """URL of a gateway; without it the command serves the environments itself."""
    state_dir: Path = Path(".gymfleet")

    @property
    def model(self) -> str:
        """Return the model's name."""
        return self.agent.endpoint.model


class Taken(BaseModel):
    """Tokens over all calls of the command, including unfinished episodes; kept next to the episodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_tokens: int = 0
    reply_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of the reply tokens that are reasoning, as far as the endpoint reports them."""
    untold: int = 0
    """Replies whose tokens the endpoint did not report."""

    def plus(self, spent: Spending) -> "Taken":
        """Return the sum with the tokens spent by one call."""
        return Taken(**{name: value + getattr(spent, name) for name, value in self})

    def cost(self, prices: Budget) -> float:
        """Return the cost of these tokens."""
        return Spending(prices, self.prompt_tokens, self.reply_tokens).cost


@dataclass(frozen=True, slots=True)
class ModelFigure:
    """A model's result in one environment."""

    value: float
    interval: tuple[float, float]
    num_episodes: int
    num_replies: int
    num_cut: int
    """Replies cut off at `--max-reply-tokens`."""
    num_failed: int
    """Episodes without a record."""
    taken: Taken


def directory_of(model: str) -> Path:
    """Return the default directory of a model's episodes."""
    return Path("runs") / f"eval-{_UNSAFE.sub('-', model).strip('-.') or 'model'}"


def measure_suite(suite: Suite, asked: Asked, directory: Path) -> None:
    """Measure a model on each environment, and print the table; a failing environment does not stop the others.

    Raises `CliError` after the table if an environment, or an episode, could not be measured.
    """
    figures: dict[str, ModelFigure] = {}
    failed: dict[str, str] = {}
    for env in suite.environments:
        err.print(plain(f"measuring {asked.model} on {env.title}"))
        try:
            figures[env.title] = _measured(env, asked, directory, failed)
        except UsageProblem:
            raise
        except (CliError, ClientError) as error:
            failed[env.title] = str(error)
    _print(suite, figures, asked.prices)
    for title, reason in failed.items():
        out.print(plain(f"{title}: {reason}"), soft_wrap=True)
    if failed:
        raise CliError(
            f"{len(failed)} of {len(suite.environments)} environments could not be measured in full; the same command "
            "plays what is missing"
        )


def _measured(env: SuiteEnvironment, asked: Asked, directory: Path, failed: dict[str, str]) -> ModelFigure:
    if asked.url is not None and env.options:
        raise UsageProblem(
            f"--url: the options of {env.title} are those of its gateway; leave out --url, or the options"
        )
    data = data_of((env.name,)) if env.tasks == "benchmark" else None
    with session_address(asked.url, asked.state_dir, (env.name,), data, {env.name: env.options}) as (address, key):
        with SyncGatewayClient(address, api_key=key, timeout_s=CALL_TIMEOUT_S) as client:
            spec = find_spec(client, env.name)
        world = world_of(spec, env.format)
        most = env.limits.max_response_tokens or asked.agent.max_reply_tokens
        manner = Manner(
            model=asked.model, format=world.format_name, split=env.eval_split, level=env.level, seed=0,
            temperature=asked.agent.endpoint.temperature, max_reply_tokens=most, max_turns=env.limits.max_turns,
            form="episodes",
        )  # fmt: skip
        choice = choice_of(env.episodes, None, 1, (spec,), manner)
        agent = AgentSettings(asked.agent.endpoint, most)
        collection = Collection(manner, choice, {spec.name: world}, agent, asked.prices)
        file = directory / f"{env.title}-{setting_of(env, manner)}.jsonl"
        try:
            tally = collection.play(file, address, key)
        finally:
            taken = _kept(file.with_suffix(".spent.json"), collection.spending)
    episodes = _episodes(file, choice, manner, spec.name)
    if not episodes:
        raise CliError(f"none of {env.episodes} episodes could be played, the last one because: {tally.last_failure}")
    if tally.given_up:
        failed[env.title] = (
            f"{tally.given_up} episodes could not be played and count for nothing, the last one because: "
            f"{tally.last_failure}"
        )
    return _figure(env, episodes, tally.given_up, taken)


def setting_of(env: SuiteEnvironment, manner: Manner) -> str:
    """Return a digest of what determines an environment's episodes: a file has those of one setting."""
    told = [manner.run_id, env.model_dump(mode="json", include={"tasks", "options", "format"})]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def _kept(file: Path, spent: Spending) -> Taken:
    """Add the tokens spent to those in the file, and return the sum. Raises `CliError` for an unreadable file."""
    try:
        before = Taken.model_validate_json(file.read_bytes()) if file.is_file() else Taken()
    except (OSError, ValidationError) as error:
        raise CliError(f"{file} cannot be read; remove it to count anew: {error}") from None
    taken = before.plus(spent)
    if file.parent.is_dir():
        temporary = file.with_suffix(".tmp")
        temporary.write_text(taken.model_dump_json(indent=2) + "\n", encoding="utf-8")
        temporary.replace(file)
    return taken


def _episodes(file: Path, choice: Choice, manner: Manner, env: str) -> list[ScoredTrajectory]:
    """Return the episodes of a file that this call asks for; the file may have more."""
    wanted = {episode.id(manner) for episode in choice.episodes((env,))}
    records = [one for one in RecordFile(file).records() if isinstance(one, ScoredTrajectory)]
    return [one for one in records if one.trajectory.trajectory_id in wanted]


def _figure(env: SuiteEnvironment, episodes: list[ScoredTrajectory], num_failed: int, taken: Taken) -> ModelFigure:
    trajectories = [one.trajectory for one in episodes]
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for one in trajectories:
        by_task[one.group_id].append(one.score if env.metric == "score" else float(one.success))
    tasks = [(math.fsum(values), len(values)) for values in by_task.values()]
    ends = [turn.reply_end for one in trajectories for turn in one.turns]
    return ModelFigure(
        value=math.fsum(total for total, _ in tasks) / len(trajectories), interval=task_interval(tasks),
        num_episodes=len(trajectories), num_replies=len(ends), num_cut=ends.count(ReplyEnd.LENGTH),
        num_failed=num_failed, taken=taken,
    )  # fmt: skip


def _print(suite: Suite, figures: Mapping[str, ModelFigure], prices: Budget) -> None:
    table = Table()
    priced = bool(prices.price_in or prices.price_out)
    columns = ("environment", "metric", "episodes", "figure", "failed", "cut replies", "prompt tokens", "reply tokens",
               "reasoning tokens", *(("cost",) if priced else ()))  # fmt: skip
    for column in columns:
        table.add_column(column, overflow="fold")
    for env in suite.environments:
        if (one := figures.get(env.title)) is not None:
            low, high = one.interval
            taken = one.taken
            cells = (
                env.title, env.metric, str(one.num_episodes),
                f"{100 * one.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})", str(one.num_failed),
                f"{one.num_cut} of {one.num_replies}",
                *(_told(taken, number) for number in (taken.prompt_tokens, taken.reply_tokens, taken.reasoning_tokens)),
                *((f"{taken.cost(prices):.4g}",) if priced else ()),
            )  # fmt: skip
            table.add_row(*map(plain, cells))
    out.print(table)
    if len(figures) == len(suite.environments):
        overall = suite.overall([figures[env.title].value for env in suite.environments])
        if overall is not None:
            out.print(plain(f"overall, of the references: {overall:.2f}"))


def _told(taken: Taken, number: int) -> str:
    return f"{number:,}" if not taken.untold else f"at least {number:,}"
