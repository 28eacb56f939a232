"""AgentGym's ids and the sessions underneath: one id plays many episodes, each in a session of its own."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog
from gymfleet_contracts import problems
from gymfleet_contracts.frames import Op
from gymfleet_contracts.session import MAX_SESSION_ID_CHARS
from gymfleet_kit.problems import ServiceError

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.fronts.agentgym_games import Game
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.relay import Relay
from gymfleet_env_gateway.routing import Fleet
from gymfleet_env_gateway.settings import GatewaySettings

log = structlog.get_logger()

# Plain ints are all that these clients can hold, and anybody may guess one: 48 bits
# make a guess hopeless and still fit the integers of JSON in every language.
_ID_BITS: Final = 48
_MAX_SWEEP_PAUSE_S: Final = 30.0
_NO_BODY: Final = msgspec.Raw(msgspec.msgpack.encode({}))
_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode
# What the machinery did to the episode cannot be undone by another try of the client's.
_EPISODE_SURVIVES: Final = frozenset({problems.ACTION_TOO_LARGE, problems.VALIDATION})


class AgentGymError(Exception):
    """Told to the client as AgentGym's servers do: status 200 and `{"error": message}`."""


@dataclass(slots=True)
class Player:
    """What one AgentGym client holds by its id: at most one session at a time."""

    number: int
    tenant: Tenant
    game: Game
    touched_at: float
    session_id: str = ""
    first_observation: str = ""
    observation: str = ""
    steps: int = 0
    total_reward: float = 0.0
    done: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class AgentGymSessions:
    """All ids of this gateway process."""

    def __init__(self, fleet: Fleet, relay: Relay, metrics: Metrics, settings: GatewaySettings) -> None:
        self._fleet = fleet
        self._relay = relay
        self._metrics = metrics
        self._max = settings.agentgym_max_sessions
        self._idle_s = settings.agentgym_idle_s
        self._players: dict[int, Player] = {}

    def create(self, tenant: Tenant, game: Game) -> Player:
        """A new id; it takes no slot until it plays."""
        if len(self._players) >= self._max:
            raise Unavailable(f"{self._max} AgentGym ids are in use; those not used for {self._idle_s:g} s are freed")
        self._fleet.candidates(game.env)
        number = secrets.randbits(_ID_BITS)
        while number in self._players:
            number = secrets.randbits(_ID_BITS)
        player = Player(number=number, tenant=tenant, game=game, touched_at=time.monotonic())
        self._players[number] = player
        self._metrics.agentgym_sessions.labels(game.env).inc()
        return player

    def find(self, game: Game, number: int) -> Player:
        """The player with an id. Raises `AgentGymError`."""
        player = self._players.get(number)
        if player is None or player.game is not game:
            raise AgentGymError(f"The id {number} is not valid.")
        player.touched_at = time.monotonic()
        return player

    async def reset(self, player: Player, task_number: int) -> Player:
        """Begin another episode under the same id; the last one's session is closed first, to free its slot."""
        async with player.lock:
            await self._end(player)
            body = player.game.task(self._fleet.environment(player.game.env), task_number, self._idle_s)
            try:
                session = _decode(await self._relay.open(player.tenant, msgspec.Raw(_encode(body))))
            except ServiceError as error:
                if error.problem().type == problems.UNKNOWN_TASK:
                    raise AgentGymError(error.detail) from None
                raise
            player.session_id = session["session_id"]
            player.first_observation = player.observation = session["observation"]
            player.steps = 0
            player.total_reward = 0.0
            player.done = bool(session["terminated"] or session["truncated"])
        return player

    async def step(self, player: Player, action: str) -> dict[str, Any]:
        """Apply an action and return the env server's result."""
        async with player.lock:
            if not player.session_id:
                raise AgentGymError(f"Environment {player.number} has no episode: reset it first.")
            if player.done:
                raise AgentGymError(f"The task with environment {player.number} has finished.")
            body = msgspec.Raw(_encode({"index": player.steps, "action": action}))
            try:
                result: dict[str, Any] = _decode(
                    await self._relay.call(player.tenant, Op.STEP, player.session_id, body)
                )
            except ServiceError as error:
                if error.problem().type not in _EPISODE_SURVIVES:
                    await self._end(player)
                raise
            player.steps += 1
            player.observation = result["observation"]
            player.total_reward += result["reward"]
            player.done = bool(result["terminated"] or result["truncated"])
        return result

    async def close(self, game: Game, number: int) -> bool:
        """Forget an id; False when there is none."""
        player = self._players.get(number)
        if player is None or player.game is not game:
            return False
        await self._forget(player)
        return True

    async def sweep(self) -> None:
        """Close what is idle, until cancelled: most of these clients never close anything."""
        while True:
            await asyncio.sleep(min(self._idle_s / 4, _MAX_SWEEP_PAUSE_S))
            oldest = time.monotonic() - self._idle_s
            idle = [p for p in self._players.values() if p.touched_at < oldest and not p.lock.locked()]
            for outcome in await asyncio.gather(*map(self._forget, idle), return_exceptions=True):
                if isinstance(outcome, Exception):
                    log.error("agentgym.sweep_failed", exc_info=outcome)

    async def _forget(self, player: Player) -> None:
        if self._players.pop(player.number, None) is not None:
            self._metrics.agentgym_sessions.labels(player.game.env).dec()
        async with player.lock:
            await self._end(player)

    async def _end(self, player: Player) -> None:
        session_id, player.session_id = player.session_id, ""
        if not session_id:
            return
        try:
            await self._relay.call(player.tenant, Op.CLOSE, session_id, _NO_BODY)
        except ServiceError as error:  # its lease ends it
            log.info("session.not_closed", session_id=session_id[:MAX_SESSION_ID_CHARS], reason=error.detail)
