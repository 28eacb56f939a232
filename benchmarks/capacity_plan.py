"""The arithmetic of capacity: the needs of concurrent episodes, from the measured costs of one step."""

import math
from dataclasses import dataclass
from typing import Final

from benchmarks.capacity_assumptions import Device, Model
from benchmarks.capacity_costs import Costs

UTILISATION: Final = 0.6
"""Share of a core or device that a plan uses: towards 1, queues grow without bound."""
MAX_OPEN_PER_RUN: Final = 8_000
"""The trainer refuses a recipe that holds more episodes open."""
MAX_SESSIONS: Final = 4_096
"""`GYMFLEET_ENV_MAX_SESSIONS` of one env server."""
MAX_EPISODES: Final = 512
"""`GYMFLEET_ROLLOUT_MAX_EPISODES` of one rollout process."""


@dataclass(frozen=True, slots=True)
class Load:
    """The number of episodes, and the shape of one."""

    episodes: int
    env: str = "textcraft"
    turns: float = 20
    prompt_tokens: float = 400
    observation_tokens: float = 60
    reply_tokens: float = 80

    @property
    def tokens(self) -> float:
        """Tokens of a whole trajectory."""
        return self.prompt_tokens + self.turns * (self.observation_tokens + self.reply_tokens)

    @property
    def mean_context(self) -> float:
        """Tokens in the context of an episode, averaged over its turns."""
        return self.prompt_tokens + self.turns * (self.observation_tokens + self.reply_tokens) / 2


@dataclass(frozen=True, slots=True)
class Need:
    """The need for one part of the stack."""

    name: str
    cores: float
    memory: float
    """Bytes, of all replicas."""
    replicas: int
    full_at: float
    """Episodes at which one replica is full."""
    scales: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan for one load."""

    load: Load
    turn_s: float
    steps_per_s: float
    trajectories_per_s: float
    redis_write: float
    """Bytes per second into its file."""
    redis_wire: float
    """Bytes per second over its socket."""
    needs: tuple[Need, ...]

    @property
    def walls(self) -> list[Need]:
        """The parts by how many episodes one replica can bear, the scarcest first."""
        return sorted(self.needs, key=lambda need: need.full_at)


def plan(load: Load, costs: Costs, model: Model | None = None, device: Device | None = None) -> Plan:
    """Work out the plan for a load."""
    model, device = model or Model(), device or Device()
    per_engine = engine_episodes(load, model, device)
    engines = math.ceil(load.episodes / per_engine)
    turn_s = engine_turn_s(load, load.episodes / engines, model, device) + costs.env_step_s
    steps_per_s = load.episodes / turn_s
    tokens_per_s = steps_per_s / load.turns * load.tokens
    # Six operations per parameter and token: forward, and backward with its two products.
    trainers = tokens_per_s * 6 * model.parameters / (device.flops * device.flops_share * UTILISATION)
    return Plan(
        load=load,
        turn_s=turn_s,
        steps_per_s=steps_per_s,
        trajectories_per_s=steps_per_s / load.turns,
        redis_write=steps_per_s * costs.file_step + tokens_per_s * costs.file_trajectory_token,
        # Everything written for a trajectory, raw and scored, is read once as well.
        redis_wire=steps_per_s * costs.wire_step + 2 * tokens_per_s * costs.file_trajectory_token,
        needs=(
            *_services(load, costs, turn_s),
            Need("engine (GPU)", 0.0, 0.0, engines, per_engine),
            Need("trainer (GPU)", 0.0, 0.0, math.ceil(trainers), load.episodes / trainers),
            Need("run", 0.0, 0.0, math.ceil(load.episodes / MAX_OPEN_PER_RUN), MAX_OPEN_PER_RUN),
        ),
    )


def _services(load: Load, costs: Costs, turn_s: float) -> tuple[Need, ...]:
    """Return the needs of the parts that run on processor cores. A process uses one core."""
    rest = costs.service_rest

    def need(
        name: str, step_s: float, *, at_rest: float, episode: float = 0.0, most: float = math.inf, scales: bool = True
    ) -> Need:
        full_at = min(UTILISATION * turn_s / step_s, most)
        replicas = math.ceil(load.episodes / full_at) if scales else 1
        memory = replicas * at_rest + load.episodes * episode
        return Need(name, load.episodes / turn_s * step_s, memory, replicas, full_at, scales)

    redis_step_s = costs.redis_step_s + costs.redis_trajectory_s / load.turns
    # On average, a journal has half its final length, and a trajectory waits for the rest of its batch.
    redis_episode = costs.redis_session + costs.redis_step * load.turns / 2 + costs.redis_trajectory_token * load.tokens
    return (
        need("env shard", costs.env_step_s, at_rest=0.0, episode=costs.env_session),
        need("env server", costs.front_step_s, at_rest=costs.env_rest, most=MAX_SESSIONS),
        need("gateway", costs.gateway_step_s, at_rest=rest["gateway"]),
        need("rollout", costs.rollout_step_s, at_rest=rest["rollout"], most=MAX_EPISODES),
        need("reward", costs.reward_trajectory_s / load.turns, at_rest=rest["reward"]),
        need("Redis", redis_step_s, at_rest=rest["redis"], episode=redis_episode, scales=False),
    )


def engine_episodes(load: Load, model: Model, device: Device) -> float:
    """Return the number of episodes whose keys and values fit next to the weights; 0.9 of the memory is used."""
    free = 0.9 * device.memory - model.weights
    return free / (load.mean_context * model.kv_token)


def engine_turn_s(load: Load, episodes: float, model: Model, device: Device) -> float:
    """Return the seconds for a reply if every token reads the weights and the caches of all episodes once."""
    read = model.weights + episodes * load.mean_context * model.kv_token
    return load.reply_tokens * read / (device.bandwidth * device.bandwidth_share)
