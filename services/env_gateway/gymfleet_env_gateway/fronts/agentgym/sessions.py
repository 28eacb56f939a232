"""AgentGym's ids and the sessions behind them: one id plays many episodes, each in a session of its own.

The state of an id is kept in a store that all gateways share, so that each of a
client's calls may reach a different gateway. Its index protects a step against losses
inside the fleet; a request that the client's side repeats cannot be distinguished from
a new one, because AgentGym's protocol does not mark repeats.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import structlog
from gymfleet_contracts import problems
from gymfleet_kit.problems import ServiceError

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.fronts.agentgym.games import GAMES, Game
from gymfleet_env_gateway.fronts.episode import Episode, NoEpisode, OutcomeUnknown, held_episode, intent
from gymfleet_env_gateway.metrics import AGENTGYM_SESSIONS
from gymfleet_env_gateway.replica_registry import ReplicaRegistry
from gymfleet_env_gateway.session_proxy import SessionProxy
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.store import NoEntry, Store, StoreFull

log = structlog.get_logger()

# These clients can hold only plain ints, and anybody may try to guess one: 48 bits make
# a guess hopeless and still fit into a JSON integer in every language.
_ID_BITS: Final = 48
_MAX_COUNT_PAUSE_S: Final = 30.0
_encode: Final = msgspec.msgpack.Encoder().encode


class AgentGymError(Exception):
    """A client's mistake, reported to it as the game's AgentGym server does."""

    def __init__(self, game: Game, message: str) -> None:
        super().__init__(message)
        self.game = game


class Player(Episode):
    """The state behind one AgentGym id: at most one session at a time."""

    number: int = 0
    task_id: str = ""
    first_observation: str = ""
    first_score: float = 0.0
    first_info: dict[str, Any] = msgspec.field(default_factory=dict)
    info: dict[str, Any] = msgspec.field(default_factory=dict)
    """The part of the last observation's info that the game shows."""
    task_number: int = 0
    """The task of the last `reset`."""


_decode: Final = msgspec.msgpack.Decoder(Player).decode


class AgentGymSessions:
    """All ids of the gateways that share `store`."""

    def __init__(self, registry: ReplicaRegistry, proxy: SessionProxy, settings: GatewaySettings, store: Store) -> None:
        self._registry = registry
        self._proxy = proxy
        self._max = settings.agentgym_max_sessions
        self._idle_s = settings.agentgym_idle_s
        self._store = store

    async def create(self, tenant: Tenant, game: Game) -> int:
        """Create an id; it takes no slot until it plays."""
        self._registry.candidates(game.env)
        while True:
            player = Player(number=secrets.randbits(_ID_BITS))
            key = _key(game, tenant, player.number)
            try:
                if await self._store.add(key, _encode(player), ttl_s=self._idle_s, limit=self._max):
                    return player.number
            except StoreFull:
                raise Unavailable(
                    f"{self._max} AgentGym ids are in use; those not used for {self._idle_s:g} s are freed"
                ) from None

    async def find(self, tenant: Tenant, game: Game, number: int) -> Player:
        """Return the player with an id. Raises `AgentGymError` if there is none; another tenant's id does not exist."""
        stored = await self._store.get(_key(game, tenant, number))
        if stored is None:
            raise _invalid(game, number)
        return _decode(stored)

    async def numbers(self, tenant: Tenant, game: Game) -> list[int]:
        """Return the tenant's ids of a game, in ascending order."""
        prefix = _prefix(game, tenant)
        ids = [key.removeprefix(prefix) for key in await self._store.keys() if key.startswith(prefix)]
        return sorted(int(number) for number in ids if number.isdecimal())

    async def reset(self, tenant: Tenant, game: Game, number: int, task_number: int | None) -> Player:
        """Begin another episode under the same id: of the task `task_number`, or of the id's last task if that is None.

        Without calls, its session lives as long as the id.
        """
        async with self._held(tenant, game, number) as player:
            player.task_number = player.task_number if task_number is None else task_number
            body = game.task(self._registry.environment(game.env), player.task_number, self._idle_s)
            try:
                session = await player.begin(self._proxy, tenant, body)
            except ServiceError as error:
                if error.problem().type == problems.UNKNOWN_TASK:
                    raise AgentGymError(game, error.detail) from None
                raise
            player.first_observation = player.observation = game.words(session["observation"])
            player.task_id = session["task"]["task_id"]
            player.first_score = session["score"]
            player.info = player.first_info = _shown(game, session)
        return player

    async def step(self, tenant: Tenant, game: Game, number: int, action: str) -> tuple[Player, dict[str, Any]]:
        """Apply an action; return the player after it and the env server's result."""
        async with self._held(tenant, game, number, intent(action)) as player:
            if player.session_id and player.over:
                raise AgentGymError(game, f"The task with environment {number} has finished.")
            try:
                result = await player.step(self._proxy, tenant, action)
            except NoEpisode:
                raise AgentGymError(game, f"Environment {number} has no episode: reset it first.") from None
            except OutcomeUnknown:
                await player.end(self._proxy, tenant)
                raise AgentGymError(
                    game, f"Environment {number} lost the answer to its last action: reset it first."
                ) from None
            player.observation = game.words(result["observation"])
            player.info = _shown(game, result)
        return player, result | {"observation": player.observation}

    async def close(self, tenant: Tenant, game: Game, number: int) -> bool:
        """Forget an id; False when there is none."""
        try:
            async with self._held(tenant, game, number) as player:
                await self._store.delete(_key(game, tenant, number))
                await player.end(self._proxy, tenant)
        except AgentGymError:
            return False
        return True

    async def count(self) -> None:
        """Report how many ids there are, until cancelled. Unused ids expire by themselves."""
        while True:
            try:
                numbers = Counter(key.partition(":")[0] for key in await self._store.keys())
            except ServiceError as error:
                log.warning("agentgym.not_counted", reason=error.detail)
            else:
                for game in GAMES:
                    AGENTGYM_SESSIONS.labels(game.env).set(numbers[game.env])
            await asyncio.sleep(min(self._idle_s / 4, _MAX_COUNT_PAUSE_S))

    @asynccontextmanager
    async def _held(self, tenant: Tenant, game: Game, number: int, intent: bytes = b"") -> AsyncIterator[Player]:
        """Hold the player exclusively for one call; its changes are kept, whether the call succeeds or fails."""
        try:
            key = _key(game, tenant, number)
            async with held_episode(self._store, key, _decode, ttl_s=self._idle_s, intent=intent) as player:
                yield player
        except NoEntry:
            raise _invalid(game, number) from None


def _invalid(game: Game, number: int) -> AgentGymError:
    return AgentGymError(game, f"The id {number} is not valid.")


def _shown(game: Game, answer: dict[str, Any]) -> dict[str, Any]:
    info = answer.get("info", {})  # env servers of older releases send none with a session
    return {name: info[name] for name in game.shows if name in info}


def _prefix(game: Game, tenant: Tenant) -> str:
    return f"{game.env}:{tenant.name}:"


def _key(game: Game, tenant: Tenant, number: int) -> str:
    return f"{_prefix(game, tenant)}{number}"
